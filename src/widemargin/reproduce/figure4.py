"""Figure 4: distribution of the angles between samples and the weight of their class, by epoch.

Cost: none beyond Table IV's runs with augmentation (seed 0), which it shares. Expected: in the paper ArcGrad's angles
decrease faster and end lower than softmax's.
"""

from __future__ import annotations

import argparse

FIGURE4_METHODS = ("soft", "arcface", "adacos", "arcgrad")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    runs.add_image_arguments(parser, seeds=(1, 1))


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print the median angles, draw the ridgelines."""
    from pathlib import Path

    from ..training.logging import MetricsLog
    from ..viz import page
    from ..viz.colours import loss_colour
    from ..viz.matrices import draw_ridgeline, histogram_quantile
    from .parts.image_tables import ColumnSpec, column_configs, top1
    from .parts.runs import IMAGE_LOSSES, complete_image_runs, run_folder

    column = ColumnSpec("", {"data": "cifar10", "augment": "paper"}, top1)
    configs = {
        IMAGE_LOSSES[method]: column_configs(options, column, IMAGE_LOSSES[method])[0] for method in FIGURE4_METHODS
    }
    out = complete_image_runs(configs.values(), options, "figure4")
    parts, rows = [], []
    for loss, config in configs.items():
        lines = MetricsLog.read_epochs(run_folder(config, Path(options.runs_dir)) / "metrics.jsonl")
        if not lines:
            continue
        counts = [line["histogram"]["target"] for line in lines]
        first, last = (histogram_quantile(epoch, 0.5) for epoch in (counts[0], counts[-1]))
        rows.append((loss, first, last, histogram_quantile(counts[-1], 0.9)))
        names = [str(line["epoch"]) for line in lines]
        parts += [
            page.heading(loss),
            page.figure(draw_ridgeline(names, counts, loss_colour(loss), f"Angles of {loss} by epoch")),
        ]
    _print_angles(rows)
    path = out / "report.html"
    head = ("loss", "median, first epoch", "median, last epoch", "90th percentile, last epoch")
    cells = [[(loss, ""), *((f"{value:.1f}°", "") for value in values)] for loss, *values in rows]
    body = [page.table(head, cells), *parts, page.code(f"widemargin reproduce figure4 --size {options.size}")]
    title = "Figure 4 of the ArcGrad paper, reproduced"
    sub = "Angles of training images to the weight of their own class, epoch by epoch from top to bottom"
    path.write_text(page.html_page(title, sub, body), encoding="utf-8")
    print(f"wrote {path}")


def _print_angles(rows: list[tuple[str, float, float, float]]) -> None:
    from rich.table import Table

    from ..viz.terminal import console

    grid = Table(title="Figure 4: angles to the own class in degrees", title_justify="left", title_style="bold")
    for name in ("loss", "median, first epoch", "median, last epoch", "90th percentile, last epoch"):
        grid.add_column(name, justify="left" if name == "loss" else "right")
    for loss, *values in rows:
        grid.add_row(loss, *(f"{value:.1f}" for value in values))
    console().print(grid)
