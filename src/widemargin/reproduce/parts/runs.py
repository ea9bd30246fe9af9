"""Runs of recipes on disk: each in a folder of its own, shared by all recipes, finished ones never repeated.

Missing runs are trained here one after the other, or as jobs of a cluster (submitit).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...io import bounded
from ...io.bounded import read_file
from ...io.errors import InputError
from ...training.config import TrainConfig

Record = dict[str, Any]
_RECORD_FIELDS = ("data", "loss", "model", "seed", "epochs", "seconds", "cores", "test", "angles", "command", "commit")
_OPTIONAL_RECORD_FIELDS = ("val", "intervals", "evaluation")


def run_folder(config: TrainConfig, runs_dir: Path) -> Path:
    """Folder of a run: its main settings in words, and a hash of all settings that differ from the default.

    Defaults are left out of the hash, so that a field that is added later does not move existing runs.

    >>> run_folder(TrainConfig(loss="arcgrad(s=10)", seed=3), Path("runs")).name.rpartition("-")[0]
    'cifar10-resnet18-arcgrad_s=10-120e-seed3'
    """
    plain_run = asdict(TrainConfig())
    changed_fields = {
        name: value for name, value in asdict(replace(config, name=None)).items() if value != plain_run[name]
    }
    text = json.dumps(changed_fields, sort_keys=True)
    words = f"{Path(config.data).name}-{config.model}-{config.loss}-{config.epochs}e-seed{config.seed}"
    plain = re.sub(r"[^A-Za-z0-9.=_+-]+", "_", words).replace("_-", "-").strip("_.")
    return runs_dir / f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def unique_configs(configs: Iterable[TrainConfig]) -> list[TrainConfig]:
    """The configs in their order, without duplicates."""
    return list({run_folder(config, Path()): config for config in configs}.values())


def read_record(config: TrainConfig, runs_dir: Path) -> Record | None:
    """The record of a finished run; None if the run is not finished."""
    path = run_folder(config, runs_dir) / "record.json"
    if not path.exists():
        return None
    try:
        record: Record = bounded.read_json(path)
        float(next(iter(record["test"].values())))
        return record
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        raise InputError(f"{path}: not the record of a run; delete its folder to do it again") from None


def missing_configs(configs: Iterable[TrainConfig], runs_dir: Path) -> list[TrainConfig]:
    """Configs whose run is not finished, each once."""
    return [config for config in unique_configs(configs) if read_record(config, runs_dir) is None]


def write_records(configs: Iterable[TrainConfig], runs_dir: Path, path: Path) -> int:
    """Write one line per finished run, without fields that only a page needs; returns the number of lines."""
    lines = []
    for config in unique_configs(configs):
        record = read_record(config, runs_dir)
        if record is not None:
            line = {name: record.get(name) for name in _RECORD_FIELDS}
            line |= {name: record[name] for name in _OPTIONAL_RECORD_FIELDS if name in record}
            lines.append(
                json.dumps(
                    {**line, "augment": config.augment, "train_fraction": config.train_fraction}, ensure_ascii=False
                )
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    fresh.replace(path)
    return len(lines)


EXECUTORS = ("local", "slurm")
_JOB_FILE = "job.txt"  # in a run's folder: the number of the job that does it
_MAX_JOB_FILE_BYTES = 1000


def run_locally(configs: Sequence[TrainConfig], runs_dir: Path, data_dir: str | None) -> None:
    """Train one run after the other; one that diverges does not keep the others from being done."""
    from ...io.resources import keep_freed_memory
    from ...training.train import train
    from ...training.trainer import DivergedError

    keep_freed_memory()
    for number, config in enumerate(configs, 1):
        folder = run_folder(config, runs_dir)
        print(f"run {number} of {len(configs)}: {folder.name}", file=sys.stderr, flush=True)
        try:
            train(config, folder, resume=True, data_dir=data_dir)
        except DivergedError as error:
            print(f"{folder.name}: {error}", file=sys.stderr, flush=True)


class Job:
    """A run as a job: what submitit pickles. A job that is preempted is sent again and goes on."""

    def __init__(self, config_json: str, folder: str, data_dir: str | None) -> None:
        self.config_json, self.folder, self.data_dir = config_json, folder, data_dir

    def __call__(self) -> dict[str, Any]:
        from ...training.train import train

        record = train(TrainConfig.from_json(self.config_json), self.folder, resume=True, data_dir=self.data_dir)
        return dict(record["test"])

    def checkpoint(self) -> Any:
        """Called by submitit when the job is to be preempted; the last epoch's checkpoint is on disk already."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit_jobs(
    configs: Sequence[TrainConfig], runs_dir: Path, data_dir: str | None, *, cluster: str = "slurm", **resources: Any
) -> list[Any]:
    """Submit every run that has no running job; returns the jobs. `cluster="local"` starts them as processes here."""
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
    for config in configs:
        folder = run_folder(config, runs_dir)
        if _is_job_running(folder, logs, cluster):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        data = None if data_dir is None else str(Path(data_dir).expanduser().resolve())
        job = executor.submit(Job(config.to_json(), str(folder.resolve()), data))
        (folder / _JOB_FILE).write_text(job.job_id, encoding="utf-8")
        jobs.append(job)
    return jobs


def _is_job_running(folder: Path, logs: Path, cluster: str) -> bool:
    """True if a job of an earlier call is queued or running for this run."""
    import submitit

    path = folder / _JOB_FILE
    if cluster != "slurm" or not path.exists():
        return False
    job: Any = submitit.SlurmJob(logs, read_file(path, _MAX_JOB_FILE_BYTES).decode("utf-8", "replace").strip())
    return not job.done(force_check=True)
