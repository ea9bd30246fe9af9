"""Dependence of the order of softmax and ArcGrad on the settings: MNIST as a table, and 5,000 columns of 300 rows.

Four settings: the rule of `MLPConfig.for_table`; the same network with batches of 256 and common settings of AdamW; the
settings of Table I, the default for all sizes before the rule; these with batches of 256. All are trained on the same
rows and predict the same test rows, so that two losses differ by the rows that only one of them gets right (McNemar's
exact test, Holm over the pairs of a setting). The test covers the rows of one training each, not the variation between
trainings with other seeds.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.data.images.sets import load_images
from widemargin.data.tabular.table import Column, Table
from widemargin.stats import holm
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.estimator import MarginClassifier

from .table_shapes import SHAPES, TableShape, TableSplit, draw_shape
from .table_verdicts import ALPHA, Findings, compare_findings
from .tables import BASELINE_SECONDS, evaluate_baseline

MNIST, WIDEST = "mnist", "widest"
WIDEST_SHAPE = TableShape(300, 5_000, 2, SHAPES["wide_tiny"].draw, informative=20, separation=2.0)
"""As `wide_tiny` of `table_shapes`, with more columns."""
BASELINES = {MNIST: (), WIDEST: ("majority", "logistic_regression", "random_forest")}
LOSSES = ("softmax", "arcgrad(s=30)", "arcgrad(s=5)")
BATCH = 256
RULE = "rule"


def settings() -> dict[str, dict[str, Any]]:
    """Parameters of `MarginClassifier` by the name of the setting; the others follow the rule."""
    unknown = ("label_smoothing", "val_fraction", "patience")
    table1 = {name: value for name, value in asdict(MLPConfig()).items() if name not in unknown}
    common = {"lr": 0.001, "weight_decay": 0.01, "dropout": 0.0, "epochs": 20.0, "screening": 0.0, "max_components": 0}
    return {
        RULE: {},
        f"batch {BATCH}": {"batch": BATCH, **common},
        "Table I": {**table1, "early_stopping": False},
        f"Table I, batch {BATCH}": {**table1, "early_stopping": False, "batch": BATCH},
    }


def load_split(name: str, seed: int) -> TableSplit:
    """Load MNIST with its own test part, for any seed, or draw a wide table from the seed."""
    if name == WIDEST:
        return draw_shape(WIDEST, WIDEST_SHAPE, len(SHAPES), seed)
    images = load_images(MNIST)
    pixels = np.concatenate([part.x.flatten(1).numpy() for part in (images.train, images.test)]).astype(np.float64)
    y = np.concatenate([part.y.numpy() for part in (images.train, images.test)])
    columns = tuple(Column(f"pixel {place}", pixels[:, place].copy()) for place in range(pixels.shape[1]))
    rows = np.arange(len(y))
    return TableSplit(
        Table(MNIST, columns, y, images.class_names), rows[: len(images.train)], rows[len(images.train) :]
    )


def measure(split: TableSplit, parameters: Mapping[str, Any], losses: Sequence[str], seed: int) -> dict[str, Any]:
    """Accuracies of the losses with one setting, and for every pair the test rows that only one of them gets right."""
    x, y = split.features(), split.table.y
    is_right, results = {}, {}
    config: dict[str, Any] = {}
    for loss in losses:
        start = time.perf_counter()
        model = MarginClassifier(loss, random_state=seed, **parameters).fit(x[split.training], y[split.training])
        is_right[loss] = model.predict(x[split.test]) == y[split.test]
        sample = split.training[:: max(1, len(split.training) // 10_000)]
        results[loss] = {
            "accuracy": 100.0 * float(is_right[loss].mean()),
            "train": 100.0 * float(model.score(x[sample], y[sample])),
            "seconds": round(time.perf_counter() - start, 1),
        }
        config = asdict(model.config_)
    pairs = [[a, b, *_only_right(is_right[a], is_right[b])] for a, b in combinations(losses, 2)]
    return {"config": config, "test_rows": len(split.test), "losses": results, "only_right": pairs}


def _only_right(a: Any, b: Any) -> tuple[int, int]:
    return int((a & ~b).sum()), int((b & ~a).sum())


def findings(line: Mapping[str, Any]) -> Findings:
    """Return the difference in points and its adjusted p for every pair of losses.

    >>> line = {"test_rows": 1000, "only_right": [["a", "b", 30, 10]]}
    >>> [round(value, 4) for value in findings(line)["a", "b"]]
    [2.0, 0.0022]
    """
    from scipy.stats import binomtest

    counts = line["only_right"]
    adjusted = holm([binomtest(a, a + b).pvalue if a + b else 1.0 for _, _, a, b in counts]).tolist()
    return {
        (first, second): (100.0 * (a - b) / line["test_rows"], p)
        for (first, second, a, b), p in zip(counts, adjusted, strict=True)
    }


def print_lines(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print a row per setting, and for every table and seed the contradictions between settings."""
    from rich.table import Table as Grid

    from widemargin.viz.terminal import console

    grid = Grid(title="Test accuracy in percent (training rows in brackets)", title_justify="left")
    losses = list(lines[0]["losses"])
    for column in ("table", "seed", "setting", *losses, "significant"):
        grid.add_column(column, justify="left" if column in ("table", "setting", "significant") else "right")
    by_table: dict[tuple[str, int], dict[str, Findings]] = {}
    for line in lines:
        differences = findings(line)
        by_table.setdefault((line["set"], line["seed"]), {})[line["setting"]] = differences
        significant = [(a, b) if points > 0 else (b, a) for (a, b), (points, p) in differences.items() if p < ALPHA]
        cells = [f"{one['accuracy']:.2f} ({one['train']:.2f})" for one in line["losses"].values()]
        words = ", ".join(f"{better} > {worse}" for better, worse in significant) or "none"
        grid.add_row(line["set"], str(line["seed"]), line["setting"], *cells, words)
    console(width=150).print(grid)
    for line in lines:
        if line["setting"] == RULE and line["baselines"]:
            text = ", ".join(f"{name} {accuracy:.2f}" for name, accuracy in line["baselines"].items())
            print(f"{line['set']}, seed {line['seed']}, baselines: {text}")
    for (name, seed), by_setting in by_table.items():
        print(f"{name}, seed {seed}: opposite winners, both significant: {_contradictions(by_setting)}")


