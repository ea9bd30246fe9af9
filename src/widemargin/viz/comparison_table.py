"""A comparison as a table in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table as Grid
from rich.text import Text

from .comparison_page import baseline_notes, format_interval, format_train_accuracy, format_train_accuracy_range
from .terminal import console, plain_text

if TYPE_CHECKING:
    from ..tabular.comparison import Comparison, CrossDatasetComparison, DatasetComparison
    from ..tabular.results import Result

NOT_WORSE_MARK = "≈"
BEST_MARK = "*"
"""In addition to bold type, which a file does not keep."""
MARKS_LEGEND = f"{BEST_MARK}: best; {NOT_WORSE_MARK}: not significantly worse (corrected resampled t-test, Holm, 5 %)"
FOLDS_WON_NOTE = "; a fold is won by everybody whom no other beats in it"
TRAIN_ACCURACY_NOTE = (
    "train: accuracy on the rows that were learnt from (on {rows:,} of each fold where there are more)"
)


def print_comparison(comparison: Comparison) -> None:
    """Print one set with a row per method, or several with a row per set and a summary."""
    if len(comparison.sets) == 1:
        _print_one_dataset(comparison.sets[0])
    else:
        _print_datasets(comparison)
    out = console()
    if any(one.has_statement for one in comparison.sets):
        out.print(f"[dim]{MARKS_LEGEND}{FOLDS_WON_NOTE if len(comparison.sets) == 1 else ''}[/dim]")
    rows = comparison.sets[0].results[0].max_train_rows
    for line in (TRAIN_ACCURACY_NOTE.format(rows=rows), *baseline_notes(comparison)):
        out.print(Text(line, style="dim"))
    out.print(plain_text(comparison.verdict))
    if len(comparison.sets) > 1:
        for one in comparison.sets:
            if not one.has_statement:
                out.print(plain_text(f"{one.set}: {one.verdict}"))


def _print_one_dataset(comparison: DatasetComparison) -> None:
    count = len(comparison.results[0].folds)
    title = plain_text(f"{comparison.set}: accuracy in percent over {count} folds")
    grid = Grid(title=title, title_justify="left", title_style="bold")
    grid.add_column("loss")
    for column in (
        "mean ± std",
        "train",
        "95 % interval",
        *(("rank", "folds won") if comparison.has_statement else ()),
    ):
        grid.add_column(column, justify="right")
    for i in comparison.order:
        result, (low, high) = comparison.results[i], comparison.intervals[i]
        placed = (f"{comparison.ranks[i]:g}", str(comparison.wins[i])) if comparison.has_statement else ()
        grid.add_row(
            plain_text(result.loss),
            _accuracy_text(result, comparison),
            format_train_accuracy(result),
            format_interval(low, high, 1),
            *placed,
        )
    if comparison.baselines:
        grid.add_section()
    for result, (low, high) in zip(comparison.baselines, comparison.baseline_intervals, strict=True):
        cells = (f"{result.mean:.2f}±{result.std:.2f} ", format_train_accuracy(result), format_interval(low, high, 1))
        grid.add_row(plain_text(result.loss), *cells, *(("–", "–") if comparison.has_statement else ()), style="dim")
    console().print(grid)


def _print_datasets(comparison: Comparison) -> None:
    grid = Grid(title="Accuracy in percent, mean ± std", title_justify="left", title_style="bold")
    grid.add_column("set", no_wrap=True)
    for method in comparison.methods:
        grid.add_column(plain_text(method), justify="right", overflow="fold", min_width=12)
    grid.add_column("train", justify="right", no_wrap=True)
    for name in comparison.baselines:
        grid.add_column(Text(name, style="dim"), justify="right", overflow="fold", min_width=12, style="dim")
    for one in comparison.sets:
        baseline_cells = (f"{result.mean:.2f}±{result.std:.2f} " for result in one.baselines)
        grid.add_row(
            plain_text(one.set),
            *(_accuracy_text(result, one) for result in one.results),
            format_train_accuracy_range(one),
            *baseline_cells,
        )
    if comparison.across_datasets is not None:
        grid.add_section()
        _add_summary(grid, comparison.across_datasets)
    console(width=50 + 20 * (len(comparison.methods) + len(comparison.baselines))).print(grid)


def _add_summary(grid: Grid, summary: CrossDatasetComparison) -> None:
    top = max(summary.averages)
    grid.add_row("average", *(Text(f"{v:.2f}", style="bold" if v == top else "") for v in summary.averages))
    first = min(summary.mean_ranks)
    grid.add_row("mean rank", *(Text(f"{v:.2f}", style="bold" if v == first else "") for v in summary.mean_ranks))
    wins = (f"{n}" + (f" ({s} tied)" if s else "") for n, s in zip(summary.wins, summary.tied_wins, strict=True))
    grid.add_row("wins", *wins)


def _accuracy_text(result: Result, comparison: DatasetComparison) -> Text:
    text = f"{result.mean:.2f}±{result.std:.2f}"
    if round(result.mean, 2) == comparison.best_mean:
        return Text(f"{text}{BEST_MARK}", style="bold")
    return Text(f"{text}{NOT_WORSE_MARK if result.loss in comparison.not_worse else ' '}")
