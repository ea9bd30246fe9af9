"""The record of `widemargin bench coverage` as tables: in the terminal, and in Markdown for the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .coverage import JACKKNIFE, MAX_COVERAGE_PERCENT, METRIC_NAMES, MIN_COVERAGE_PERCENT, CoverageSettings

_TITLES = {"auc": "AUC", "eer": "EER", "tar": "TAR at FAR 0.01"}


def print_coverage(settings: CoverageSettings, json_path: str | None) -> None:
    """Measure what is missing and print it."""
    from rich.table import Table

    from ..listing import check_writable, console
    from ..progress import progress_bar
    from . import coverage

    if json_path:
        check_writable(json_path)
    total = settings.trials * len(settings.identities) * len(settings.populations)
    with progress_bar("trials", total) as on_progress:
        record = coverage.measure_coverage(settings, Path(json_path) if json_path else None, on_progress)
    grid = Table(title="Percent of 95 % intervals that hold the truth", title_justify="left", title_style="bold")
    head, *lines = coverage_rows(record)
    for name in head:
        grid.add_column(name, justify="left" if name in head[:3] else "right")
    for line in lines:
        grid.add_row(*line)
    console(width=160).print(grid)
    print(f"wanted of {JACKKNIFE}: {MIN_COVERAGE_PERCENT:g} to {MAX_COVERAGE_PERCENT:g}; {verdict(record)}")


def verdict(record: Mapping[str, Any]) -> str:
    """Where ours lie outside of what is wanted."""
    found = []
    for cell in record["cells"]:
        if cell["construction"] == JACKKNIFE:
            for name in METRIC_NAMES:
                held = cell["held"][name]
                if held is not None and not MIN_COVERAGE_PERCENT <= held <= MAX_COVERAGE_PERCENT:
                    where = f"{cell['identities']} identities ({cell['population']})"
                    found.append(f"{_TITLES[name]} of {where} {held:.1f}")
    return "all are" if not found else "outside: " + ", ".join(found)


def coverage_rows(record: Mapping[str, Any]) -> list[list[str]]:
    """The head, then a line for every population, number of identities and construction."""
    found = [["population", "identities", "intervals", "trials", *_TITLES.values(), "median widths"]]
    for cell in record["cells"]:
        values = []
        for name in METRIC_NAMES:
            refused = cell["refused"][name]
            values.append(_format_number(cell["held"][name], 1) + (f" ({refused} refused)" if refused else ""))
        widths = ", ".join(_format_number(cell["width"][name], 3) for name in METRIC_NAMES)
        about = [cell["population"], str(cell["identities"]), cell["construction"], f"{cell['trials']:,}"]
        found.append([*about, *values, widths])
    return found


def _format_number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def markdown(record: Mapping[str, Any]) -> str:
    """The table for the docs."""
    head, *lines = coverage_rows(record)
    made: Sequence[str] = ["| " + " | ".join(head) + " |", "|---|---:|---|---:|---:|---:|---:|---:|"]
    judged = f"Wanted of {JACKKNIFE}: {MIN_COVERAGE_PERCENT:g} to {MAX_COVERAGE_PERCENT:g} %; {verdict(record)}."
    truths = []
    for name, truth in record["truth"].items():
        said = ", ".join(f"{_TITLES[k]} {100 * truth[k]:.2f} ± {100 * truth['errors'][k]:.3f} %" for k in METRIC_NAMES)
        truths.append(f"- {name}: {said}")
    return "\n".join(
        [*made, *("| " + " | ".join(line) + " |" for line in lines), "", judged, "", "The truth:", "", *truths]
    )
