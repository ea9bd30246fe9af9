"""One large table: our network against scikit-learn's MLPClassifier with the same hidden sizes, early stopping in both.

The table is "large" of `table_shapes` (100,000 × 50, 10 classes), with 20,000 test rows. Both are trained one after the
other, with the same number of threads.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import torch

from .table_shapes import draw_splits


def measure(seed: int, losses: Sequence[str], threads: int) -> list[dict[str, Any]]:
    """Seconds and test accuracy of each loss and of MLPClassifier."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    from widemargin.tabular.estimator import MarginClassifier

    split = draw_splits("large", seed)[0]
    x, y = split.features(), split.table.y
    torch.set_num_threads(threads)
    lines: list[dict[str, Any]] = []
    hidden: tuple[int, ...] = ()
    with threadpool_limits(threads):
        for loss in losses:
            model = MarginClassifier(loss, early_stopping=True, random_state=seed)
            lines.append(_time_fit(f"MarginClassifier({loss!r})", model, x, y, split.training, split.test))
            hidden = model.config_.hidden
        peer = make_pipeline(StandardScaler(), MLPClassifier(hidden, early_stopping=True, random_state=seed))
        lines.append(_time_fit(f"MLPClassifier({hidden})", peer, x, y, split.training, split.test))
    return [{"seed": seed, "threads": threads, "hidden": list(hidden), **line} for line in lines]


def _time_fit(name: str, model: Any, x: Any, y: Any, training: Any, test: Any) -> dict[str, Any]:
    start = time.perf_counter()
    model.fit(x[training], y[training])
    seconds = time.perf_counter() - start
    return {"method": name, "seconds": seconds, "accuracy": 100.0 * model.score(x[test], y[test])}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102], help="seeds of the tables")
    parser.add_argument("--losses", nargs="+", default=["softmax", "arcgrad(s=30)"], help="ours")
    parser.add_argument("--threads", type=int, default=2, help="threads of both (default 2)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    lines: list[dict[str, Any]] = []
    for seed in options.seeds:
        measured = measure(seed, options.losses, options.threads)
        peer = measured[-1]
        for line in measured:
            print(
                f"seed {seed}  {line['method']:40} {line['seconds']:7.1f} s  {line['accuracy']:6.2f} %  "
                f"{peer['seconds'] / line['seconds']:5.1f} times as fast as MLPClassifier"
            )
        lines += measured
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(lines, file, indent=1)
