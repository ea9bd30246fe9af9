"""Figure 4: distribution of the angles between samples and the weight of their class, by epoch.

Cost: none beyond Table IV's runs with augmentation (seed 0), which it shares. Expected: in the paper ArcGrad's angles
decrease faster and end lower than softmax's.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..training.config import TrainConfig

FIGURE4_METHODS = ("soft", "arcface", "adacos", "arcgrad")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    runs.add_image_arguments(parser, seeds=(1, 1))


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print the median angles, draw the ridgelines."""
    from ..viz import page
    from .parts.image_tables import ColumnSpec, column_configs, top1
    from .parts.runs import IMAGE_LOSSES, complete_image_runs

    column = ColumnSpec("", {"data": "cifar10", "augment": "paper"}, top1)
    configs = {
        IMAGE_LOSSES[method]: column_configs(options, column, IMAGE_LOSSES[method])[0] for method in FIGURE4_METHODS
    }
    out = complete_image_runs(configs.values(), options, "figure4")
    body = [
        *describe_target_angles(configs, Path(options.runs_dir)),
        page.code(f"widemargin reproduce figure4 --size {options.size}"),
    ]
    path = out / "report.html"
    title = "Figure 4 of the ArcGrad paper, reproduced"
    sub = "Angles of training images to the weight of their own class, epoch by epoch from top to bottom"
    path.write_text(page.html_page(title, sub, body), encoding="utf-8")
    print(f"wrote {path}")


def describe_target_angles(configs: Mapping[str, TrainConfig], runs_dir: Path) -> list[str]:
    """Print quantiles of the angles of one run per loss; return them as a table, and a ridgeline of every run that has
    a log."""
    from ..training.logging import MetricsLog
    from ..viz import page
    from ..viz.colours import loss_colour
    from ..viz.matrices import draw_ridgeline
    from .parts.runs import read_record, read_target_angles, run_folder

    parts, rows = [], []
    for loss, config in configs.items():
        folder = run_folder(config, runs_dir)
        record = read_record(config, runs_dir) or {}
        if (angles := read_target_angles(folder) or record.get("target_angles")) is None:
            continue
        rows.append((loss, angles[0][1], angles[-1][1], angles[-1][2]))
        if (folder / "metrics.jsonl").exists():
            lines = MetricsLog.read_epochs(folder / "metrics.jsonl")
            counts, names = [line["histogram"]["target"] for line in lines], [str(line["epoch"]) for line in lines]
            picture = draw_ridgeline(names, counts, loss_colour(loss), f"Angles of {loss} by epoch")
            parts += [page.heading(loss), page.figure(picture)]
    _print_angles(rows)
    head = ("loss", "median, first epoch", "median, last epoch", "90th percentile, last epoch")
    cells = [[(loss, ""), *((f"{value:.1f}°", "") for value in values)] for loss, *values in rows]
    return [page.table(head, cells), *parts] if rows else []


def _print_angles(rows: list[tuple[str, float, float, float]]) -> None:
    """Print the angles of every loss in degrees."""
    from rich.table import Table

    from ..viz.terminal import console

    grid = Table(title="Figure 4: angles to the own class in degrees", title_justify="left", title_style="bold")
    for name in ("loss", "median, first epoch", "median, last epoch", "90th percentile, last epoch"):
        grid.add_column(name, justify="left" if name == "loss" else "right")
    for loss, *values in rows:
        grid.add_row(loss, *(f"{value:.1f}" for value in values))
    console().print(grid)
