"""A table of the paper on images: runs of all methods, their figures in columns, ours beside theirs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...run import TrainConfig
from .image_settings import EXTRA_LOSSES, IMAGE_LOSSES, make_image_config
from .run_list import Record, read_record

RecordMetric = Callable[[Record], float]


def top1(record: Record) -> float:
    """Accuracy on the test images, each seen once."""
    return float(record["test"]["top1"])


def top5(record: Record) -> float:
    """How often the right class is among the first five."""
    return float(record["test"]["top5"])


def angle_metric(kind: str) -> RecordMetric:
    """One of Table VI's angles in radians."""
    return lambda record: float(record["angles"][kind])


@dataclass(frozen=True)
class ColumnSpec:
    """A column: what all its runs share, the figure that is read off each, and the paper's by its own method names."""

    title: str
    config_overrides: Mapping[str, Any]
    metric: RecordMetric
    paper_values: Mapping[str, float] = field(default_factory=dict)
    unit: str = "accuracy in percent"
    better_direction: str = "high"


def select_losses(options: argparse.Namespace) -> dict[str, str]:
    """The paper's methods; in CPU size two more."""
    return {**IMAGE_LOSSES, **EXTRA_LOSSES} if options.size == "cpu" else dict(IMAGE_LOSSES)


def column_configs(options: argparse.Namespace, column_spec: ColumnSpec, loss: str) -> list[TrainConfig]:
    """A method's runs of a column, one per seed."""
    from .image_options import seed_range

    printed = options.settings == "printed"
    return [
        make_image_config(options.size, loss=loss, seed=seed, as_printed=printed, **column_spec.config_overrides)
        for seed in seed_range(options)
    ]


def run_image_table(options: argparse.Namespace, recipe: str, title: str, column_specs: Sequence[ColumnSpec]) -> None:
    """Train what is missing, print, write the page."""
    from ...report import page
    from .beside import MetricColumn, print_columns, render_columns
    from .image_options import complete_image_runs

    methods = select_losses(options)
    # Seed by seed, so that a list that was stopped has compared all methods as often as it could.
    by_seed = zip(
        *(column_configs(options, column, loss) for column in column_specs for loss in methods.values()), strict=True
    )
    out = complete_image_runs((run for together in by_seed for run in together), options, recipe)
    columns = [
        MetricColumn(
            column.title,
            {
                loss: _column_values(column_configs(options, column, loss), Path(options.runs), column.metric)
                for loss in methods.values()
            },
            {IMAGE_LOSSES[method]: value for method, value in column.paper_values.items()},
            unit=column.unit,
            better_direction=column.better_direction,
        )
        for column in column_specs
    ]
    print_columns(title, list(methods.values()), columns)
    sub = f"{_describe_setting(options)}, mean and standard deviation over seeds; a dot is a seed, the bar their mean"
    command = f"widemargin reproduce {recipe} --size {options.size}"
    body = [render_columns(list(methods.values()), columns), page.heading("Again"), page.code(command)]
    path = out / "report.html"
    path.write_text(page.html_page(title, sub, body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")


def _column_values(configs: Sequence[TrainConfig], runs_dir: Path, metric: RecordMetric) -> list[float]:
    return [metric(record) for run in configs if (record := read_record(run, runs_dir)) is not None]


def _describe_setting(options: argparse.Namespace) -> str:
    if options.size == "cpu":
        return "The small fast network, made for two CPU cores (the paper: ResNet)"
    rate = "as printed" if options.settings == "printed" else "with Adam at 0.001"
    return f"The paper's settings (its Table III) {rate}"
