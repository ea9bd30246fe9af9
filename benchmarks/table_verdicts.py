"""Dependence of `compare`'s verdicts on tuning: three runs on tables of many shapes.

Default settings; tuned with T trials of every loss; tuned with 2 T. T is 500,000 / cells, rounded down to a power of
two, 2 to 32: it depends on the size of the table and not on time, so that runs can be repeated. 2 T is half to twice
the number of trials in the 300 seconds of `--tune`, as estimated once (`records/README.md`).

Two runs contradict each other on a pair of losses if both find a difference (corrected resampled t-test, Holm over all
pairs, 5 %) and the signs are opposite. All pairs of the three runs count.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.data.tabular.table import Table
from widemargin.io.errors import InputError
from widemargin.stats import corrected_t_test, holm
from widemargin.tabular.compare import compare
from widemargin.tabular.crossval import stratified_sample

from .table_shapes import REAL_SETS, SHAPES, draw_splits, take_rows

NAMES = (*SHAPES, *REAL_SETS)
PROTOCOL = 2
"""Lines of different protocols are not mixed."""
MAX_ROWS, MAX_CELLS = 6_500, 12_000_000
"""Larger tables are a stratified sample of this many rows, or fewer with many columns."""
CELL_TRIALS, MIN_TRIALS, MAX_TRIALS = 500_000, 2, 32
FOLDS = 5
MAX_REPEATED_COLUMNS, MAX_REPEATED_CLASSES = 1_000, 20
"""Tables with more columns or classes, which train longest, are split into folds once, others twice."""
ALPHA = 0.05

Folds = Mapping[str, Sequence[float]]
Pair = tuple[str, str]
Findings = Mapping[Pair, tuple[float, float]]
"""Difference in points and its adjusted p for every pair of methods."""


def draw_table(name: str, seed: int) -> Table:
    """Return the training rows of a generated table, or all rows of a real one; a sample of large ones."""
    split = draw_splits(name, seed)[0]
    rows = np.arange(len(split.table)) if name in REAL_SETS else split.training
    limit = min(MAX_ROWS, MAX_CELLS // len(split.table.columns))
    return take_rows(split.table, stratified_sample(rows, split.table.y, limit, [seed]))


def trial_count(num_rows: int, num_columns: int) -> int:
    """T, the trials of every loss in the shorter of the tuned runs.

    >>> trial_count(178, 13), trial_count(2_000, 20), trial_count(8_000, 20), trial_count(8_000, 100)
    (32, 8, 2, 2)
    """
    affordable = max(1, CELL_TRIALS // (num_rows * num_columns))
    return int(np.clip(1 << (affordable.bit_length() - 1), MIN_TRIALS, MAX_TRIALS))


def run_losses(table: Table, trials: int, seed: int, jobs: int) -> dict[str, Any]:
    """One run of `compare`, tuned with `trials` trials (0: not tuned): the accuracies of every loss on every fold."""
    many = len(table.columns) > MAX_REPEATED_COLUMNS or len(table.class_names) > MAX_REPEATED_CLASSES
    split: dict[str, Any] = {"cv_repeats": 1 if many else 2, "folds": FOLDS}
    start = time.perf_counter()
    comparison = compare(
        table,
        baselines=False,
        metric="accuracy",
        calibrate=False,
        tune_trials=trials or None,
        seed=seed,
        jobs=jobs,
        quiet=True,
        **split,
    )
    results = comparison.sets[0].results
    return {
        **split,
        "trials": trials,
        "seconds": round(time.perf_counter() - start, 1),
        "accuracies": {result.loss: [round(value, 4) for value in result.folds] for result in results},
        "train": {result.loss: round(float(np.mean(result.train)), 2) for result in results},
    }


def differences(accuracies: Folds) -> Findings:
    """Return the difference and adjusted p of every pair of losses from the folds of one run.

    >>> differences({"a": [9.0, 8.0, 9.1, 8.2, 9.9], "b": [5.0, 4.0, 5.0, 4.0, 6.0]})["a", "b"][1] < 0.05
    True
    """
    pairs = list(combinations(accuracies, 2))
    tests = [corrected_t_test(accuracies[a], accuracies[b], 1.0 / FOLDS) for a, b in pairs]
    adjusted = holm([test.p for test in tests]).tolist()
    return {pair: (test.difference, p) for pair, test, p in zip(pairs, tests, adjusted, strict=True)}


def compare_findings(findings: Sequence[Findings]) -> dict[str, Any]:
    """Summarise the agreements and contradictions of several runs on every pair of methods.

    Returns `pairs`, their number; `significant`, how many differ significantly in each run; `confirmed`, how many in at
    least two runs; `opposite`, on which two runs contradict each other; and `reversed`, which are significant in one
    run while another has the opposite sign, significant or not.
    """
    opposite, reversed_pairs, confirmed = [], [], 0
    for pair in findings[0]:
        values = [one[pair] for one in findings]
        confirmed += sum(p < ALPHA for _, p in values) >= 2
        turned = [(a, b) for a, b in combinations(values, 2) if a[0] * b[0] < 0]
        if any(a[1] < ALPHA and b[1] < ALPHA for a, b in turned):
            opposite.append(list(pair))
        if any(a[1] < ALPHA or b[1] < ALPHA for a, b in turned):
            reversed_pairs.append(list(pair))
    return {
        "pairs": len(findings[0]),
        "significant": [sum(p < ALPHA for _, p in one.values()) for one in findings],
        "confirmed": confirmed,
        "opposite": opposite,
        "reversed": reversed_pairs,
    }


def summarise(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for every table with at least two runs, in the order of `NAMES`."""
    by_set: dict[str, list[Mapping[str, Any]]] = {}
    for line in sorted(lines, key=lambda line: (NAMES.index(line["set"]), line["trials"])):
        by_set.setdefault(line["set"], []).append(line)
    return [
        {
            **{name: runs[0][name] for name in ("set", "rows", "columns", "classes")},
            "trials": [run["trials"] for run in runs],
            **compare_findings([differences(run["accuracies"]) for run in runs]),
            "best": [max(float(np.mean(folds)) for folds in run["accuracies"].values()) for run in runs],
        }
        for runs in by_set.values()
        if len(runs) > 1
    ]


