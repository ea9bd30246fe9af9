"""`widemargin train`: train a model on images; with `--find-lr` run a learning rate range test."""

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
    parser.description = (
        "Train a backbone with a loss on images; runs can be resumed. "
        "The flags of the original training scripts are accepted too."
    )
    add_train_arguments(parser)
    parser.add_argument("--out", metavar="DIR", help="run folder (default runs/NAME)")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="RUN",
        help="continue from the last checkpoint of a run folder with the settings of its run.json; only --epochs may "
        "differ. Without RUN: of the folder that the other arguments imply",
    )
    parser.add_argument("--assign-new", action="store_true", help=f"with --resume: {ASSIGN_NEW_HELP}")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="seconds to wait for a process that does not answer (default 1800)"
    )
    parser.add_argument(
        "--find-lr", action="store_true", help="do not train: run a learning rate search on a copy of the model"
    )
    parser.add_argument(
        "--list-recipes", action="store_true", help="do not train: print the recipes with source, expected figure, cost"
    )
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="threads that decode image files (default: one per core)"
    )
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    parser.add_argument("--logger", nargs="+", default=[], metavar="KIND", help="also log to tensorboard, wandb")
    # Spelling of version 0.1.0. torchrun would take it for an abbreviation of its own --log-dir and --logs-specs.
    hidden = argparse.SUPPRESS
    parser.add_argument("--log", dest="logger", nargs="+", metavar="KIND", default=hidden, help=hidden)
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train and print the results."""
    from ..io.resources import keep_freed_memory
    from ..training.evaluate import format_metrics
    from ..training.evaluation import describe_pair_files
    from ..training.image_inputs import describe_skipped_images
    from ..training.logging import is_main_process
    from ..training.train import train

    if options.list_recipes:
        _print_recipes()
        return
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
            workers=options.workers,
            **({} if options.timeout is None else {"timeout": options.timeout}),
        )
    except RuntimeError as error:
        raise _explain_error(error, config) from None
    if is_main_process():
        if trained.record["test"]:
            said = format_metrics({**trained.record["test"], "intervals": trained.record.get("intervals")})
            print_escaped(f"{'unseen classes' if trained.is_open_set else 'test'}: {said}")
        if "average" in trained.record:
            first, last = trained.record["average"]["epochs"]
            averaged = format_metrics(trained.record["average"]["test"])
            print_escaped(f"average of epochs {first} to {last}: {averaged}")
        for line in describe_pair_files(trained.record.get("pairs", {})):
            print_escaped(line)
        if (skipped := trained.record.get("skipped_images", {})).get("count"):
            print_escaped(f"{describe_skipped_images(skipped)}")
        print_escaped(f"wrote {trained.folder}")


def _print_recipes() -> None:
    from ..training.recipes import list_recipes, load_recipe

    for name in list_recipes():
        for line in str(load_recipe(name)).splitlines():
            print_escaped(line)


def _find_run(options: argparse.Namespace) -> tuple[TrainConfig, str | Path, str | None]:
    """Config, run folder and data folder: those of the run given by `--resume`, else from the arguments."""
    from ..io.errors import InputError
    from ..training.resume import recorded_data_dir, resume_config
    from ..training.run_files import default_run_folder

    folder = _resumed_folder(options)
    data_dir = options.data_dir or options.data_location
    if folder is None:
        if options.resume and options.out is None and not values_from_options(options):
            raise InputError("--resume: name the run to continue, as in --resume runs/NAME")
        config = config_from_options(options)
        return config, options.out or default_run_folder(config), data_dir
    if options.out is not None and os.path.realpath(options.out) != os.path.realpath(folder):
        raise InputError(f"--resume {folder} continues in that folder: omit --out")
    given = values_from_options(options)
    if options.epochs is None:  # --margin-loss has its own default
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
    raise InputError(f"--resume {word}: not a run folder, it has no run.json; put data, model and loss before --resume")


def _command_line(options: argparse.Namespace) -> str:
    """The command as typed, with the run's name from the environment."""
    name = None if options.name else os.environ.get("WANDB_NAME")
    return (f"WANDB_NAME={shlex.quote(name)} " if name else "") + shlex.join(["widemargin", *options.argv])


def _explain_error(error: RuntimeError, config: TrainConfig) -> Exception:
    """InputError if the error means lack of memory, for which torch has no error type; else the error itself."""
    from ..io.errors import InputError

    said = str(error)
    if "out of memory" in said or "can't allocate memory" in said:
        return InputError(f"out of memory: lower --batch-size {config.batch_size}, or use --accumulate")
    return error


def run_find_lr(config: TrainConfig, folder: Path, options: argparse.Namespace, data_dir: str | None) -> None:
    """Run the search, print it, and write `lr_finder.json` and `lr_finder.svg` to the run folder."""
    from ..io.errors import InputError
    from ..training.logging import is_main_process
    from ..training.lr_finder import find_lr
    from ..training.run_files import check_no_run

    if options.resume:
        raise InputError("--find-lr needs a new model, --resume continues a trained one: omit one of them")
    if options.logger:
        raise InputError("--find-lr does not train and logs nothing: omit --logger")
    check_no_run(folder, "choose another --out for --find-lr")
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
        print("the loss did not rise again, so no rate was too large: also try a third and a tenth of the suggestion")
    print_escaped(
        f"suggestion: --lr {result.suggestion:g}, a tenth of the rate with the lowest loss. The same run with it:"
    )
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
