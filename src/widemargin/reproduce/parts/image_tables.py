"""Tables of the paper on images: runs of all methods, one column per metric, ours next to the paper's.

Printed in the terminal, and written to a page as a table and one picture per column.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...training.config import TrainConfig
from ...viz import page
from ...viz.charts import draw_strip_plot
from ...viz.colours import loss_colour
from .runs import EXTRA_LOSSES, IMAGE_LOSSES, Record, make_image_config, read_record

RecordMetric = Callable[[Record], float]


def top1(record: Record) -> float:
    """Accuracy on the test images, without flips."""
    return float(record["test"]["top1"])


def top5(record: Record) -> float:
    """Top-5 accuracy in percent."""
    return float(record["test"]["top5"])


def angle_metric(kind: str) -> RecordMetric:
    """One of Table VI's angles in radians."""
    return lambda record: float(record["angles"][kind])


@dataclass(frozen=True)
class ColumnSpec:
    """A column: settings that its runs share, the metric of each record, and the paper's values by its method names."""

    title: str
    config_overrides: Mapping[str, Any]
    metric: RecordMetric
    paper_values: Mapping[str, float] = field(default_factory=dict)
    unit: str = "accuracy in percent"
    better_direction: str = "high"


def select_losses(options: argparse.Namespace) -> dict[str, str]:
    """Return the paper's methods; in CPU size two more."""
    return {**IMAGE_LOSSES, **EXTRA_LOSSES} if options.size == "cpu" else dict(IMAGE_LOSSES)


def column_configs(options: argparse.Namespace, column_spec: ColumnSpec, loss: str) -> list[TrainConfig]:
    """Return a method's runs of a column, one per seed."""
    from .runs import seed_range

    printed = options.settings == "printed"
    return [
        make_image_config(options.size, loss=loss, seed=seed, as_printed=printed, **column_spec.config_overrides)
        for seed in seed_range(options)
    ]


def run_image_table(options: argparse.Namespace, recipe: str, title: str, column_specs: Sequence[ColumnSpec]) -> None:
    """Train missing runs, print the table, write the page."""
    from ...viz import page
    from .runs import complete_image_runs

    methods = select_losses(options)
    # Seed by seed, so that an interrupted list has compared all methods equally often.
    by_seed = zip(
        *(column_configs(options, column, loss) for column in column_specs for loss in methods.values()), strict=True
    )
    out = complete_image_runs((config for together in by_seed for config in together), options, recipe)
    columns = [
        MetricColumn(
            column.title,
            {
                loss: _column_values(column_configs(options, column, loss), Path(options.runs_dir), column.metric)
                for loss in methods.values()
            },
            {IMAGE_LOSSES[method]: value for method, value in column.paper_values.items()},
            unit=column.unit,
            better_direction=column.better_direction,
        )
        for column in column_specs
    ]
    print_columns(title, list(methods.values()), columns)
    sub = f"{_describe_setting(options)}, mean and standard deviation over seeds; dots are seeds, bars their mean"
    command = f"widemargin reproduce {recipe} --size {options.size}"
    body = [render_columns(list(methods.values()), columns), page.heading("Again"), page.code(command)]
    path = out / "report.html"
    path.write_text(page.html_page(title, sub, body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")


def _column_values(configs: Sequence[TrainConfig], runs_dir: Path, metric: RecordMetric) -> list[float]:
    return [metric(record) for config in configs if (record := read_record(config, runs_dir)) is not None]


def _describe_setting(options: argparse.Namespace) -> str:
    if options.size == "cpu":
        return "The small fast network, made for two CPU cores (the paper: ResNet)"
    rate = "as printed" if options.settings == "printed" else "with Adam at 0.001"
    return f"The paper's settings (its Table III) {rate}"


@dataclass(frozen=True)
class MetricColumn:
    """One metric of every method: the values of the seeds, and the paper's."""

    title: str
    seed_values: Mapping[str, Sequence[float]]
    """Method → values of the finished seeds."""
    paper_values: Mapping[str, float] = field(default_factory=dict)
    digits: int = 2
    unit: str = "accuracy in percent"
    better_direction: str = "high"
    """Direction of better values: `high`, `low`, or `none`."""

    def mean(self, method: str) -> float | None:
        values = self.seed_values.get(method, ())
        return statistics.fmean(values) if values else None

    def format_mean(self, method: str) -> str:
        """Format the mean and, with several seeds, the standard deviation."""
        values, mean = self.seed_values.get(method, ()), self.mean(method)
        if mean is None:
            return "–"
        spread = f" ± {statistics.stdev(values):.{self.digits}f}" if len(values) > 1 else ""
        return f"{mean:.{self.digits}f}{spread}"

    def format_paper_value(self, method: str) -> str:
        return f"{self.paper_values[method]:.{self.digits}f}" if method in self.paper_values else "–"

    def best_method(self, methods: Sequence[str]) -> str | None:
        """Return the method with the best mean."""
        means = {method: mean for method in methods if (mean := self.mean(method)) is not None}
        if not means or self.better_direction == "none":
            return None
        return (max if self.better_direction == "high" else min)(means, key=lambda method: means[method])


def print_columns(title: str, methods: Sequence[str], columns: Sequence[MetricColumn]) -> None:
    """Print a table: for every column our values, and the paper's if it has any."""
    from rich.table import Table
    from rich.text import Text

    from ...viz.terminal import console

    grid = Table(title=title, title_justify="left", title_style="bold")
    grid.add_column("loss", no_wrap=True)
    for column in columns:
        grid.add_column(column.title, justify="right")
        if column.paper_values:
            grid.add_column("paper", justify="right", style="dim")
    for method in methods:
        cells: list[Text | str] = [method]
        for column in columns:
            cells.append(
                Text(column.format_mean(method), style="bold" if column.best_method(methods) == method else "")
            )
            if column.paper_values:
                cells.append(column.format_paper_value(method))
        grid.add_row(*cells)
    console(width=200).print(grid)


def render_columns(methods: Sequence[str], columns: Sequence[MetricColumn]) -> str:
    """Return the table and, for every column, a picture with a dot per seed."""
    head = ["loss"]
    for column in columns:
        head += [column.title, "paper"] if column.paper_values else [column.title]
    rows = []
    for method in methods:
        cells = [(method, "")]
        for column in columns:
            cells.append((column.format_mean(method), "best" if column.best_method(methods) == method else ""))
            if column.paper_values:
                cells.append((column.format_paper_value(method), ""))
        rows.append(cells)
    parts = [page.table(head, rows)]
    for column in columns:
        measured_methods = [method for method in methods if column.seed_values.get(method)]
        if measured_methods:
            picture = draw_strip_plot(
                measured_methods,
                [list(column.seed_values[method]) for method in measured_methods],
                [column.paper_values.get(method) for method in measured_methods],
                [loss_colour(method) for method in measured_methods],
                column.unit,
                column.title,
            )
            parts += [page.heading(column.title), page.figure(picture)]
    return "\n".join(parts)
