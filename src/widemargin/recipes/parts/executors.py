"""Who does a list of runs: this process, one after the other, or a cluster, each as a job (submitit)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...bounded_files import read_file
from ...errors import InputError
from ...run import TrainConfig
from .run_list import run_folder

EXECUTORS = ("local", "slurm")
_JOB_FILE = "job.txt"  # in a run's folder: the number of the job that does it
_MAX_JOB_FILE_BYTES = 1000  # bytes


def run_locally(configs: Sequence[TrainConfig], runs_dir: Path, data_dir: str | None) -> None:
    """One run after the other; one that diverges does not keep the others from being done."""
    from ...training.allocator import keep_freed_memory
    from ...training.diagnosis import DivergedError
    from ...training.loop import train

    keep_freed_memory()
    for number, run in enumerate(configs, 1):
        folder = run_folder(run, runs_dir)
        print(f"run {number} of {len(configs)}: {folder.name}", file=sys.stderr, flush=True)
        try:
            train(run, folder, resume=True, data_dir=data_dir)
        except DivergedError as error:
            print(f"{folder.name}: {error}", file=sys.stderr, flush=True)


class Job:
    """A run as a job: what submitit pickles. A job that is preempted is sent again and goes on."""

    def __init__(self, config_json: str, folder: str, data_dir: str | None) -> None:
        self.config_json, self.folder, self.data_dir = config_json, folder, data_dir

    def __call__(self) -> dict[str, Any]:
        from ...training.loop import train

        record = train(TrainConfig.from_json(self.config_json), self.folder, resume=True, data_dir=self.data_dir)
        return dict(record["test"])

    def checkpoint(self) -> Any:
        """Called by submitit when the job is to be preempted; the last epoch's checkpoint is on disk already."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit_jobs(
    configs: Sequence[TrainConfig], runs_dir: Path, data_dir: str | None, *, cluster: str = "slurm", **resources: Any
) -> list[Any]:
    """Send every run that no job is doing; the jobs. `cluster="local"` starts them as processes here."""
    try:
        import submitit
    except ImportError:
        raise InputError('--executor slurm needs submitit: pip install "widemargin[slurm]"') from None
    logs = runs_dir / "jobs"
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)  # submitit runs the pickles in it: nobody else may write one
    try:
        executor = submitit.AutoExecutor(folder=logs, cluster=cluster)
        executor.update_parameters(name="widemargin", **resources)
    except (RuntimeError, NameError) as error:
        raise InputError(f"--executor slurm: {str(error).splitlines()[0]}") from None
    jobs = []
    for run in configs:
        folder = run_folder(run, runs_dir)
        if _is_job_running(folder, logs, cluster):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        data = None if data_dir is None else str(Path(data_dir).expanduser().resolve())
        job = executor.submit(Job(run.to_json(), str(folder.resolve()), data))
        (folder / _JOB_FILE).write_text(job.job_id, encoding="utf-8")
        jobs.append(job)
    return jobs


def _is_job_running(folder: Path, logs: Path, cluster: str) -> bool:
    """Whether an earlier call's job has this run in its queue or in its hands."""
    import submitit

    path = folder / _JOB_FILE
    if cluster != "slurm" or not path.exists():
        return False
    job: Any = submitit.SlurmJob(logs, read_file(path, _MAX_JOB_FILE_BYTES).decode("utf-8", "replace").strip())
    return not job.done(force_check=True)
