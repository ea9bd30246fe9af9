"""`MLPConfig`: how every small network on a table is built and trained; and its command-line options.

The defaults are the same for all tables.
"""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from ..io.errors import InputError

_MAX_SETTING = 1e300


@dataclass(frozen=True)
class MLPConfig:
    """A ReLU network under a loss, trained with AdamW, a short warm-up and a cosine to zero.

    hidden: widths of the layers before the class weights; the last is the embedding, which has no ReLU, so that
        angles use the whole sphere. `(64, 24)` and the class weights are the paper's three layers.
    epochs, min_steps: passes over the training part, but never fewer optimizer steps than `min_steps`:
        a table of a hundred rows needs as many steps as one of a thousand.
    batch: rows per step (all of them where there are fewer).
    lr, warmup: peak learning rate, and the share of the steps that lead up to it.
    weight_decay: decoupled (AdamW), on matrices whose length matters.
    dropout: share of hidden units left out in each training step.
    label_smoothing: probability mass spread over the other classes.
    """

    hidden: tuple[int, ...] = (64, 24)
    epochs: float = 8.0
    min_steps: int = 300
    batch: int = 16
    lr: float = 0.03
    warmup: float = 0.1
    weight_decay: float = 0.3
    dropout: float = 0.2
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not self.hidden or not all(_is_instance_not_bool(Integral, width) and width >= 1 for width in self.hidden):
            raise InputError(f"hidden must be whole numbers of at least 1, got {self.hidden}")
        for name, low in {"min_steps": 1, "batch": 1}.items():
            if not _is_instance_not_bool(Integral, getattr(self, name)) or getattr(self, name) < low:
                raise InputError(f"{name} must be a whole number of at least {low}, got {getattr(self, name)!r}")
        for name in ("epochs", "warmup", "weight_decay", "dropout", "label_smoothing"):
            if not _is_instance_not_bool(Real, getattr(self, name)) or not 0 <= getattr(self, name) < _MAX_SETTING:
                raise InputError(f"{name} must be a number from 0 to {_MAX_SETTING:g}, got {getattr(self, name)!r}")
        if not _is_instance_not_bool(Real, self.lr) or not 0 < self.lr < _MAX_SETTING:
            raise InputError(f"lr must be a number above 0, got {self.lr!r}")
        for name in ("warmup", "dropout", "label_smoothing"):
            if getattr(self, name) >= 1:
                raise InputError(f"{name} must be below 1, got {getattr(self, name)}")

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


def _is_instance_not_bool(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


# Options that every command on tables shares.

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

    given = {name.replace("-", "_"): getattr(options, name.replace("-", "_")) for name, _, _ in _MLP_OPTIONS}
    found = replace(MLPConfig(), **{name: value for name, value in given.items() if value is not None})
    if options.hidden is not None:
        if options.layers is not None and options.layers != len(options.hidden) + 1:
            raise InputError(f"--layers {options.layers} does not fit --hidden with {len(options.hidden)} widths")
        return replace(found, hidden=tuple(options.hidden))
    return found if options.layers is None else found.with_layers(options.layers)
