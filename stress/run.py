"""Runs checks one after the other, each in its own scratch folder, and collects the results in a record."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from widemargin.io import bounded
from widemargin.io.errors import InputError
from widemargin.io.provenance import source_commit, versions

from .check import Check, CheckContext, Outcome, load_checks

ProgressCallback = Callable[[str], None]


@dataclass(frozen=True)
class CheckResult:
    """A check, its outcome and its duration."""

    check: Check
    outcome: Outcome
    seconds: float


def select_checks(only: Iterable[str] | None, long: bool) -> list[Check]:
    """Return the checks to run; long ones are skipped without `long`, and refused if named."""
    checks = load_checks(only)
    slow = [check.name for check in checks if check.long and not long]
    if only is not None and slow:
        raise InputError(f"{slow[0]} is a long check: add --long")
    return [check for check in checks if check.name not in slow]


def run_checks(
    checks: Iterable[Check], long: bool, on_progress: ProgressCallback, seed: int = 0
) -> Iterator[CheckResult]:
    """Yield the result of every check."""
    for check in checks:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix=f"widemargin-{check.name}-", ignore_cleanup_errors=True) as scratch:
            context = CheckContext(
                long, Path(scratch).resolve(), seed, partial(_report_check_progress, on_progress, check.name)
            )
            try:
                outcome = check.run(context)
            except Exception as error:  # a broken check must not stop the others
                message = " ".join(f"{type(error).__name__}: {error}".split())
                outcome = Outcome(1, 0, "unknown", f"the check itself failed: {message}")
        yield CheckResult(check, outcome, time.perf_counter() - start)


def _report_check_progress(on_progress: ProgressCallback, name: str, text: str) -> None:
    on_progress(f"{name}: {text}")


def record(
    results: Iterable[CheckResult], long: bool, previous_lines: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the record for `--json`; `previous_lines` of an older record stay unless their check was run again."""
    lines = [
        {
            "name": one.check.name,
            "title": one.check.title,
            "kind": one.check.kind,
            **asdict(one.outcome),
            "seconds": round(one.seconds, 1),
            "commit": source_commit(),
            "version": versions()["widemargin"],
            "command": f"python -m stress --only {one.check.name}" + (" --long" if long else ""),
        }
        for one in results
    ]
    again = {line["name"] for line in lines}
    everything = [*lines, *(line for line in previous_lines if line["name"] not in again)]
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "long": long,
        "checks": sorted(everything, key=lambda line: str(line["name"])),
    }


def read_record_lines(path: Path, long: bool) -> list[dict[str, Any]]:
    """Return the lines of an existing record to update; empty without a file, or with one of another length."""
    if not path.exists():
        return []
    record = bounded.read_json(path)
    try:
        known = {"version": record["versions"]["widemargin"]}  # of lines that do not name their own
        lines = [{**known, **line} for line in record["checks"]] if record["long"] == long else []
        return [line for line in lines if line["name"]]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path}: not a record of stress; give another file, or delete this one") from None


def print_results(results: Sequence[CheckResult]) -> None:
    """Print one row per check; then the notes of those that failed or could not run."""
    from rich.table import Table
    from rich.text import Text

    from widemargin.viz.terminal import console

    screen = console(width=140)
    grid = Table(title="stress", title_justify="left", title_style="bold")
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
    """Print names and titles of checks."""
    from rich.table import Table
    from rich.text import Text

    from widemargin.viz.terminal import console

    grid = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        grid.add_row(check.name, check.kind, Text(check.title + (" (--long)" if check.long else "")))
    console(width=140).print(grid)
