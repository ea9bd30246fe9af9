"""Figure 4: how the angles between samples and the weight of their own class are spread, epoch after epoch.

Cost: none beyond Table IV's runs with augmentation (seed 0), which it shares. Expected: the paper sees ArcGrad's angles
fall faster and end lower than softmax's.
"""

from __future__ import annotations

import argparse

COMPARED = ("soft", "arcface", "adacos", "arcgrad")


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import image_options

    image_options.add(parser, seeds=(1, 1))


def run(options: argparse.Namespace) -> None:
    """Train what is missing, print the median angles, draw the ridges."""
    from pathlib import Path

    from ..report import page
    from ..report.palette import colour
    from ..report.ridges import quantile, ridges
    from ..training.log import Log
    from .parts.image_options import carried_out
    from .parts.image_settings import METHODS
    from .parts.image_table import Wanted, runs_of, top1
    from .parts.run_list import folder_of

    column = Wanted("", {"data": "cifar10", "augment": "paper"}, top1)
    runs = {METHODS[method]: runs_of(options, column, METHODS[method])[0] for method in COMPARED}
    out = carried_out(runs.values(), options, "figure4")
    parts, rows = [], []
    for loss, run in runs.items():
        lines = Log.lines(folder_of(run, Path(options.runs)) / "metrics.jsonl")
        if not lines:
            continue
        counts = [line["histogram"]["own"] for line in lines]
        first, last = (quantile(found, 0.5) for found in (counts[0], counts[-1]))
        rows.append((loss, first, last, quantile(counts[-1], 0.9)))
        names = [str(line["epoch"]) for line in lines]
        parts += [page.heading(loss), page.figure(ridges(names, counts, colour(loss), f"Angles of {loss} by epoch"))]
    _print(rows)
    path = out / "report.html"
    head = ("loss", "median, first epoch", "median, last epoch", "nine tenths below, last epoch")
    cells = [[(loss, ""), *((f"{value:.1f}°", "") for value in values)] for loss, *values in rows]
    body = [page.table(head, cells), *parts, page.code(f"widemargin reproduce figure4 --size {options.size}")]
    title = "Figure 4 of the ArcGrad paper, made again"
    sub = "Angles of training images to the weight of their own class, epoch by epoch from top to bottom"
    path.write_text(page.page(title, sub, body), encoding="utf-8")
    print(f"wrote {path}")


def _print(rows: list[tuple[str, float, float, float]]) -> None:
    from rich.table import Table

    from ..listing import console

    grid = Table(title="Figure 4: angles to the own class in degrees", title_justify="left", title_style="bold")
    for name in ("loss", "median, first epoch", "median, last epoch", "nine tenths below, last epoch"):
        grid.add_column(name, justify="left" if name == "loss" else "right")
    for loss, *values in rows:
        grid.add_row(loss, *(f"{value:.1f}" for value in values))
    console().print(grid)
