"""Runs of recipes on disk: each in a folder of its own, shared by all recipes, finished ones never repeated.

Missing runs are trained here one after the other, or as jobs of a cluster (submitit). Below: the settings of the
paper's image experiments, the options of their recipes, and the way from configs to records.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...io import bounded
from ...io.bounded import read_file
from ...io.errors import InputError, unknown_name_error
from ...io.locks import lock_folder
from ...metrics.confusion import Confusion
from ...training.config import TrainConfig
from ..paper import TABLE1_LOSSES

if TYPE_CHECKING:
    from ...viz.run_page import RunSummary

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
        is_extended = bool(record.get("epochs_changed"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        raise InputError(f"{path}: not the record of a run; delete its folder to do it again") from None
    if is_extended:
        raise InputError(f"{path}: the run's number of epochs was changed on its way; delete its folder to do it again")
    return record


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
            line |= {"augment": config.augment, "train_fraction": config.train_fraction}
            if config.imbalance > 1.0:
                line |= {name: getattr(config, name) for name in ("imbalance", "class_weight", "class_weight_start")}
                line["class_accuracy"] = Confusion.from_json(record["confusion"]).class_accuracy
            lines.append(json.dumps(line, ensure_ascii=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    fresh.replace(path)
    return len(lines)


def paper_angles(summaries: Sequence[RunSummary]) -> dict[str, float]:
    """Table VI's angles of the runs' loss, where all are of one of its losses on CIFAR-10."""
    from ..paper import read_paper_table

    losses = {each.config.loss for each in summaries}
    method = next((method for method, loss in IMAGE_LOSSES.items() if {loss} == losses), None)
    if method is None or {each.config.data for each in summaries} != {"cifar10"}:
        return {}
    return {row["metric"]: float(row[method]) for row in read_paper_table(6) if method in row}


EXECUTORS = ("local", "slurm")
_JOB_FILE = "job.txt"  # in a run's folder: the number of the job that does it
_MAX_JOB_FILE_BYTES = 1000


def run_locally(configs: Sequence[TrainConfig], runs_dir: Path, data_dir: str | None) -> None:
    """Train one run after the other; one that diverges does not keep the others from being done."""
    from ...io.resources import keep_freed_memory
    from ...training.divergence import DivergedError
    from ...training.train import train

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

        trained = train(TrainConfig.from_json(self.config_json), self.folder, resume=True, data_dir=self.data_dir)
        return dict(trained.record["test"])

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


# All image recipes take the options of `add_image_arguments`; `complete_image_runs` trains what is missing, here or as
# jobs, and writes the records.

# The paper's columns and our spelling of them: Table I's, but for ArcGrad's scale.
IMAGE_LOSSES = {method: loss for method, loss in TABLE1_LOSSES.items() if not method.startswith("arcgrad")}
IMAGE_LOSSES["arcgrad"] = "arcgrad(s=10)"
# Not in the paper: its author's later loss, and the margin ArcFace is most often compared with.
EXTRA_LOSSES = {"adaacos": "adaacos", "cosface": "cosface(s=20, m=0.1)"}
SIZES = ("full", "cpu")

# Table III, as printed. Adam at 0.1 is doubtful; `working` is the same with a rate at which Adam learns.
_PAPER_CONFIGS = {
    "cifar10": TrainConfig(
        data="cifar10", model="resnet18", epochs=120, batch_size=256, opt="adam", lr=0.1, weight_decay=5e-4
    ),
    "cifar100": TrainConfig(
        data="cifar100", model="resnet34", epochs=160, batch_size=128, opt="adam", lr=0.01, weight_decay=5e-4
    ),
}
_WORKING_LR = 1e-3
# One set of settings for all losses; rate and decay were compared on held-out training images, with ArcGrad alone.
_CPU_CONFIG = TrainConfig(
    model="fast(widths=(32, 96, 96), bias=False)",
    epochs=10,
    batch_size=250,
    opt="muon",
    lr=0.02,
    weight_decay=0.3,
    precision="bf16-mixed",
)
# How far these were chosen, and on what: docs/log.md.
HEADLINE_CONFIG = TrainConfig(
    data="cifar10",
    model="fast(bias=False)",
    loss="arcgrad(s=10)",
    epochs=32,
    batch_size=500,
    opt="muon",
    lr=0.02,
    weight_decay=0.3,
    label_smoothing=0.1,
    augment="fast",
    precision="bf16-mixed",
)


def make_image_config(
    size: str, data: str, loss: str, seed: int, *, as_printed: bool = True, **overrides: Any
) -> TrainConfig:
    """The config of a size on a data set; `overrides` are fields that an experiment varies.

    >>> [make_image_config("full", "cifar10", "softmax", 0, as_printed=printed).lr for printed in (True, False)]
    [0.1, 0.001]
    """
    if size not in SIZES:
        raise unknown_name_error("size", size, SIZES)
    base = replace(_CPU_CONFIG, data=data) if size == "cpu" else _PAPER_CONFIGS[data]
    if size == "full" and not as_printed:
        base = replace(base, lr=_WORKING_LR)
    return replace(base, loss=loss, seed=seed, **overrides)


def add_image_arguments(
    parser: argparse.ArgumentParser, *, seeds: tuple[int, int] | None = (5, 2), sizes: bool = True
) -> None:
    """Add the options; `seeds` are the numbers of runs per method in full and in CPU size."""
    if sizes:
        parser.add_argument("--size", choices=SIZES, default="full", help="the paper's (full), or two CPU cores' (cpu)")
        parser.add_argument(
            "--settings",
            choices=("printed", "working"),
            default="printed",
            help="full size: the paper's Table III as printed (Adam at 0.1), or with a rate at which Adam learns",
        )
    if seeds is not None:
        help_text = f"runs per method, seeds 0, 1, … (default {seeds[0]}, in CPU size {seeds[1]})"
        parser.add_argument("--seeds", type=int, metavar="N", help=help_text)
        parser.set_defaults(usual_seeds=seeds)
    parser.add_argument("--list", action="store_true", help="say which runs there are and which are missing; do none")
    parser.add_argument("--out", metavar="DIR", help="folder for the page and the records (default: the recipe's name)")
    parser.add_argument("--runs-dir", metavar="DIR", default="runs", help="folder of the runs, shared by all recipes")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    cluster = parser.add_argument_group("where")
    cluster.add_argument("--executor", choices=("local", "slurm"), default="local", help="here, or as jobs (submitit)")
    cluster.add_argument("--partition", metavar="NAME", help="SLURM partition")
    cluster.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs per job (default 1)")
    cluster.add_argument("--cpus", type=int, default=8, metavar="N", help="CPU cores per job (default 8)")
    cluster.add_argument("--hours", type=float, default=24.0, metavar="H", help="longest time of a job (default 24)")


def seed_range(options: argparse.Namespace) -> range:
    """The seeds: 0, 1, …"""
    full, cpu = options.usual_seeds
    count = options.seeds if options.seeds is not None else cpu if options.size == "cpu" else full
    if count < 1:
        raise InputError(f"--seeds must be at least 1, got {count}")
    return range(count)


def complete_image_runs(configs: Iterable[TrainConfig], options: argparse.Namespace, recipe: str) -> Path:
    """Train what is missing, here or as jobs, and write the records of finished runs; returns the output folder."""
    all_configs, runs_dir = unique_configs(configs), Path(options.runs_dir)
    out = Path(options.out or recipe)
    todo = missing_configs(all_configs, runs_dir)
    if options.list:
        for config in all_configs:
            print("missing " if config in todo else "finished", run_folder(config, runs_dir))
    with nullcontext() if options.list else lock_folder(out):  # a list needs no lock
        if todo and not options.list:
            (_execute_locally if options.executor == "local" else _execute_as_jobs)(todo, runs_dir, options)
        count = write_records(all_configs, runs_dir, out / "records.jsonl")
    print(f"{count} of {len(all_configs)} runs are finished")
    return out


def _execute_locally(todo: list[TrainConfig], runs_dir: Path, options: argparse.Namespace) -> None:

    run_locally(todo, runs_dir, options.data_dir)


def _execute_as_jobs(todo: list[TrainConfig], runs_dir: Path, options: argparse.Namespace) -> None:

    resources: dict[str, Any] = {
        "timeout_min": round(60 * options.hours),
        "gpus_per_node": options.gpus,
        "cpus_per_task": options.cpus,
    }
    if options.partition:
        resources["slurm_partition"] = options.partition
    jobs = submit_jobs(todo, runs_dir, options.data_dir, **resources)
    print(f"{len(jobs)} jobs sent, {len(todo) - len(jobs)} under way; the same command again collects what is finished")
