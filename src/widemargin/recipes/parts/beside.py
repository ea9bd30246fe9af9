"""Ours beside the paper's, method by method: in the terminal, as a table of a page, and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...report import page
from ...report.dot_rows import dot_rows
from ...report.palette import colour


@dataclass(frozen=True)
class Column:
    """One figure of every method: what each seed reached, and what the paper prints."""

    title: str
    ours: Mapping[str, Sequence[float]]
    """Method → values of the seeds, as far as they are finished."""
    theirs: Mapping[str, float] = field(default_factory=dict)
    digits: int = 2
    unit: str = "accuracy in percent"
    best: str = "high"
    """Whether `high` or `low` values are good, or `none` is."""

    def mean(self, method: str) -> float | None:
        values = self.ours.get(method, ())
        return statistics.fmean(values) if values else None

    def shown(self, method: str) -> str:
        """Mean and, with several seeds, standard deviation."""
        values, mean = self.ours.get(method, ()), self.mean(method)
        if mean is None:
            return "–"
        spread = f" ± {statistics.stdev(values):.{self.digits}f}" if len(values) > 1 else ""
        return f"{mean:.{self.digits}f}{spread}"

    def paper(self, method: str) -> str:
        return f"{self.theirs[method]:.{self.digits}f}" if method in self.theirs else "–"

    def winner(self, methods: Sequence[str]) -> str | None:
        """The method with the best mean."""
        means = {method: mean for method in methods if (mean := self.mean(method)) is not None}
        if not means or self.best == "none":
            return None
        return (max if self.best == "high" else min)(means, key=lambda method: means[method])


def print_columns(title: str, methods: Sequence[str], columns: Sequence[Column]) -> None:
    """A table: for every column ours, and the paper's where it has one."""
    from rich.table import Table
    from rich.text import Text

    from ...listing import console

    grid = Table(title=title, title_justify="left", title_style="bold")
    grid.add_column("loss", no_wrap=True)
    for column in columns:
        grid.add_column(column.title, justify="right")
        if column.theirs:
            grid.add_column("paper", justify="right", style="dim")
    for method in methods:
        cells: list[Text | str] = [method]
        for column in columns:
            cells.append(Text(column.shown(method), style="bold" if column.winner(methods) == method else ""))
            if column.theirs:
                cells.append(column.paper(method))
        grid.add_row(*cells)
    console(width=200).print(grid)


def section(methods: Sequence[str], columns: Sequence[Column]) -> str:
    """The table and, for every column, a picture with a dot per seed."""
    head = ["loss"]
    for column in columns:
        head += [column.title, "paper"] if column.theirs else [column.title]
    rows = []
    for method in methods:
        cells = [(method, "")]
        for column in columns:
            cells.append((column.shown(method), "best" if column.winner(methods) == method else ""))
            if column.theirs:
                cells.append((column.paper(method), ""))
        rows.append(cells)
    parts = [page.table(head, rows)]
    for column in columns:
        there = [method for method in methods if column.ours.get(method)]
        if there:
            picture = dot_rows(
                there,
                [list(column.ours[method]) for method in there],
                [column.theirs.get(method) for method in there],
                [colour(method) for method in there],
                column.unit,
                column.title,
            )
            parts += [page.heading(column.title), page.figure(picture)]
    return "\n".join(parts)
