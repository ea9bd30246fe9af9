"""Runs of the paper's image experiments: the paper's settings, a size for two CPU cores, options, execution.

All image recipes take the options of `add_image_arguments`; `complete_image_runs` trains what is missing, here or as
jobs, and writes the records.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...io.errors import InputError, unknown_name_error
from ...io.locks import lock_folder
from ...training.config import TrainConfig
from ..paper import TABLE1_LOSSES
from .runs import missing_configs, run_folder, unique_configs, write_records

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
    from .runs import run_locally

    run_locally(todo, runs_dir, options.data_dir)


def _execute_as_jobs(todo: list[TrainConfig], runs_dir: Path, options: argparse.Namespace) -> None:
    from .runs import submit_jobs

    resources: dict[str, Any] = {
        "timeout_min": round(60 * options.hours),
        "gpus_per_node": options.gpus,
        "cpus_per_task": options.cpus,
    }
    if options.partition:
        resources["slurm_partition"] = options.partition
    jobs = submit_jobs(todo, runs_dir, options.data_dir, **resources)
    print(f"{len(jobs)} jobs sent, {len(todo) - len(jobs)} under way; the same command again collects what is finished")
