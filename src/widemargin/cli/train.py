"""`widemargin train`: train on images, with our flags or the seeds'; with `--find-lr` a learning-rate range test."""

from __future__ import annotations

import argparse
import os
import shlex
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
    from ..training.evaluate import format_metrics
    from ..training.logging import is_main_process
    from ..training.train import train

    keep_freed_memory()
    config, folder, data_dir = _find_run(options)
    try:
        if options.find_lr:
            run_find_lr(config, Path(folder), options, data_dir)
            return
        trained = train(
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
    if is_main_process():
        said = format_metrics({**trained.record["test"], "intervals": trained.record.get("intervals")})
        print_escaped(f"{'unseen classes' if config.unseen_classes else 'test'}: {said}")
        print_escaped(f"wrote {trained.folder}")


def _find_run(options: argparse.Namespace) -> tuple[TrainConfig, str | Path, str | None]:
    """Config, folder and data folder: of the run after `--resume`, else of the words."""
    from ..io.errors import InputError
    from ..training.resume import recorded_data_dir, resume_config
    from ..training.run_files import default_run_folder

    folder = _resumed_folder(options)
    data_dir = options.data_dir or options.data_location
    if folder is None:
        if options.resume and options.out is None and not values_from_options(options):
            raise InputError("--resume: say which run to go on with, as in --resume runs/NAME")
        config = config_from_options(options)
        return config, options.out or default_run_folder(config), data_dir
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


def run_find_lr(config: TrainConfig, folder: Path, options: argparse.Namespace, data_dir: str | None) -> None:
    """Test, print, and write `lr_finder.json` and `lr_finder.svg` to the run's folder."""
    from ..io.errors import InputError
    from ..training.logging import is_main_process
    from ..training.lr_finder import find_lr
    from ..training.run_files import check_no_run

    if options.resume:
        raise InputError("--find-lr tries rates on a fresh model, --resume goes on with a trained one: leave one out")
    if options.logger:
        raise InputError("--find-lr trains nothing that could be logged: leave --logger out")
    check_no_run(folder, "give --find-lr another --out")
    result = find_lr(config, data_dir=data_dir, quiet=options.quiet)
    if is_main_process():
        print_lr_range_test(result, folder)


def print_lr_range_test(result: LRRangeTest, folder: Path) -> None:
    """Write the files, print the table, and the suggestion with its command."""
    paths = result.write(folder)
    _print_lr_table(result)
    print_escaped(f"wrote {paths[0]} and {paths[1]}")
    command = shlex.join(result.suggested_config.to_command())
    if not result.is_bounded:
        print("the loss never rose again, no rate was seen to be too large: try a third and a tenth of the suggestion")
    print_escaped(f"suggestion: --lr {result.suggestion:g}, a tenth of where the loss is lowest. The same run with it:")
    print_escaped(command)


def _print_lr_table(result: LRRangeTest) -> None:
    from rich.table import Table as Grid

    from ..viz.terminal import console, plain_text

    grid = Grid(title=plain_text(result.title), title_justify="left", title_style="bold")
    for title in ("rate", "smoothed loss"):
        grid.add_column(title, justify="right")
    grid.add_column("")
    for lr, loss, note in result.table():
        grid.add_row(f"{lr:.1e}", f"{loss:.3f}", note)
    console().print(grid)
