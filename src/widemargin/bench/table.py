"""Benchmark figures as tables in the terminal, and as JSON."""

from __future__ import annotations

import itertools
import json
import platform
from dataclasses import asdict
from pathlib import Path

from rich.progress import track
from rich.table import Table

from .. import __version__
from ..catalogue import parse_list
from ..listing import check_writable, console
from . import numerics


def print_numerics(requested_losses: str | None, backend: str, json_path: str | None) -> None:
    """Run `numerics` and print its table."""
    import torch

    specs = None if requested_losses is None else [repr(loss) for loss in parse_list(requested_losses)]
    if json_path is not None:
        check_writable(json_path)  # before the measuring, not after
    implementations = numerics.list_loss_implementations(specs, backend)
    screen = console()
    rows = [
        numerics.measure_gradient_accuracy(one)
        for one in track(implementations, "measuring", console=screen, transient=True)
    ]
    table = Table(
        title=f"fp32 gradient error against fp64, N={numerics.NUM_SAMPLES}, D={numerics.EMBEDDING_DIM}, C={numerics.NUM_CLASSES}",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("loss", no_wrap=True)
    for column in ("at start", *(f"loss {target:.0e}" for target in numerics.TARGET_LOSSES)):
        table.add_column(column, justify="right")
    for name in numerics.DTYPES:
        table.add_column(f"finite {name}", justify="center")
    for library, group in itertools.groupby(rows, lambda row: row.library):
        table.add_section()
        table.add_row(f"[dim]{library}[/dim]")
        for row in group:
            errors = [
                _format_error(value, limit)
                for value, limit in zip((row.initial, *row.trained), MAX_GRADIENT_ERRORS, strict=True)
            ]
            table.add_row(row.name, *errors, *("yes" if ok else "[bold red]NO[/]" for ok in row.finite.values()))
    screen.print(table)
    screen.print("finite: loss and gradients at x = w_y, −w_y, another class's weight, and 0")
    screen.print("–: out of reach, the scale bounds the loss from below; red: above 2e-6 at the start or 2e-5 later")
    if all(row.library.startswith("widemargin") for row in rows):
        screen.print("for the peers beside: pip install pytorch-metric-learning==2.9.0")
    if json_path is not None:
        facts = {"widemargin": __version__, "torch": torch.__version__, "python": platform.python_version()}
        Path(json_path).write_text(
            json.dumps({"versions": facts, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
        )


# What the gradients shall keep to: 2e-6 at the start, 2e-5 down to a loss of 1e-6.
MAX_GRADIENT_ERRORS = (2e-6, 2e-5, 2e-5, 2e-5)


def _format_error(value: float | None, limit: float) -> str:
    if value is None:
        return "–"
    return f"{value:.1e}" if value <= limit else f"[bold red]{value:.1e}[/]"
