"""Table I next to the paper's values: differences, AdaCos with a floor, baselines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table as Grid
from rich.text import Text

from ...tabular.comparison import Comparison
from ...tabular.results import Result
from ...viz import page
from ...viz.terminal import console
from ..paper import ADACOS_WITH_FLOOR, TABLE1_ARCGRAD, TABLE1_LOSSES, paper_table1

_ADACOS_FLOOR_NOTE = (
    "With two classes AdaCos' scale is √2 log(C−1) = 0: there is no gradient, and the weights do not change, "
    "in the paper and here. With floor=2 the scale is at least 2, and AdaCos learns like the others."
)


def print_paper_comparison(comparison: Comparison) -> None:
    """Print our values minus the paper's, in percentage points."""
    grid = Grid(title="Ours − the paper's, percentage points", title_justify="left", title_style="bold")
    grid.add_column("set", no_wrap=True)
    for method in TABLE1_LOSSES.values():
        grid.add_column(method, justify="right", overflow="fold")
    for name, cells in _differences(comparison):
        grid.add_row(name, *(Text(f"{value:+.2f}", style="" if value >= 0 else "red") for value in cells))
    grid.add_section()
    for label, row in _summary(comparison):
        grid.add_row(label, *row)
    console(width=200).print(grid)
    console().print(Text(_arcgrad_sentence(comparison)))


def _differences(comparison: Comparison) -> list[tuple[str, list[float]]]:
    rows: dict[str, list[float]] = {}
    for name, _, ours, theirs in compare_with_paper(comparison):
        rows.setdefault(name, []).append(round(ours, 2) - theirs)
    return list(rows.items())


def _summary(comparison: Comparison) -> list[tuple[str, list[str]]]:
    pairs = compare_with_paper(comparison)
    by_method = {
        m: [(ours, theirs) for _, method, ours, theirs in pairs if method == m] for m in TABLE1_LOSSES.values()
    }
    wins = _paper_wins()
    ours_wins = comparison.across_datasets.wins if comparison.across_datasets else ()
    places = {method: i for i, method in enumerate(comparison.methods)}
    return [
        ("average, ours", [f"{np.mean([a for a, _ in rows]):.2f}" for rows in by_method.values()]),
        ("average, paper", [f"{np.mean([b for _, b in rows]):.2f}" for rows in by_method.values()]),
        ("wins, ours", [str(ours_wins[places[m]]) if ours_wins else "–" for m in TABLE1_LOSSES.values()]),
        ("wins, paper", [str(wins[column]) for column in TABLE1_LOSSES]),
        ("sets at least the paper's", [str(sum(round(a, 2) >= b for a, b in rows)) for rows in by_method.values()]),
    ]


def _paper_wins() -> dict[str, int]:
    """Wins counted from the paper's rows (it prints one for ArcFace; its rows give two, Iris is a tie)."""
    theirs = paper_table1()
    sets = dict.fromkeys(name for name, _ in theirs)
    best = {name: max(theirs[name, column][0] for column in TABLE1_LOSSES) for name in sets}
    return {column: sum(theirs[name, column][0] == best[name] for name in sets) for column in TABLE1_LOSSES}


def _arcgrad_sentence(comparison: Comparison) -> str:
    rows = [
        (name, ours, theirs)
        for name, method, ours, theirs in compare_with_paper(comparison)
        if method == TABLE1_ARCGRAD
    ]
    reached = [name for name, ours, theirs in rows if round(ours, 2) >= theirs]
    missed = [name for name, _, _ in rows if name not in reached]
    return (
        f"{TABLE1_ARCGRAD}: at least the paper's value on {len(reached)} of {len(rows)} sets"
        + (f" (not on {', '.join(missed)})" if missed else "")
        + f", average {np.mean([ours for _, ours, _ in rows]):.2f} against {np.mean([t for _, _, t in rows]):.2f}."
    )


def print_floor(results: Sequence[Result], floor_results: Sequence[Result]) -> None:
    """Print AdaCos on two-class sets, as published and with a floor."""
    grid = Grid(title="AdaCos on two classes: as published, and with a floor", title_justify="left", title_style="bold")
    for column in ("set", "the paper's AdaCos", "adacos", ADACOS_WITH_FLOOR, TABLE1_ARCGRAD):
        grid.add_column(column, justify="left" if column == "set" else "right")
    for row in _floor_rows(results, floor_results):
        grid.add_row(*row)
    console().print(grid)
    console().print(Text(_ADACOS_FLOOR_NOTE))


def _floor_rows(results: Sequence[Result], floor_results: Sequence[Result]) -> list[list[str]]:
    theirs = paper_table1()
    by_key = {result.key: result for result in results}
    rows = []
    for result in floor_results:
        name = result.set
        shown = [theirs[name, "adacos"][0], by_key[name, "adacos"].mean, result.mean, by_key[name, TABLE1_ARCGRAD].mean]
        rows.append([name, *(f"{value:.2f}" for value in shown)])
    return rows


def print_baselines(results: Sequence[Result], baselines: Sequence[Result]) -> None:
    """Print averages of scikit-learn's classifiers on the same folds, next to ours."""
    grid = Grid(title="Average over the sets, the same folds", title_justify="left", title_style="bold")
    for column in ("method", "average", "time"):
        grid.add_column(column, justify="left" if column == "method" else "right")
    for method in dict.fromkeys(result.loss for result in (*results, *baselines)):
        own = [result for result in (*results, *baselines) if result.loss == method]
        grid.add_row(method, f"{np.mean([r.mean for r in own]):.2f}", f"{sum(r.seconds for r in own):.1f} s")
    console().print(grid)


def paper_comparison_section(comparison: Comparison) -> str:
    """Return the page's table of differences."""
    rows = [
        [(name, ""), *((f"{value:+.2f}", "" if value >= 0 else "under") for value in cells)]
        for name, cells in _differences(comparison)
    ]
    foot = [[(label, ""), *((text, "") for text in cells)] for label, cells in _summary(comparison)]
    text = "Differences in percentage points; positive values are above the paper's."
    return (
        page.heading("Our results next to the paper's", text)
        + page.table(("set", *TABLE1_LOSSES.values()), rows, foot)
        + page.paragraph(_arcgrad_sentence(comparison))
    )


def floor_section(results: Sequence[Result], floor_results: Sequence[Result]) -> str:
    """Return the page's section on AdaCos with two classes."""
    rows = [[(text, "") for text in row] for row in _floor_rows(results, floor_results)]
    head = ("set", "the paper's AdaCos", "adacos", ADACOS_WITH_FLOOR, TABLE1_ARCGRAD)
    return page.heading("Why AdaCos is at chance on two classes", _ADACOS_FLOOR_NOTE) + page.table(head, rows)


def compare_with_paper(our_comparison: Comparison) -> list[tuple[str, str, float, float]]:
    """Return (set, method, our mean, the paper's mean) for every pair that both have."""
    theirs = paper_table1()
    ours = {result.key: result for one in our_comparison.sets for result in one.results}
    return [
        (one.set, method, ours[one.set, method].mean, theirs[one.set, column][0])
        for one in our_comparison.sets
        for column, method in TABLE1_LOSSES.items()
        if (one.set, method) in ours
    ]
