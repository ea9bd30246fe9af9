"""Runs of recipes on disk, one folder each, shared by all recipes; finished runs are never repeated.

Missing runs are trained here one after the other, or as jobs of a cluster (submitit). Below: the settings of the
paper's image experiments, the options of their recipes, and the functions from configs to records.
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
from ...io.locks import lock_folder, write_text_atomic
from ...metrics.confusion import Confusion
from ...training.config import TrainConfig
from ..paper import TABLE1_LOSSES

if TYPE_CHECKING:
    from ...viz.run_page import RunSummary

Record = dict[str, Any]
_RECORD_FIELDS = ("data", "loss", "model", "seed", "epochs", "seconds", "cores", "test", "angles", "command", "commit")
_OPTIONAL_RECORD_FIELDS = ("val", "intervals", "evaluation", "target_angles")


def run_folder(config: TrainConfig, runs_dir: Path) -> Path:
    """Return the folder of a run: its main settings in words, and a hash of all settings that differ from the defaults.

    Defaults are not part of the hash, so that a field added later does not move existing runs.

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
    """Return the configs in order, without duplicates."""
    return list({run_folder(config, Path()): config for config in configs}.values())


def read_record(config: TrainConfig, runs_dir: Path) -> Record | None:
    """Read the record of a finished run; None if the run is not finished."""
    path = run_folder(config, runs_dir) / "record.json"
    if not path.exists():
        return None
    try:
        record: Record = bounded.read_json(path)
        float(next(iter(record["test"].values())))
        is_extended = bool(record.get("epochs_changed"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        raise InputError(f"{path}: not the record of a run; delete its folder to train it again") from None
    if is_extended:
        raise InputError(
            f"{path}: the number of epochs was changed during the run; delete its folder to train it again"
        )
    return record


def missing_configs(configs: Iterable[TrainConfig], runs_dir: Path) -> list[TrainConfig]:
    """Return the configs of unfinished runs, without duplicates."""
    return [config for config in unique_configs(configs) if read_record(config, runs_dir) is None]


def write_records(configs: Iterable[TrainConfig], runs_dir: Path, path: Path, kept: Sequence[str] = ()) -> int:
    """Write one line per finished run, without fields that only a page needs, then the lines of other runs that are
    kept; returns the number of finished runs."""
    lines = []
    for config in unique_configs(configs):
        record = read_record(config, runs_dir)
        if record is not None:
            line = {"run": run_folder(config, runs_dir).name} | {name: record.get(name) for name in _RECORD_FIELDS}
            line |= {name: record[name] for name in _OPTIONAL_RECORD_FIELDS if name in record}
            line |= {"lr": config.lr, "augment": config.augment, "train_fraction": config.train_fraction}
            if (angles := read_target_angles(run_folder(config, runs_dir))) is not None:
                line["target_angles"] = angles
            if config.imbalance > 1.0:
                line |= {name: getattr(config, name) for name in ("imbalance", "class_weight", "class_weight_start")}
                line["class_accuracy"] = Confusion.from_json(record["confusion"]).class_accuracy
            lines.append(json.dumps(line, ensure_ascii=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(line + "\n" for line in [*lines, *kept]), encoding="utf-8")
    fresh.replace(path)
    return len(lines)


def read_target_angles(folder: Path) -> list[list[float]] | None:
    """For every epoch the 10, 50 and 90 % quantiles in degrees of the angles of training images to the weight of their
    class, from the log of a run; None without them."""
    from ...training.logging import MetricsLog
    from ...viz.matrices import histogram_quantile

    if not (folder / "metrics.jsonl").exists():
        return None
    lines = MetricsLog.read_epochs(folder / "metrics.jsonl")
    counts = [line["histogram"]["target"] for line in lines if "histogram" in line]
    if not counts or not all(map(sum, counts)):
        return None
    return [[round(histogram_quantile(epoch, q), 1) for q in (0.1, 0.5, 0.9)] for epoch in counts]


def add_finished_runs(paths: Iterable[str], configs: Iterable[TrainConfig], runs_dir: Path) -> list[str]:
    """Write `record.json` of the runs that these files of records hold and that were not begun here; return the lines
    of runs that are not among the configs, without duplicates.

    So a long list of runs continues on another machine from its `records.jsonl` alone. Such a run counts as finished
    and stands in the tables, but has neither a network nor a log.
    """
    paths = list(paths)
    if not paths:
        return []
    folders = {run_folder(config, runs_dir).name: run_folder(config, runs_dir) for config in configs}
    added, kept = 0, dict[str, str]()
    for path in paths:
        for number, text in enumerate(bounded.read_lines(path), 1):
            try:
                record = json.loads(text)
                name = str(record.get("run"))
                folder = folders.get(name)
                float(next(iter(record["test"].values())))
            except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
                raise InputError(f"{path}, line {number}: not the record of a run") from None
            if folder is None:
                kept[name if "run" in record else f"{path}, {number}"] = json.dumps(record, ensure_ascii=False)
            elif not folder.exists():
                folder.mkdir(parents=True)
                write_text_atomic(folder / "record.json", json.dumps(record, ensure_ascii=False))
                added += 1
    others = f"; {len(kept)} others are kept in records.jsonl" if kept else ""
    print(f"{added} finished run{'' if added == 1 else 's'} added from {', '.join(map(str, paths))}{others}")
    return list(kept.values())


def paper_angles(summaries: Sequence[RunSummary]) -> dict[str, float]:
    """Table VI's angles for the loss of the runs, if all use one of its losses on CIFAR-10."""
    from ..paper import read_paper_table

    losses = {each.config.loss for each in summaries}
    method = next((method for method, loss in IMAGE_LOSSES.items() if {loss} == losses), None)
    if method is None or {each.config.data for each in summaries} != {"cifar10"}:
        return {}
    return {row["metric"]: float(row[method]) for row in read_paper_table(6) if method in row}


EXECUTORS = ("local", "slurm")
_JOB_FILE = "job.txt"  # in a run's folder: the id of its job
_MAX_JOB_FILE_BYTES = 1000


def run_locally(configs: Sequence[TrainConfig], runs_dir: Path, data_dir: str | None) -> None:
    """Train one run after the other; a diverged run does not stop the others."""
    from ...io.resources import keep_freed_memory
    from ...training.divergence import DivergedError
    from ...training.train import train

    keep_freed_memory()
    for number, config in enumerate(configs, 1):
        folder = run_folder(config, runs_dir)
        print(f"run {number} of {len(configs)}: {folder.name}", file=sys.stderr, flush=True)
        try:
            train(config, folder, resume=folder.exists(), data_dir=data_dir)
        except DivergedError as error:
            print(f"{folder.name}: {error}", file=sys.stderr, flush=True)


class Job:
    """A run as a job that submitit pickles. A preempted job is submitted again and continues."""

    def __init__(self, config_json: str, folder: str, data_dir: str | None) -> None:
        self.config_json, self.folder, self.data_dir = config_json, folder, data_dir

    def __call__(self) -> dict[str, Any]:
        from ...training.train import train

        config, folder = TrainConfig.from_json(self.config_json), Path(self.folder)
        trained = train(config, folder, resume=folder.exists(), data_dir=self.data_dir)
        return dict(trained.record["test"])

    def checkpoint(self) -> Any:
        """Called by submitit before preemption; the last epoch's checkpoint is already on disk."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit_jobs(
    configs: Sequence[TrainConfig], runs_dir: Path, data_dir: str | None, *, cluster: str = "slurm", **resources: Any
) -> list[Any]:
    """Submit every run without a running job; return the jobs. `cluster="local"` starts them as local processes."""
    try:
        import submitit
    except ImportError:
        raise InputError('--executor slurm needs submitit: pip install "widemargin[slurm]"') from None
    logs = runs_dir / "jobs"
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)  # submitit runs its pickles: only we may write there
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


# All image recipes use the options of `add_image_arguments`; `complete_image_runs` trains missing runs, here or as
# jobs, and writes the records.

# The paper's columns in our spelling: those of Table I, except ArcGrad's scale.
IMAGE_LOSSES = {method: loss for method, loss in TABLE1_LOSSES.items() if not method.startswith("arcgrad")}
IMAGE_LOSSES["arcgrad"] = "arcgrad(s=10)"
# Not in the paper: its author's later loss, and the usual competitor of ArcFace.
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
# One setting for all losses; rate and decay were compared on held-out training images, with ArcGrad only.
_CPU_CONFIG = TrainConfig(
    model="fast(widths=(32, 96, 96), bias=False)",
    epochs=10,
    batch_size=250,
    opt="muon",
    lr=0.02,
    weight_decay=0.3,
    precision="bf16-mixed",
)
# How these were selected: docs/log.md.
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
    """Return the config of a size on a data set; `overrides` are fields that an experiment varies.

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
        parser.add_argument(
            "--size", choices=SIZES, default="full", help="full: the paper's size; cpu: for two CPU cores"
        )
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
    parser.add_argument("--list", action="store_true", help="list finished and missing runs without training")
    parser.add_argument("--out", metavar="DIR", help="folder for the page and the records (default: the recipe's name)")
    parser.add_argument("--runs-dir", metavar="DIR", default="runs", help="folder of the runs, shared by all recipes")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    add_records_argument(parser)
    cluster = parser.add_argument_group("running on a cluster")
    cluster.add_argument("--executor", choices=("local", "slurm"), default="local", help="train here, or as SLURM jobs")
    cluster.add_argument("--partition", metavar="NAME", help="SLURM partition")
    cluster.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs per job (default 1)")
    cluster.add_argument("--cpus", type=int, default=8, metavar="N", help="CPU cores per job (default 8)")
    cluster.add_argument("--hours", type=float, default=24.0, metavar="H", help="time limit of a job (default 24)")


def add_records_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that continues a list of runs from another machine."""
    parser.add_argument(
        "--records",
        nargs="+",
        default=[],
        metavar="FILE",
        help="records.jsonl of this recipe from an earlier call or another machine: its runs count as finished",
    )


def seed_range(options: argparse.Namespace) -> range:
    """Return the seeds: 0, 1, …"""
    full, cpu = options.usual_seeds
    count = options.seeds if options.seeds is not None else cpu if options.size == "cpu" else full
    if count < 1:
        raise InputError(f"--seeds must be at least 1, got {count}")
    return range(count)


def complete_image_runs(configs: Iterable[TrainConfig], options: argparse.Namespace, recipe: str) -> Path:
    """Train missing runs, here or as jobs, and write the records of finished runs; return the output folder."""
    all_configs, runs_dir = unique_configs(configs), Path(options.runs_dir)
    out = Path(options.out or recipe)
    kept = add_finished_runs(options.records, all_configs, runs_dir)
    todo = missing_configs(all_configs, runs_dir)
    if options.list:
        for config in all_configs:
            print("missing " if config in todo else "finished", run_folder(config, runs_dir))
    with nullcontext() if options.list else lock_folder(out):  # a list needs no lock
        if todo and not options.list:
            (_execute_locally if options.executor == "local" else _execute_as_jobs)(todo, runs_dir, options)
        count = write_records(all_configs, runs_dir, out / "records.jsonl", kept)
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
    active = len(todo) - len(jobs)
    print(f"{len(jobs)} jobs submitted, {active} already active; run the same command again to collect finished runs")
