"""Options that every command on tables shares."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import MLPConfig


_MLP_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("epochs", float, "passes over the training part"),
    ("min-steps", int, "optimizer steps at the least"),
    ("batch", int, "rows per step"),
    ("lr", float, "peak learning rate"),
    ("warmup", float, "share of the steps that lead up to it"),
    ("weight-decay", float, "decoupled weight decay"),
    ("dropout", float, "share of hidden units left out in a step"),
    ("label-smoothing", float, "probability mass spread over the other classes"),
)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Where data sets are found."""
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")


def add_mlp_options(parser: argparse.ArgumentParser) -> None:
    """How the models are trained; the defaults are those of `MLPConfig`, the same for all tables."""
    group = parser.add_argument_group("network and training (the same defaults for all tables)")
    group.add_argument("--layers", type=int, help="matrices, the class weights included (default 3)")
    group.add_argument(
        "--hidden", type=int, nargs="+", metavar="N", help="widths, the last the embedding's (default 64 24)"
    )
    from .config import MLPConfig

    default = MLPConfig()
    for name, kind, meaning in _MLP_OPTIONS:
        value = getattr(default, name.replace("-", "_"))
        metavar = "N" if kind is int else "X"
        group.add_argument(f"--{name}", type=kind, metavar=metavar, help=f"{meaning} (default {value:g})")


def add_fold_options(parser: argparse.ArgumentParser) -> None:
    """How the rows are split into folds."""
    parser.add_argument("--cv-repeats", type=int, default=10, help="random partitions (default 10)")
    parser.add_argument("--folds", type=int, default=10, help="parts of each (default 10)")
    parser.add_argument("--stratify", action="store_true", help="keep the shares of the classes in every part")
    parser.add_argument("--seed", type=int, default=0, help="start of every random draw (default 0)")


def add_output_options(parser: argparse.ArgumentParser, default: str) -> None:
    """Where results go, and on how many processes they are made."""
    parser.add_argument("--out", metavar="DIR", help=f"folder for results.jsonl and report.html (default {default})")
    parser.add_argument("--overwrite", action="store_true", help="start anew instead of going on with what is there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")


def command_line(options: argparse.Namespace) -> str:
    """The command as it was typed."""
    return shlex.join(("widemargin", *options.argv))


def mlp_config_from_options(options: argparse.Namespace) -> MLPConfig:
    """The default `MLPConfig` with the options that were given."""
    from dataclasses import replace

    from ..io.errors import InputError
    from .config import MLPConfig

    given = {name.replace("-", "_"): getattr(options, name.replace("-", "_")) for name, _, _ in _MLP_OPTIONS}
    found = replace(MLPConfig(), **{name: value for name, value in given.items() if value is not None})
    if options.hidden is not None:
        if options.layers is not None and options.layers != len(options.hidden) + 1:
            raise InputError(f"--layers {options.layers} does not fit --hidden with {len(options.hidden)} widths")
        return replace(found, hidden=tuple(options.hidden))
    return found if options.layers is None else found.with_layers(options.layers)
