"""Ours beside the paper's, method by method: in the terminal, as a table of a page, and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...report import page
from ...report.dot_rows import draw_strip_plot
from ...report.palette import loss_colour


@dataclass(frozen=True)
class MetricColumn:
    """One figure of every method: what each seed reached, and what the paper prints."""

    title: str
    seed_values: Mapping[str, Sequence[float]]
    """Method → values of the seeds, as far as they are finished."""
    paper_values: Mapping[str, float] = field(default_factory=dict)
    digits: int = 2
    unit: str = "accuracy in percent"
    better_direction: str = "high"
    """Whether `high` or `low` values are good, or `none` is."""

    def mean(self, method: str) -> float | None:
        values = self.seed_values.get(method, ())
        return statistics.fmean(values) if values else None

    def format_mean(self, method: str) -> str:
        """Mean and, with several seeds, standard deviation."""
        values, mean = self.seed_values.get(method, ()), self.mean(method)
        if mean is None:
            return "–"
        spread = f" ± {statistics.stdev(values):.{self.digits}f}" if len(values) > 1 else ""
        return f"{mean:.{self.digits}f}{spread}"

    def format_paper_value(self, method: str) -> str:
        return f"{self.paper_values[method]:.{self.digits}f}" if method in self.paper_values else "–"

    def best_method(self, methods: Sequence[str]) -> str | None:
        """The method with the best mean."""
        means = {method: mean for method in methods if (mean := self.mean(method)) is not None}
        if not means or self.better_direction == "none":
            return None
        return (max if self.better_direction == "high" else min)(means, key=lambda method: means[method])


def print_columns(title: str, methods: Sequence[str], columns: Sequence[MetricColumn]) -> None:
    """A table: for every column ours, and the paper's where it has one."""
    from rich.table import Table
    from rich.text import Text

    from ...listing import console

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
    """The table and, for every column, a picture with a dot per seed."""
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
