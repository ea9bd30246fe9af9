"""`widemargin train`: train on images, with our flags or the seeds'; with `--find-lr` a learning-rate range test."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..io.text import print_escaped
from ..reproduce.seed_flags import add_train_arguments, config_from_options, values_from_options
from .evaluate import ASSIGN_NEW_HELP

if TYPE_CHECKING:
    from ..training.config import TrainConfig
    from ..training.lr_finder import LRRangeTest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = "Train a backbone under a loss on images, resumable; the seeds' flags are understood too."
    add_train_arguments(parser)
    parser.add_argument("--out", metavar="DIR", help="run folder (default runs/NAME)")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="RUN",
        help="go on from the last checkpoint of a run folder, whose run.json says the rest; beside it --epochs may be "
        "another number than before. Without RUN: of the folder that the other words mean",
    )
    parser.add_argument("--assign-new", action="store_true", help=f"with --resume: {ASSIGN_NEW_HELP}")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="seconds after which a silent process is given up (default 1800)"
    )
    parser.add_argument("--find-lr", action="store_true", help="train nothing: try rates on a copy and suggest one")
    parser.add_argument("--quiet", action="store_true", help="no bar on a terminal, no line per epoch elsewhere")
    parser.add_argument("--logger", nargs="+", default=[], metavar="KIND", help="also tensorboard, wandb")
    # As version 0.1.0 spelt it. torchrun takes it for one of its own options (--log-dir, --logs-specs) and leaves.
    hidden = argparse.SUPPRESS
    parser.add_argument("--log", dest="logger", nargs="+", metavar="KIND", default=hidden, help=hidden)
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train, print what came out."""
    from ..io.resources import keep_freed_memory
    from ..numerics.distributed import is_rank_zero
    from ..training.evaluate import format_metrics
    from ..training.train import train

    keep_freed_memory()
    config, folder, data_dir = _find_run(options)
    try:
        if options.find_lr:
            find_lr(config, folder, options, data_dir)
            return
        record = train(
            config,
            folder,
            resume=bool(options.resume),
            data_dir=data_dir,
            loggers=options.logger,
            quiet=options.quiet,
            command=None if isinstance(options.resume, str) else _command_line(options),
            assign_new=options.assign_new,
            **({} if options.timeout is None else {"timeout": options.timeout}),
        )
    except RuntimeError as error:
        raise _explain_error(error, config) from None
    if is_rank_zero():
        said = format_metrics({**record["test"], "intervals": record.get("intervals")})
        print_escaped(f"{'unseen classes' if config.unseen_classes else 'test'}: {said}")
        print_escaped(f"wrote {folder}")


def _find_run(options: argparse.Namespace) -> tuple[TrainConfig, str, str | None]:
    """Config, folder and data folder: of the run after `--resume`, else of the words."""
    from ..io.errors import InputError
    from ..training.resume import recorded_data_dir, resume_config

    folder = _resumed_folder(options)
    data_dir = options.data_dir or options.data_location
    if folder is None:
        config = config_from_options(options)
        return config, options.out or os.path.join("runs", _run_folder_name(config)), data_dir
    if options.out is not None and os.path.realpath(options.out) != os.path.realpath(folder):
        raise InputError(f"--resume {folder} goes on in that folder: leave --out out")
    given = values_from_options(options)
    if options.epochs is None:  # --margin-loss has a number of its own
        given.pop("epochs", None)
    return resume_config(folder, given), folder, data_dir or recorded_data_dir(folder)


def _resumed_folder(options: argparse.Namespace) -> str | None:
    """The run folder after `--resume`; a word there that is none, before other words, is DATA, MODEL, LOSS's first."""
    from ..data.images.sets import canonical_set_name
    from ..io.errors import InputError
    from ..training.resume import is_run_folder

    word = options.resume
    if not isinstance(word, str) or is_run_folder(word):
        return word if isinstance(word, str) else None
    if options.loss is None and (options.data is not None or canonical_set_name(word) is not None):
        options.data, options.model, options.loss, options.resume = word, options.data, options.model, True
        return None
    raise InputError(f"--resume {word}: no run folder, it has no run.json; data, model and loss stand before --resume")


def _command_line(options: argparse.Namespace) -> str:
    """The command as it was typed, to be typed again: a name from the environment is part of it."""
    name = None if options.name else os.environ.get("WANDB_NAME")
    return (f"WANDB_NAME={shlex.quote(name)} " if name else "") + shlex.join(["widemargin", *options.argv])


def _explain_error(error: RuntimeError, config: TrainConfig) -> Exception:
    """An InputError for lack of memory, for which torch has no error of its own; any other error as it is."""
    from ..io.errors import InputError

    said = str(error)
    if "out of memory" in said or "can't allocate memory" in said:
        return InputError(f"too little memory: lower --batch-size {config.batch_size}, or take --accumulate")
    return error


def _run_folder_name(config: TrainConfig) -> str:
    """A name for the run folder, in characters that every file system takes."""
    words = config.name or f"{os.path.basename(config.data)}-{config.model}-{config.loss}-seed{config.seed}"
    return re.sub(r"[^A-Za-z0-9.=_+-]+", "_", words)[:200].strip("_.") or "run"  # file systems end at 255


_MAX_TABLE_ROWS = 12


def find_lr(config: TrainConfig, folder: str, options: argparse.Namespace, data_dir: str | None) -> None:
    """Test, print, and write `lr_finder.json` and `lr_finder.svg` to the run's folder."""
    from ..io.errors import InputError
    from ..numerics.distributed import is_rank_zero
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
        report_lr_range_test(result, config, Path(folder))


def report_lr_range_test(result: LRRangeTest, config: TrainConfig, folder: Path) -> None:
    """Write the files, print the table, and the suggestion with its command."""
    from ..io.errors import InputError

    _write_lr_finder_files(result, config, folder)
    _print_lr_table(result, config)
    print_escaped(f"wrote {folder / 'lr_finder.json'} and {folder / 'lr_finder.svg'}")
    if result.suggestion is None:
        raise InputError(f"the loss fell at no rate from {result.lrs[0]:g} on: look at the data and the loss")
    if not result.is_bounded:
        print("the loss never rose again, no rate was seen to be too large: try a third and a tenth of the suggestion")
    command = shlex.join(replace(config, lr=result.suggestion).to_command())
    print_escaped(f"suggestion: --lr {result.suggestion:g}, a tenth of where the loss is lowest. The same run with it:")
    print_escaped(command)


def _write_lr_finder_files(result: LRRangeTest, config: TrainConfig, folder: Path) -> None:
    from ..io.locks import write_text_atomic
    from ..training.lr_finder import render_lr_svg

    folder.mkdir(parents=True, exist_ok=True)
    facts = {**asdict(result), "run": asdict(config)}
    write_text_atomic(folder / "lr_finder.json", json.dumps(facts, indent=1, ensure_ascii=False))
    write_text_atomic(folder / "lr_finder.svg", render_lr_svg(result, config))


def _print_lr_table(result: LRRangeTest, config: TrainConfig) -> None:
    from rich.table import Table as Grid

    from ..viz.terminal import console, plain_text

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
