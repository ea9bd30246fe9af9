"""Selection of the default `MLPConfig` of `compare` among the last candidates, on inner folds.

Every training part of the ten times ten folds is split again: nine tenths train, one tenth is scored. Candidates are
compared by that inner accuracy, averaged over the fifteen sets, for softmax and for ArcGrad: a config that suits only
one of them would decide the comparison in advance.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from widemargin.data.tabular.table import Table
from widemargin.io.worker_pool import ProgressCallback, run_all
from widemargin.tabular.config import MLPConfig, add_data_options
from widemargin.tabular.crossval import Partition, cross_validate, partitions

CANDIDATE_LOSSES = ("softmax", "arcgrad(s=5)")
INNER_SEED = 777  # not the seed of any record
CANDIDATES: tuple[dict[str, Any], ...] = (
    {},
    {"lr": 0.02},
    {"lr": 0.02, "min_steps": 400},
    {"lr": 0.02, "dropout": 0.1},
    {"lr": 0.02, "dropout": 0.3, "min_steps": 400},
    {"lr": 0.02, "batch": 24},
    {"lr": 0.02, "batch": 32},
    {"lr": 0.02, "hidden": (96, 8)},
    {"lr": 0.02, "hidden": (96, 48)},
    {"lr": 0.02, "hidden": (128, 24)},
    {"lr": 0.02, "warmup": 0.3},
    {"lr": 0.02, "weight_decay": 0.0},
    {"lr": 0.02, "weight_decay": 1.0},
    {"lr": 0.01, "weight_decay": 2.0},
    {"lr": 0.03, "weight_decay": 1.0},
)


def split_inner(split: Sequence[Partition], seed: int) -> list[Partition]:
    """Split each training part again: nine tenths to train, one to score; test parts are not used."""
    inner = []
    for k, part in enumerate(split):
        order = np.random.default_rng([seed, k, 3]).permutation(part.training)
        cut = max(1, len(order) // 10)
        inner.append(Partition(np.sort(order[cut:]), np.sort(order[:cut])))
    return inner


def inner_accuracies(tables: Sequence[Table], jobs: int, on_progress: ProgressCallback) -> list[dict[str, Any]]:
    """For every candidate: its settings, the inner accuracies by loss and set, and their mean; the best first."""
    tried = [replace(MLPConfig(), **change) for change in CANDIDATES]
    work = [(n, table, config, loss) for n, config in enumerate(tried) for loss in CANDIDATE_LOSSES for table in tables]
    candidates: list[dict[str, Any]] = [
        {"config": asdict(config), "inner_accuracy": {loss: {} for loss in CANDIDATE_LOSSES}} for config in tried
    ]
    for number, name, loss, accuracy in run_all(_evaluate_candidate, work, jobs, on_progress):
        candidates[number]["inner_accuracy"][loss][name] = accuracy
    for entry in candidates:
        entry["means"] = {
            loss: float(np.mean(list(entry["inner_accuracy"][loss].values()))) for loss in CANDIDATE_LOSSES
        }
        entry["mean"] = float(np.mean(list(entry["means"].values())))
    return sorted(candidates, key=lambda entry: -entry["mean"])


def _evaluate_candidate(
    index: int, table: Table, config: MLPConfig, loss: str, on_progress: ProgressCallback
) -> tuple[int, str, str, float]:
    split = split_inner(partitions(table.y, 10, 10, INNER_SEED), INNER_SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        score = cross_validate(table, loss, split, config, INNER_SEED, on_progress=on_progress)
    return index, table.name, loss, float(np.mean(score.folds))


def print_candidates(data_dir: str | None, jobs: int, json_path: str | None) -> None:
    """Measure and print the candidates; the default is the first candidate."""
    from rich.table import Table as Grid

    from widemargin.data.tabular.uci import TABLE1_SET_NAMES, load_uci_set
    from widemargin.io.progress import progress_bar
    from widemargin.viz.terminal import check_writable, console

    if json_path:
        check_writable(json_path)
    tables = [load_uci_set(name, data_dir) for name in TABLE1_SET_NAMES]
    with progress_bar("inner folds", len(CANDIDATES) * len(CANDIDATE_LOSSES) * len(tables)) as on_progress:
        candidates = inner_accuracies(tables, jobs, on_progress)
    grid = Grid(title="Inner accuracy in percent, mean over the fifteen sets", title_justify="left")
    for column in ("candidate", *CANDIDATE_LOSSES, "mean"):
        grid.add_column(column, justify="left" if column == "candidate" else "right")
    default = asdict(MLPConfig())
    for entry in candidates:
        changed = {k: v for k, v in entry["config"].items() if v != default[k]}
        name = ", ".join(f"{k}={v}" for k, v in changed.items()) or "the default"
        grid.add_row(name, *(f"{entry['means'][loss]:.2f}" for loss in CANDIDATE_LOSSES), f"{entry['mean']:.2f}")
    console().print(grid)
    if json_path:
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump(candidates, file, indent=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_data_options(parser)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    print_candidates(options.data_dir, options.jobs, options.json)