def _contradictions(by_setting: Mapping[str, Findings]) -> str:
    """Describe the pairs of losses on which two settings contradict each other."""
    pairs = [
        f"{' and '.join(pair)} ({first} against {second})"
        for first, second in combinations(by_setting, 2)
        for pair in compare_findings([by_setting[first], by_setting[second]])["opposite"]
    ]
    return "; ".join(pairs) or "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--sets", nargs="+", default=[MNIST, WIDEST], choices=(MNIST, WIDEST), help="tables")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100], help="seeds of trainings and of the wide table")
    parser.add_argument("--out", default="settings.jsonl", help="file with a line per setting; existing lines are kept")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    path = Path(options.out)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    existing = {(line["set"], line["seed"], line["setting"]): line for line in lines}
    tasks = [(name, seed, setting) for name in options.sets for seed in options.seeds for setting in settings()]
    split, loaded = None, None
    for name, seed, setting in tasks:
        if (name, seed, setting) in existing:
            continue
        if split is None or loaded != (name, seed):
            split, loaded = load_split(name, seed), (name, seed)
        line = {"set": name, "seed": seed, "setting": setting, **measure(split, settings()[setting], LOSSES, seed)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            line["baselines"] = {
                method: evaluate_baseline([split], method, seed, BASELINE_SECONDS)["accuracy"]
                for method in (BASELINES[name] if setting == RULE else ())
            }
        existing[name, seed, setting] = line
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    print_lines([existing[work] for work in tasks])
