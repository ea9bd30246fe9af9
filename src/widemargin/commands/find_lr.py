"""`widemargin train … --find-lr`: a range test in place of a training, as a table, a picture and one suggestion."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..printable import print_escaped

if TYPE_CHECKING:
    from ..run import TrainConfig
    from ..training.lr_finder import LRRangeTest

_MAX_TABLE_ROWS = 12


def find_lr(config: TrainConfig, folder: str, options: argparse.Namespace, data_dir: str | None) -> None:
    """Test, print, and write `lr_finder.json` and `lr_finder.svg` to the run's folder."""
    from ..errors import InputError
    from ..ranks import is_rank_zero
    from ..training import checkpoint
    from ..training.lr_finder import run_lr_range_test

    if options.resume:
        raise InputError("--find-lr tries rates on a fresh model, --resume goes on with a trained one: leave one out")
    if options.logger:
        raise InputError("--find-lr trains nothing that could be logged: leave --logger out")
    if checkpoint.exists(Path(folder, "checkpoints", "last")):
        raise InputError(f"{folder} holds a run already: give --find-lr another --out")
    result = run_lr_range_test(config, data_dir, quiet=options.quiet)
    if is_rank_zero():
        report_rate_test(result, config, Path(folder))


def report_rate_test(result: LRRangeTest, config: TrainConfig, folder: Path) -> None:
    """The table, the files, and the suggestion with its command."""
    from ..errors import InputError

    _write_files(result, config, folder)
    _print_table(result, config)
    print_escaped(f"wrote {folder / 'lr_finder.json'} and {folder / 'lr_finder.svg'}")
    if result.suggestion is None:
        raise InputError(f"the loss fell at no rate from {result.lrs[0]:g} on: look at the data and the loss")
    if not result.is_bounded:
        print("the loss never rose again, no rate was seen to be too large: try a third and a tenth of the suggestion")
    command = shlex.join(_command(config, result.suggestion))
    print_escaped(f"suggestion: --lr {result.suggestion:g}, a tenth of where the loss is lowest. The same run with it:")
    print_escaped(command)


def _command(config: TrainConfig, rate: float) -> list[str]:
    from ..spelling import build_train_command

    return build_train_command(replace(config, lr=rate))


def _write_files(result: LRRangeTest, config: TrainConfig, folder: Path) -> None:
    from ..training.lr_picture import render_lr_svg
    from ..training.writing import write_text_atomic

    folder.mkdir(parents=True, exist_ok=True)
    facts = {**asdict(result), "run": asdict(config)}
    write_text_atomic(folder / "lr_finder.json", json.dumps(facts, indent=1, ensure_ascii=False))
    write_text_atomic(folder / "lr_finder.svg", render_lr_svg(result, config))


def _print_table(result: LRRangeTest, config: TrainConfig) -> None:
    from rich.table import Table as Grid

    from ..listing import console, plain_text

    steps, images = len(result.lrs), config.batch_size * config.accumulate
    title = plain_text(
        f"{config.model}, {config.loss}, {config.opt}: {steps} steps of {images} images, ended {result.stop_reason}"
    )
    grid = Grid(title=title, title_justify="left", title_style="bold")
    grid.add_column("rate", justify="right")
    grid.add_column("smoothed loss", justify="right")
    grid.add_column("")
    shown = sorted({round(k * (steps - 1) / (_MAX_TABLE_ROWS - 1)) for k in range(_MAX_TABLE_ROWS)})
    if result.lowest_loss_lr is not None:
        shown = sorted({*shown, result.lrs.index(result.lowest_loss_lr)})
    for k in shown:
        note = "lowest, or as good as" if result.lrs[k] == result.lowest_loss_lr else ""
        grid.add_row(f"{result.lrs[k]:.1e}", f"{result.smoothed_losses[k]:.3f}", note)
    console().print(grid)