def print_summary(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a row per table, and the number of contradictions."""
    from rich.table import Table as Grid

    from widemargin.viz.terminal import console

    grid = Grid(title="Pairs of losses that differ significantly, by run", title_justify="left")
    names = ("table", "rows", "columns", "classes", "trials", "pairs", "significant", "in two", "opposite", "best mean")
    for name in names:
        grid.add_column(name, justify="left" if name == "table" else "right", overflow="fold")
    for row in rows:
        trials, significant = (", ".join(map(str, row[name])) for name in ("trials", "significant"))
        shown_values = (trials, row["pairs"], significant, row["confirmed"], len(row["opposite"]))
        shown = (row["set"], row["rows"], row["columns"], row["classes"], *shown_values)
        grid.add_row(*map(str, shown), ", ".join(f"{best:.2f}" for best in row["best"]))
    console(width=130).print(grid)
    pairs, confirmed = (sum(row[name] for row in rows) for name in ("pairs", "confirmed"))
    opposite, turned = (sum(len(row[name]) for row in rows) for name in ("opposite", "reversed"))
    print(f"tables: {len(rows)}; pairs of losses: {pairs}; significant in two runs or more: {confirmed}")
    print(f"with opposite winners, both significant: {opposite}; with one of the two significant: {turned - opposite}")


def read_lines(path: Path, seed: int) -> list[dict[str, Any]]:
    """Read the lines of a file to be continued; another protocol or seed is an `InputError`."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for place, line in enumerate(lines, 1):
        stored = line.get("protocol"), line.get("seed")
        if stored != (PROTOCOL, seed):
            raise InputError(
                f"{path}, line {place}: protocol {stored[0]} and seed {stored[1]}, now {PROTOCOL} and {seed}; "
                "give --out another file"
            )
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--seed", type=int, default=100, help="seed of the tables (default 100)")
    parser.add_argument("--sets", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME", help="tables")
    parser.add_argument("--out", default="verdicts.jsonl", help="file with a line per run; existing lines are kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    path = Path(options.out)
    lines = read_lines(path, options.seed)
    existing = {(line["set"], line["trials"]) for line in lines}
    for factor in (0, 2, 1):  # the runs that differ most first
        for name in options.sets:
            table = draw_table(name, options.seed)
            size = {"rows": len(table), "columns": len(table.columns), "classes": len(table.class_names)}
            trials = factor * trial_count(size["rows"], size["columns"])
            if (name, trials) in existing:
                continue
            line = {"protocol": PROTOCOL, "set": name, "seed": options.seed, **size}
            line |= run_losses(table, trials, options.seed, options.jobs)
            lines.append(line)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{name}, {trials} trials: {line['seconds']:.0f} s", flush=True)
    print_summary(summarise([line for line in lines if line["set"] in options.sets]))
