"""Who does a list of runs: this process, one after the other, or a cluster, each as a job (submitit)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...bounded_files import read_file
from ...errors import InputError
from ...run import Run
from .run_list import folder_of

EXECUTORS = ("local", "slurm")
_JOB = "job.txt"  # in a run's folder: the number of the job that does it
_LONGEST_JOB = 1000  # bytes


def here(runs: Sequence[Run], place: Path, data_dir: str | None) -> None:
    """One run after the other; one that diverges does not keep the others from being done."""
    from ...training.allocator import keep_freed_memory
    from ...training.diagnosis import DivergedError
    from ...training.loop import train

    keep_freed_memory()
    for number, run in enumerate(runs, 1):
        folder = folder_of(run, place)
        print(f"run {number} of {len(runs)}: {folder.name}", file=sys.stderr, flush=True)
        try:
            train(run, folder, resume=True, data_dir=data_dir)
        except DivergedError as error:
            print(f"{folder.name}: {error}", file=sys.stderr, flush=True)


class Job:
    """A run as a job: what submitit pickles. A job that is preempted is sent again and goes on."""

    def __init__(self, run: str, folder: str, data_dir: str | None) -> None:
        self.run, self.folder, self.data_dir = run, folder, data_dir

    def __call__(self) -> dict[str, Any]:
        from ...training.loop import train

        record = train(Run.from_json(self.run), self.folder, resume=True, data_dir=self.data_dir)
        return dict(record["test"])

    def checkpoint(self) -> Any:
        """Called by submitit when the job is to be preempted; the last epoch's checkpoint is on disk already."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def sent(
    runs: Sequence[Run], place: Path, data_dir: str | None, *, cluster: str = "slurm", **resources: Any
) -> list[Any]:
    """Send every run that no job is doing; the jobs. `cluster="local"` starts them as processes here."""
    try:
        import submitit
    except ImportError:
        raise InputError('--executor slurm needs submitit: pip install "widemargin[slurm]"') from None
    logs = place / "jobs"
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)  # submitit runs the pickles in it: nobody else may write one
    try:
        executor = submitit.AutoExecutor(folder=logs, cluster=cluster)
        executor.update_parameters(name="widemargin", **resources)
    except (RuntimeError, NameError) as error:
        raise InputError(f"--executor slurm: {str(error).splitlines()[0]}") from None
    jobs = []
    for run in runs:
        folder = folder_of(run, place)
        if _under_way(folder, logs, cluster):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        data = None if data_dir is None else str(Path(data_dir).expanduser().resolve())
        job = executor.submit(Job(run.to_json(), str(folder.resolve()), data))
        (folder / _JOB).write_text(job.job_id, encoding="utf-8")
        jobs.append(job)
    return jobs


def _under_way(folder: Path, logs: Path, cluster: str) -> bool:
    """Whether an earlier call's job has this run in its queue or in its hands."""
    import submitit

    path = folder / _JOB
    if cluster != "slurm" or not path.exists():
        return False
    job: Any = submitit.SlurmJob(logs, read_file(path, _LONGEST_JOB).decode("utf-8", "replace").strip())
    return not job.done(force_check=True)
