"""`MLPConfig`: how every small network on a table is built and trained; and options that commands on tables share."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass, replace
from typing import ClassVar

from ..io.errors import InputError
from ..io.options import Config, add_arguments, document_options, given_values, option

DEFAULT_BASELINE_SECONDS = 60.0
"""Seconds of each baseline on each table."""


@document_options
@dataclass(frozen=True, repr=False)
class MLPConfig(Config):
    """A ReLU network under a loss, trained with AdamW, a short warm-up and a cosine to zero.

    The defaults are the same for all tables. The last of the `hidden` layers, the embedding, has no ReLU, so that
    angles use the whole sphere; `(64, 24)` and the class weights are the paper's three layers. A table of a hundred
    rows needs as many steps as one of a thousand, hence `min_steps`.

    >>> MLPConfig(hidden=(32, 8), lr=0.01).to_command()
    ['widemargin', 'compare', '--hidden', '32', '8', '--lr', '0.01']
    """

    kind: ClassVar[str] = "mlp_config"
    command: ClassVar[tuple[str, ...]] = ("widemargin", "compare")

    hidden: tuple[int, ...] = option(
        (64, 24), "widths of the layers before the class weights, the last the embedding's", low=1
    )
    epochs: float = option(8.0, "passes over the training part", low=0)
    min_steps: int = option(300, "optimizer steps at the least", low=1)
    batch: int = option(16, "rows per step, all of them where there are fewer", low=1)
    lr: float = option(0.03, "peak learning rate", low=0, open_low=True)
    warmup: float = option(0.1, "share of the steps that lead up to the peak", low=0, high=1, open_high=True)
    weight_decay: float = option(0.3, "decoupled (AdamW), on matrices whose length matters", low=0)
    dropout: float = option(0.2, "share of hidden units left out in each training step", low=0, high=1, open_high=True)
    label_smoothing: float = option(
        0.0, "probability mass spread over the other classes", low=0, high=1, open_high=True
    )

    def with_layers(self, num_layers: int) -> MLPConfig:
        """The same with another depth: `num_layers` matrices, the class weights included."""
        if num_layers < 2:
            raise InputError(f"layers counts the class weights too and must be at least 2, got {num_layers}")
        first, last = self.hidden[0], self.hidden[-1]
        return replace(self, hidden=(first,) * (num_layers - 2) + (last,))

    def steps_and_batch(self, num_rows: int) -> tuple[int, int]:
        """Optimizer steps, and rows in each, for a training part of so many rows."""
        batch = min(self.batch, num_rows)
        return max(self.min_steps, round(self.epochs * num_rows / batch)), batch


# Options that every command on tables shares.


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Where data sets are found."""
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")


def add_mlp_options(parser: argparse.ArgumentParser) -> None:
    """How the models are trained; the defaults are those of `MLPConfig`, the same for all tables."""
    group = parser.add_argument_group("network and training (the same defaults for all tables)")
    group.add_argument("--layers", type=int, help="matrices, the class weights included (default 3)")
    add_arguments(group, MLPConfig)


def add_fold_options(parser: argparse.ArgumentParser) -> None:
    """How the rows are split into folds."""
    parser.add_argument("--cv-repeats", type=int, default=10, help="random partitions (default 10)")
    parser.add_argument("--folds", type=int, default=10, help="parts of each (default 10)")
    parser.add_argument(
        "--stratify",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep the shares of the classes in every part, or never do (default: where a class has fewer rows than "
        "there are folds; recipes of the paper: never)",
    )
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
    found = MLPConfig(**given_values(options, MLPConfig))
    if options.layers is None:
        return found
    if options.hidden is None:
        return found.with_layers(options.layers)
    if options.layers != len(options.hidden) + 1:
        raise InputError(f"--layers {options.layers} does not fit --hidden with {len(options.hidden)} widths")
    return found
