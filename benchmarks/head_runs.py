"""`python -m benchmarks head_runs`: time of heads over the limit, as median and range of separate processes.

One process of `python -m benchmarks head` says how heads compare within it. Memory layout and the state of the machine
differ from process to process, by up to 0.1 of the limit for the same code. So each shape is measured in several
processes, and the median of their ratios is compared with the goal. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

from widemargin.io.errors import InputError
from widemargin.io.progress import progress_bar
from widemargin.viz.terminal import console

from .head_timing import checkout_environment, time_over_limit

USUAL_LOSSES = ("arcface", "cosface", "adacos")
# One or two losses for each way in which later losses depart from the base case.
LATER_LOSSES = ("adaface", "magface", "curricularface", "mv_softmax", "subcenter_arcface", "sphereface2", "uniface")


class Goal(NamedTuple):
    """Largest ratio wanted of the usual losses, of ArcGrad and of the later losses; None: not stated."""

    usual: float
    arcgrad: float
    later: float | None


OVER_LIMIT = {
    (256, 512, 10_000): Goal(1.08, 1.12, 1.20),
    (256, 512, 100_000): Goal(1.06, 1.12, 1.20),
    (128, 512, 10**6): Goal(1.08, 1.12, 1.20),
    (256, 128, 1000): Goal(1.7, 1.9, 2.2),
}
SMALL_SHAPE = (256, 512, 10)  # compared with the eager head and with pytorch-metric-learning
OVER_EAGER, OVER_PEER = 0.9, 0.6
PEERS = {"arcface": "ArcFaceLoss", "cosface": "CosFaceLoss"}
LEFT_OUT = {(128, 512, 10**6): ("subcenter_arcface",)}  # weights, gradient and limit together take 30 GB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="processes per shape (default 5)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each process (default 5)")
    parser.add_argument(
        "--shapes", nargs="+", metavar="N,D,C", help="some of the shapes: 256,512,10 256,128,1000 256,512,10000 …"
    )
    parser.add_argument("--no-later", action="store_true", help="leave out the later losses")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file, shape by shape")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure, print, write; shapes that the file holds already are kept."""
    known = {",".join(map(str, shape)): shape for shape in (SMALL_SHAPE, *OVER_LIMIT)}
    for name in options.shapes or ():
        if name not in known:
            raise InputError(f"--shapes {name}: the goals are for {', '.join(known)}")
    path = None if options.json is None else Path(options.json)
    rows: list[dict[str, Any]] = (
        json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else []
    )
    for name in options.shapes or known:
        shape = known[name]
        rows = [row for row in rows if row["shape"] != list(shape)]
        rows += measure_shape(shape, options.runs, options.rounds, with_later=not options.no_later)
        if path is not None:
            path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print_rows(rows)


def measure_shape(
    shape: tuple[int, int, int], runs: int, rounds: int, *, with_later: bool = True
) -> list[dict[str, Any]]:
    """Return a row per loss with its ratios in every run."""
    losses = [*USUAL_LOSSES, "arcgrad"]
    if with_later and shape != SMALL_SHAPE:
        losses += [loss for loss in LATER_LOSSES if loss not in LEFT_OUT.get(shape, ())]
    ratios: dict[tuple[str, str], list[float]] = {}
    with progress_bar(f"heads {shape}", runs) as on_progress:
        for _ in range(runs):
            row = _run_benchmark(shape, losses, rounds)
            for loss in losses:
                for reference, ratio in _ratios(row, loss):
                    ratios.setdefault((loss, reference), []).append(round(ratio, 4))
            on_progress(1.0)
    return [
        {"shape": list(shape), "threads": row["threads"], "loss": loss, "over": reference, "runs": values}
        for (loss, reference), values in ratios.items()
    ]


def _run_benchmark(shape: tuple[int, int, int], losses: Sequence[str], rounds: int) -> dict[str, Any]:
    """Run `python -m benchmarks head` in a process of its own and return its row."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "head.json")
        words = ["--shapes", ",".join(map(str, shape)), "--losses", *losses, "--rounds", str(rounds)]
        words += ["--no-memory", "--no-errors", "--no-kept-gradient", "--json", str(file)]
        if shape != SMALL_SHAPE:
            words.append("--no-peers")
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks", "head", *words],
            env=checkout_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            raise InputError(f"{shape} could not be measured: {process.stderr.strip().splitlines()[-1:]}")
        row: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["heads"][0]
        return row


def _ratios(row: dict[str, Any], loss: str) -> Iterator[tuple[str, float]]:
    """Yield what the time of a loss is divided by, and the ratio."""
    own = f"{loss}, auto"
    if tuple(row["shape"]) != SMALL_SHAPE:
        yield "limit", time_over_limit(row, own)
        return
    seconds = row["seconds"]
    yield "eager head", seconds[own] / seconds[f"{loss}, eager"]
    if loss in PEERS:
        yield "pytorch-metric-learning", seconds[own] / seconds[PEERS[loss]]


def goal_of(row: dict[str, Any]) -> float | None:
    """Return the largest ratio wanted of a row."""
    if row["over"] == "eager head":
        return OVER_EAGER
    if row["over"] == "pytorch-metric-learning":
        return OVER_PEER
    goal = OVER_LIMIT[tuple(row["shape"])]
    if row["loss"] == "arcgrad":
        return goal.arcgrad
    return goal.usual if row["loss"] in USUAL_LOSSES else goal.later


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print median and range of the runs beside the goals."""
    for shape in dict.fromkeys(tuple(row["shape"]) for row in rows):
        mine = [row for row in rows if tuple(row["shape"]) == shape]
        title = "{} samples, {} dimensions, {:,} classes; {} threads, {} processes".format(
            *shape, mine[0]["threads"], len(mine[0]["runs"])
        )
        grid = Table(title=title, title_justify="left", title_style="bold")
        for name in ("loss", "time over", "median (range)", "goal", ""):
            grid.add_column(name, justify="right" if name in ("median (range)", "goal") else "left")
        for row in mine:
            middle, goal = median(row["runs"]), goal_of(row)
            reached = "" if goal is None else "reached" if middle <= goal else "not reached"
            figures = f"{middle:.2f} ({min(row['runs']):.2f} – {max(row['runs']):.2f})"
            grid.add_row(row["loss"], row["over"], figures, "–" if goal is None else f"{goal:.2f}", reached)
        console().print(grid)
