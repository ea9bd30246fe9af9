"""A comparison as a table in the terminal."""

from __future__ import annotations

from rich.table import Table as Grid
from rich.text import Text

from ..listing import console, plain
from .comparison import Comparison, OnManySets, OnOneSet, span

MARK = "≈"
BEST = "*"
"""Beside bold letters, which a file does not keep."""
LEGEND = f"{BEST}: best; {MARK}: not significantly worse (corrected resampled t-test, Holm, 5 %)"
WON = "; a fold is won by everybody whom no other beats in it"


def print_comparison(found: Comparison) -> None:
    """One set: a row per method. Several: a row per set, and what they say together."""
    if len(found.sets) == 1:
        _print_one_set(found.sets[0])
    else:
        _print_sets(found)
    out = console()
    out.print(f"[dim]{LEGEND}{WON if len(found.sets) == 1 else ''}[/dim]")
    out.print(plain(found.verdict))


def _print_one_set(one: OnOneSet) -> None:
    count = len(one.results[0].folds)
    title = plain(f"{one.set}: accuracy in percent over {count} folds")
    grid = Grid(title=title, title_justify="left", title_style="bold")
    grid.add_column("loss")
    for column in ("mean ± std", "95 % interval", "rank", "folds won"):
        grid.add_column(column, justify="right")
    best = max(round(result.mean, 2) for result in one.results)
    for i in sorted(range(len(one.results)), key=lambda i: -one.results[i].mean):
        result, (low, high) = one.results[i], one.intervals[i]
        cell = _cell(result.mean, result.std, best, result.loss in one.not_worse)
        grid.add_row(plain(result.loss), cell, span(low, high, 1), f"{one.ranks[i]:g}", str(one.wins[i]))
    console().print(grid)


def _print_sets(found: Comparison) -> None:
    grid = Grid(title="Accuracy in percent, mean ± std", title_justify="left", title_style="bold")
    grid.add_column("set", no_wrap=True)
    for method in found.methods:
        grid.add_column(plain(method), justify="right", overflow="fold", min_width=12)
    for one in found.sets:
        best = max(round(result.mean, 2) for result in one.results)
        cells = [_cell(r.mean, r.std, best, r.loss in one.not_worse) for r in one.results]
        grid.add_row(plain(one.set), *cells)
    if found.together is not None:
        grid.add_section()
        _add_summary(grid, found.together)
    console(width=40 + 20 * len(found.methods)).print(grid)


def _add_summary(grid: Grid, together: OnManySets) -> None:
    top = max(together.averages)
    grid.add_row("average", *(Text(f"{v:.2f}", style="bold" if v == top else "") for v in together.averages))
    first = min(together.mean_ranks)
    grid.add_row("mean rank", *(Text(f"{v:.2f}", style="bold" if v == first else "") for v in together.mean_ranks))
    wins = (f"{n}" + (f" ({s} tied)" if s else "") for n, s in zip(together.wins, together.shared, strict=True))
    grid.add_row("wins", *wins)


def _cell(mean: float, std: float, best: float, alike: bool) -> Text:
    text = f"{mean:.2f}±{std:.2f}"
    if round(mean, 2) == best:
        return Text(f"{text}{BEST}", style="bold")
    return Text(f"{text}{MARK if alike else ' '}")
