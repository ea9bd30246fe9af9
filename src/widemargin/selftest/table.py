"""The outcomes as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .check import Check
    from .run import CheckResult


def print_results(results: Sequence[CheckResult]) -> None:
    """One row per check; below it what there is to say of those that did not hold or could not run."""
    from rich.table import Table
    from rich.text import Text

    from ..listing import console

    screen = console(width=140)
    grid = Table(title="widemargin selftest", title_justify="left", title_style="bold")
    for column in ("check", "kind", "tried", "survived", "lost", "seconds"):
        grid.add_column(column, justify="right" if column in ("tried", "survived", "seconds") else "left")
    for one in results:
        outcome = one.outcome
        survived = Text(str(outcome.survived), style="" if outcome.has_passed else "bold red")
        lost = Text(outcome.lost if outcome.tried else "not tried here")
        cells = (Text(one.check.title), one.check.kind, str(outcome.tried), survived, lost, f"{one.seconds:.1f}")
        grid.add_row(*cells)
    screen.print(grid)
    for one in results:
        if one.outcome.note:
            screen.print(Text(f"{one.check.name}: {one.outcome.note}", style="" if one.outcome.has_passed else "red"))


def print_list(checks: Sequence[Check]) -> None:
    """Names and titles of checks."""
    from rich.table import Table
    from rich.text import Text

    from ..listing import console

    grid = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        grid.add_row(check.name, check.kind, Text(check.title + (" (--long)" if check.long else "")))
    console(width=140).print(grid)
