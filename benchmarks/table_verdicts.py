"""Do verdicts of `compare` depend on its settings? The default beside tuned losses, on tables of many shapes.

Two runs contradict each other on a pair of losses if both find a difference (corrected resampled t-test, Holm over all
pairs, 5 %) and the signs are opposite. Larger tables are cut to `MAX_ROWS` rows, so that it takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.data.tabular.table import Table
from widemargin.stats import corrected_t_test, holm
from widemargin.tabular.compare import compare
from widemargin.tabular.comparison import Comparison
from widemargin.tabular.crossval import stratified_sample

from .table_shapes import REAL_SETS, SHAPES, draw_splits, take_rows

NAMES = (*SHAPES, *REAL_SETS)
MAX_ROWS, MAX_CELLS = 3_000, 2_000_000
SMALL_ROWS, TRIALS_OF_SMALL_TABLES, TRIALS = 1_000, 16, 4
FOLDS = 5
ALPHA = 0.05


def draw_table(name: str, seed: int) -> Table:
    """The training rows of a generated table, or all rows of a real one."""
    split = draw_splits(name, seed)[0]
    rows = np.arange(len(split.table)) if name in REAL_SETS else split.training
    limit = min(MAX_ROWS, MAX_CELLS // len(split.table.columns))
    return take_rows(split.table, stratified_sample(rows, split.table.y, limit, [seed]))


def differences(comparison: Comparison) -> dict[tuple[str, str], tuple[float, float]]:
    """Of every pair of losses the difference in points and its adjusted p."""
    results = comparison.sets[0].results
    pairs = list(combinations(results, 2))
    tests = [corrected_t_test(a.folds, b.folds, 1.0 / FOLDS) for a, b in pairs]
    adjusted = holm([test.p for test in tests])
    return {
        (a.loss, b.loss): (test.difference, float(p)) for (a, b), test, p in zip(pairs, tests, adjusted, strict=True)
    }


def compare_verdicts(name: str, seed: int, jobs: int) -> dict[str, Any]:
    """The significant pairs of both runs, and those on which they contradict each other."""
    table = draw_table(name, seed)
    options: dict[str, Any] = {"baselines": False, "metric": "accuracy", "folds": FOLDS, "seed": seed, "jobs": jobs}
    options |= {"cv_repeats": 2 if len(table) <= 2_000 else 1, "calibrate": False, "quiet": True}
    trials = TRIALS_OF_SMALL_TABLES if len(table) <= SMALL_ROWS else TRIALS
    default, tuned = compare(table, **options), compare(table, tune_trials=trials, **options)
    by_run = [differences(default), differences(tuned)]
    significant = [{pair for pair, (_, p) in run.items() if p < ALPHA} for run in by_run]
    opposite = [
        pair for pair in significant[0] & significant[1] if np.sign(by_run[0][pair][0]) != np.sign(by_run[1][pair][0])
    ]
    return {
        "set": name,
        "rows": len(table),
        "trials": trials,
        "pairs": len(by_run[0]),
        "significant_default": len(significant[0]),
        "significant_tuned": len(significant[1]),
        "significant_both": len(significant[0] & significant[1]),
        "opposite": [list(pair) for pair in opposite],
        "means_default": {result.loss: result.mean for result in default.sets[0].results},
        "means_tuned": {result.loss: result.mean for result in tuned.sets[0].results},
    }


def print_lines(lines: Sequence[dict[str, Any]]) -> None:
    """A row per table, and the number of contradictions."""
    from rich.table import Table as Grid

    from widemargin.viz.terminal import console

    grid = Grid(title="Pairs of losses that a test tells apart", title_justify="left")
    for column in (
        "table",
        "rows",
        "trials",
        "pairs",
        "default",
        "tuned",
        "both",
        "opposite",
        "best: default",
        "tuned",
    ):
        grid.add_column(column, justify="left" if column == "table" else "right", overflow="fold")
    for line in lines:
        best = [f"{max(line[key].values()):.2f}" for key in ("means_default", "means_tuned")]
        found = (line[f"significant_{run}"] for run in ("default", "tuned", "both"))
        shown = (line["rows"], line["trials"], line["pairs"], *found, len(line["opposite"]))
        grid.add_row(line["set"], *map(str, shown), *best)
    console(width=130).print(grid)
    print(f"pairs with opposite winners: {sum(len(line['opposite']) for line in lines)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--seed", type=int, default=100, help="what tables are drawn from (default 100)")
    parser.add_argument("--sets", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME", help="only these")
    parser.add_argument("--out", default="verdicts.jsonl", help="file with a line per table; what it has is kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    path = Path(options.out)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {line["set"]: line for line in lines}
    for name in options.sets:
        if name not in known:
            known[name] = compare_verdicts(name, options.seed, options.jobs)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[name]) + "\n")
    print_lines([known[name] for name in options.sets])
