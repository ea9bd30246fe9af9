"""A comparison as a table in the terminal."""

from __future__ import annotations

from rich.table import Table as Grid
from rich.text import Text

from ..listing import console, plain
from ..results import TRAIN_ROWS, Result
from .comparison import Comparison, OnManySets, OnOneSet, about_baselines, span, train, train_span

MARK = "≈"
BEST = "*"
"""Beside bold letters, which a file does not keep."""
LEGEND = f"{BEST}: best; {MARK}: not significantly worse (corrected resampled t-test, Holm, 5 %)"
WON = "; a fold is won by everybody whom no other beats in it"
TRAIN = f"train: accuracy on the rows that were learnt from (on {TRAIN_ROWS:,} of each fold where there are more)"


def print_comparison(found: Comparison) -> None:
    """One set: a row per method. Several: a row per set, and what they say together."""
    if len(found.sets) == 1:
        _print_one_set(found.sets[0])
    else:
        _print_sets(found)
    out = console()
    if any(one.stated for one in found.sets):
        out.print(f"[dim]{LEGEND}{WON if len(found.sets) == 1 else ''}[/dim]")
    for line in (TRAIN, *about_baselines(found)):
        out.print(Text(line, style="dim"))
    out.print(plain(found.verdict))
    if len(found.sets) > 1:
        for one in found.sets:
            if not one.stated:
                out.print(plain(f"{one.set}: {one.verdict}"))


def _print_one_set(one: OnOneSet) -> None:
    count = len(one.results[0].folds)
    title = plain(f"{one.set}: accuracy in percent over {count} folds")
    grid = Grid(title=title, title_justify="left", title_style="bold")
    grid.add_column("loss")
    for column in ("mean ± std", "train", "95 % interval", *(("rank", "folds won") if one.stated else ())):
        grid.add_column(column, justify="right")
    for i in one.order:
        result, (low, high) = one.results[i], one.intervals[i]
        placed = (f"{one.ranks[i]:g}", str(one.wins[i])) if one.stated else ()
        grid.add_row(plain(result.loss), _cell(result, one), train(result), span(low, high, 1), *placed)
    if one.baselines:
        grid.add_section()
    for result, (low, high) in zip(one.baselines, one.baseline_intervals, strict=True):
        cells = (f"{result.mean:.2f}±{result.std:.2f} ", train(result), span(low, high, 1))
        grid.add_row(plain(result.loss), *cells, *(("–", "–") if one.stated else ()), style="dim")
    console().print(grid)


def _print_sets(found: Comparison) -> None:
    grid = Grid(title="Accuracy in percent, mean ± std", title_justify="left", title_style="bold")
    grid.add_column("set", no_wrap=True)
    for method in found.methods:
        grid.add_column(plain(method), justify="right", overflow="fold", min_width=12)
    grid.add_column("train", justify="right", no_wrap=True)
    for name in found.baselines:
        grid.add_column(Text(name, style="dim"), justify="right", overflow="fold", min_width=12, style="dim")
    for one in found.sets:
        beside = (f"{result.mean:.2f}±{result.std:.2f} " for result in one.baselines)
        grid.add_row(plain(one.set), *(_cell(result, one) for result in one.results), train_span(one), *beside)
    if found.together is not None:
        grid.add_section()
        _add_summary(grid, found.together)
    console(width=50 + 20 * (len(found.methods) + len(found.baselines))).print(grid)


def _add_summary(grid: Grid, together: OnManySets) -> None:
    top = max(together.averages)
    grid.add_row("average", *(Text(f"{v:.2f}", style="bold" if v == top else "") for v in together.averages))
    first = min(together.mean_ranks)
    grid.add_row("mean rank", *(Text(f"{v:.2f}", style="bold" if v == first else "") for v in together.mean_ranks))
    wins = (f"{n}" + (f" ({s} tied)" if s else "") for n, s in zip(together.wins, together.shared, strict=True))
    grid.add_row("wins", *wins)


def _cell(result: Result, one: OnOneSet) -> Text:
    text = f"{result.mean:.2f}±{result.std:.2f}"
    if round(result.mean, 2) == one.best:
        return Text(f"{text}{BEST}", style="bold")
    return Text(f"{text}{MARK if result.loss in one.not_worse else ' '}")
