"""Default settings of `compare` on tables of many shapes (`table_shapes`), compared with scikit-learn's classifiers.

For every table and seed the loss is selected on inner folds of the training rows, trained on all of them and tested on
held-out rows; baselines are fitted to the same training rows. Finished lines are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.data.tabular.encode import check_width
from widemargin.io.worker_pool import ProgressCallback, run_all
from widemargin.tabular.baselines import DEFAULT_BASELINES, cross_validate_baseline, max_fit_rows
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.crossval import Partition, cross_validate, partitions, stratified_sample
from widemargin.tabular.plan import PAPER_LOSSES, drop_adacos_for_two_classes

from .table_shapes import REAL_SETS, REPORT_SEEDS, SHAPES, TableSplit, draw_splits, take_rows

OURS = "chosen loss"
NAMES = (*SHAPES, *REAL_SETS)
BASELINE_SECONDS = 120.0
MAX_POINTS_BEHIND = 1.0
"""Percentage points by which the selected loss may be behind the best baseline."""
MAX_INNER_ROWS = 20_000
"""Training rows for selecting the loss: of larger tables a stratified sample, and one inner part of five."""


def evaluate_baseline(splits: Sequence[TableSplit], method: str, seed: int, seconds: float) -> dict[str, Any]:
    """Mean test accuracy of a baseline on the splits of a table, with a time limit for each (see `baselines`)."""
    scores = [
        cross_validate_baseline(split.table, method, [Partition(split.training, split.test)], seed, seconds=seconds)
        for split in splits
    ]
    fit_rows = max_fit_rows(splits[0].table, method, seconds)
    limits = {} if fit_rows is None or fit_rows >= len(splits[0].training) else {"fit_rows": fit_rows}
    took = sum(score.seconds for score in scores)
    return {"accuracy": _mean(score.folds[0] for score in scores), "seconds": took, **limits}


def evaluate_chosen_loss(splits: Sequence[TableSplit], seed: int) -> dict[str, Any]:
    """Mean test accuracy of the loss with the highest mean on inner folds, on the splits of a table."""
    accuracies, chosen, seconds = [], [], 0.0
    for split in splits:
        inner_rows = stratified_sample(split.training, split.table.y, MAX_INNER_ROWS, [seed])
        inner_table = take_rows(split.table, inner_rows)
        methods, _ = drop_adacos_for_two_classes(PAPER_LOSSES, [inner_table])
        inner = _inner_split(inner_table.y, seed)
        means: dict[str, float] = {}
        for loss in methods:
            config = _config(split, len(inner[0].training))
            score = cross_validate(inner_table, loss, inner, config, seed)
            means[loss], seconds = float(np.mean(score.folds)), seconds + score.seconds
        best = max(means, key=lambda loss: means[loss])
        whole = [Partition(split.training, split.test)]
        score = cross_validate(split.table, best, whole, _config(split, len(split.training)), seed)
        accuracies.append(score.folds[0])
        chosen.append({"loss": best, "inner": means, "accuracy": score.folds[0], "train": score.train[0]})
        seconds += score.seconds
    return {"accuracy": _mean(accuracies), "seconds": seconds, "chosen": chosen}


def _inner_split(y: np.ndarray, seed: int) -> list[Partition]:
    if len(y) >= MAX_INNER_ROWS:
        return partitions(y, 1, 5, seed, stratify=True)[:1]
    return partitions(y, 2 if len(y) < 1_000 else 1, 5 if len(y) < 1_000 else 3, seed, stratify=True)


def _config(split: TableSplit, num_rows: int) -> MLPConfig:
    return MLPConfig.for_table(num_rows, check_width(split.table), len(split.table.class_names))


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _evaluate(
    name: str, seed: int, method: str, baseline_seconds: float, on_progress: ProgressCallback
) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        splits = draw_splits(name, seed)
        if method == OURS:
            result = evaluate_chosen_loss(splits, seed)
        else:
            result = evaluate_baseline(splits, method, seed, baseline_seconds)
    on_progress(1.0)
    return {"set": name, "seed": seed, "method": method, **result}


def run_missing(
    names: Sequence[str],
    seeds: Sequence[int],
    methods: Sequence[str],
    path: Path,
    jobs: int,
    baseline_seconds: float = BASELINE_SECONDS,
) -> list[dict[str, Any]]:
    """Evaluate every missing method, table and seed; return all requested lines."""
    from widemargin.io.progress import progress_bar

    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    existing = {(line["set"], line["seed"], line["method"]) for line in lines}
    tasks = [(name, seed, method) for name in names for method in methods for seed in seeds]
    missing = [work for work in tasks if work not in existing]
    with (
        progress_bar("tables", len(tasks), len(tasks) - len(missing)) as on_progress,
        path.open("a", encoding="utf-8") as file,
    ):
        for line in run_all(_evaluate, [(*work, baseline_seconds) for work in missing], jobs, on_progress):
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
    return [line for line in lines if (line["set"], line["seed"], line["method"]) in set(tasks)]


def summarise(lines: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the mean accuracies, the best baseline, and the lead of the selected loss for every table."""
    rows = []
    for name in names:
        by_method: dict[str, list[float]] = {}
        for line in lines:
            if line["set"] == name:
                by_method.setdefault(line["method"], []).append(line["accuracy"])
        means = {method: float(np.mean(values)) for method, values in by_method.items()}
        baselines = {method: mean for method, mean in means.items() if method != OURS}
        best = max(baselines, key=lambda method: baselines[method])
        ahead = means[OURS] - baselines[best]
        rows.append({"set": name, "means": means, "best": best, "ahead": ahead, "seeds": len(by_method[OURS])})
    return rows


def print_summary(rows: Sequence[dict[str, Any]]) -> None:
    """Print a row per table, and on how many the selected loss is at most a point behind the best baseline."""
    from rich.table import Table as Grid

    from widemargin.viz.terminal import console

    grid = Grid(title="Test accuracy in percent, mean over seeds", title_justify="left")
    methods = [OURS, *DEFAULT_BASELINES]
    for column in ("table", *methods, "ahead by"):
        grid.add_column(column, justify="left" if column == "table" else "right", overflow="fold")
    for row in rows:
        cells = [f"{row['means'][method]:.2f}" if method in row["means"] else "–" for method in methods]
        grid.add_row(row["set"], *cells, f"{row['ahead']:+.2f}")
    console(width=140).print(grid)
    good = sum(row["ahead"] >= -MAX_POINTS_BEHIND for row in rows)
    print(f"at most {MAX_POINTS_BEHIND:g} point behind the best baseline, or ahead: {good} of {len(rows)} tables")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--seeds", type=int, nargs="+", default=list(REPORT_SEEDS), help="seeds of the tables")
    parser.add_argument("--sets", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME", help="tables")
    parser.add_argument("--methods", nargs="+", choices=(OURS, *DEFAULT_BASELINES), metavar="NAME", help="methods")
    parser.add_argument(
        "--baseline-seconds", type=float, default=BASELINE_SECONDS, help=f"per fit (default {BASELINE_SECONDS:g})"
    )
    parser.add_argument("--out", default="tables.jsonl", help="file with a line per result; existing lines are kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    methods = options.methods or [OURS, *DEFAULT_BASELINES]
    lines = run_missing(options.sets, options.seeds, methods, Path(options.out), options.jobs, options.baseline_seconds)
    if {OURS} < {line["method"] for line in lines}:
        print_summary(summarise(lines, options.sets))
