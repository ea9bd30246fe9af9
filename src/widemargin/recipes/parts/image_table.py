"""A table of the paper on images: runs of all methods, their figures in columns, ours beside theirs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...run import Run
from .image_settings import BESIDE, METHODS, image_run
from .run_list import Record, record_of

Figure = Callable[[Record], float]


def top1(record: Record) -> float:
    """Accuracy on the test images, each seen once."""
    return float(record["test"]["top1"])


def top5(record: Record) -> float:
    """How often the right class is among the first five."""
    return float(record["test"]["top5"])


def angle(kind: str) -> Figure:
    """One of Table VI's angles in radians."""
    return lambda record: float(record["angles"][kind])


@dataclass(frozen=True)
class Wanted:
    """A column: what all its runs share, the figure that is read off each, and the paper's by its own method names."""

    title: str
    fixed: Mapping[str, Any]
    figure: Figure
    theirs: Mapping[str, float] = field(default_factory=dict)
    unit: str = "accuracy in percent"
    best: str = "high"


def methods_of(options: argparse.Namespace) -> dict[str, str]:
    """The paper's methods; in CPU size two more."""
    return {**METHODS, **BESIDE} if options.size == "cpu" else dict(METHODS)


def runs_of(options: argparse.Namespace, wanted: Wanted, loss: str) -> list[Run]:
    """A method's runs of a column, one per seed."""
    from .image_options import seeds_of

    printed = options.settings == "printed"
    return [
        image_run(options.size, loss=loss, seed=seed, printed=printed, **wanted.fixed) for seed in seeds_of(options)
    ]


def run(options: argparse.Namespace, recipe: str, title: str, wanted: Sequence[Wanted]) -> None:
    """Train what is missing, print, write the page."""
    from ...report import page
    from .beside import Column, print_columns, section
    from .image_options import carried_out

    methods = methods_of(options)
    # Seed by seed, so that a list that was stopped has compared all methods as often as it could.
    by_seed = zip(*(runs_of(options, column, loss) for column in wanted for loss in methods.values()), strict=True)
    out = carried_out((run for together in by_seed for run in together), options, recipe)
    columns = [
        Column(
            column.title,
            {
                loss: _values(runs_of(options, column, loss), Path(options.runs), column.figure)
                for loss in methods.values()
            },
            {METHODS[method]: value for method, value in column.theirs.items()},
            unit=column.unit,
            best=column.best,
        )
        for column in wanted
    ]
    print_columns(title, list(methods.values()), columns)
    sub = f"{_setting(options)}, mean and standard deviation over seeds; a dot is a seed, the bar their mean"
    command = f"widemargin reproduce {recipe} --size {options.size}"
    body = [section(list(methods.values()), columns), page.heading("Again"), page.code(command)]
    path = out / "report.html"
    path.write_text(page.page(title, sub, body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")


def _values(runs: Sequence[Run], place: Path, figure: Figure) -> list[float]:
    return [figure(record) for run in runs if (record := record_of(run, place)) is not None]


def _setting(options: argparse.Namespace) -> str:
    if options.size == "cpu":
        return "The small fast network, made for two CPU cores (the paper: ResNet)"
    rate = "as printed" if options.settings == "printed" else "with Adam at 0.001"
    return f"The paper's settings (its Table III) {rate}"
