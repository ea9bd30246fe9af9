"""`widemargin train … --find-lr`: a range test in place of a training, as a table, a picture and one suggestion."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..printable import say

if TYPE_CHECKING:
    from ..run import Run
    from ..training.lr_finder import RateTest

_ROWS = 12


def find_lr(run: Run, folder: str, options: argparse.Namespace, data_dir: str | None) -> None:
    """Test, print, and write `lr_finder.json` and `lr_finder.svg` to the run's folder."""
    from ..errors import InputError
    from ..ranks import speaks
    from ..training import checkpoint
    from ..training.lr_finder import find_rate

    if options.resume:
        raise InputError("--find-lr tries rates on a fresh model, --resume goes on with a trained one: leave one out")
    if options.logger:
        raise InputError("--find-lr trains nothing that could be logged: leave --logger out")
    if checkpoint.exists(Path(folder, "checkpoints", "last")):
        raise InputError(f"{folder} holds a run already: give --find-lr another --out")
    found = find_rate(run, data_dir, quiet=options.quiet)
    if speaks():
        print_test(found, run, Path(folder))


def print_test(found: RateTest, run: Run, folder: Path) -> None:
    """The table, the files, and the suggestion with its command."""
    from ..errors import InputError

    _write(found, run, folder)
    _print_table(found, run)
    say(f"wrote {folder / 'lr_finder.json'} and {folder / 'lr_finder.svg'}")
    if found.suggestion is None:
        raise InputError(f"the loss fell at no rate from {found.rates[0]:g} on: look at the data and the loss")
    if not found.bounded:
        print("the loss never rose again, no rate was seen to be too large: try a third and a tenth of the suggestion")
    again = shlex.join(_command(run, found.suggestion))
    say(f"suggestion: --lr {found.suggestion:g}, a tenth of where the loss is lowest. The same run with it:")
    say(again)


def _command(run: Run, rate: float) -> list[str]:
    from ..spelling import command_of

    return command_of(replace(run, lr=rate))


def _write(found: RateTest, run: Run, folder: Path) -> None:
    from ..training.lr_picture import picture
    from ..training.writing import write_whole

    folder.mkdir(parents=True, exist_ok=True)
    facts = {**asdict(found), "run": asdict(run)}
    write_whole(folder / "lr_finder.json", json.dumps(facts, indent=1, ensure_ascii=False))
    write_whole(folder / "lr_finder.svg", picture(found, run))


def _print_table(found: RateTest, run: Run) -> None:
    from rich.table import Table as Grid

    from ..listing import console, plain

    steps, images = len(found.rates), run.batch_size * run.accumulate
    title = plain(f"{run.model}, {run.loss}, {run.opt}: {steps} steps of {images} images, ended {found.ended}")
    grid = Grid(title=title, title_justify="left", title_style="bold")
    grid.add_column("rate", justify="right")
    grid.add_column("smoothed loss", justify="right")
    grid.add_column("")
    shown = sorted({round(k * (steps - 1) / (_ROWS - 1)) for k in range(_ROWS)})
    if found.lowest is not None:
        shown = sorted({*shown, found.rates.index(found.lowest)})
    for k in shown:
        note = "lowest, or as good as" if found.rates[k] == found.lowest else ""
        grid.add_row(f"{found.rates[k]:.1e}", f"{found.smoothed[k]:.3f}", note)
    console().print(grid)
