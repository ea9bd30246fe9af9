"""`MLPConfig`: how every small network on a table is built and trained; and options that commands on tables share."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..io.errors import InputError, spell_option
from ..io.options import Config, add_arguments, document_options, given_values, option

DEFAULT_LOSS = "arcgrad(s=5)"
"""The loss of `MarginClassifier` and `fit` unless another is named."""
DEFAULT_BASELINE_SECONDS = 60.0
"""Seconds of each baseline on each table."""


@document_options
@dataclass(frozen=True, repr=False)
class MLPConfig(Config):
    """A ReLU network under a loss, trained with AdamW, a short warm-up and a cosine to zero.

    The defaults suit tables of a hundred to 1,300 training rows, such as the paper's; `for_table` has the rule for all
    sizes, which `compare` and `MarginClassifier` follow. The last of the `hidden` layers, the embedding, has no ReLU,
    so that angles use the whole sphere; `(64, 24)` and the class weights are the paper's three layers. A table of a
    hundred rows needs as many steps as one of a thousand, hence `min_steps`.

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
    val_fraction: float = option(
        0.0, "share of the training rows held out for early stopping; 0 for none", low=0, high=1, open_high=True
    )
    patience: int = option(15, "of 50 checks, how many may pass without a better one before training stops", low=1)
    screening: float = option(
        0.0, "how strongly columns are weighted by their own relation to the class (0 not at all, 1 fully)", low=0
    )
    max_components: int = option(0, "principal components that a wide table is projected to; 0 for none", low=0)

    @classmethod
    def for_table(cls, num_rows: int, num_columns: int, num_classes: int, **given: Any) -> MLPConfig:
        """The settings for a training part of this size, continuous in rows, columns (encoded) and classes.

        Up to `SMALL_ROWS` rows, 128 columns and 16 classes they are the defaults. With more rows, r times `SMALL_ROWS`,
        batches and layers grow and rate, decay and dropout fall; many classes need a wider embedding, and a layer more
        between; if there are many columns compared with rows, columns related to the class get more weight, and the
        columns are projected to principal components. `given` values are taken as they are.

        >>> MLPConfig.for_table(1_000, 20, 3) == MLPConfig()
        True
        >>> MLPConfig.for_table(1_000, 20, 3, lr=0.01) == MLPConfig(lr=0.01)
        True
        """
        return cls(**{**_rule_values(num_rows, num_columns, num_classes), **given})

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


SMALL_ROWS = 1_300
"""Training rows up to which a table gets the default settings: the largest of the paper's sets has 1,235."""
MIN_WIDE_COLUMNS = 128
"""Encoded columns from which on a table may count as wide."""
MIN_VAL_TRAINING_ROWS, MAX_VAL_ROWS = 4_000, 5_000
"""Training rows from which on some are held out for early stopping, and how many at the most."""


def _rule_values(num_rows: int, num_columns: int, num_classes: int) -> dict[str, Any]:
    """The fields of `MLPConfig.for_table` that differ from the defaults."""
    r = max(1.0, num_rows / SMALL_ROWS)
    c = max(1.0, num_classes / 16)
    values: dict[str, Any] = {}
    if r > 1 or c > 1:
        width = min(512.0, 64 * r**0.3 * c**0.9)
        # More layers need more rows of each class: with fewer they fit the training rows and nothing else.
        rows_per_class = num_rows / num_classes if r > 1 else 0.0
        between = [width] * (rows_per_class >= 1_000) + [0.75 * width] * (rows_per_class >= 500)
        embedding = min(128.0, 24 * r**0.15 * c**0.5)
        values["hidden"] = tuple(_round_width(size) for size in (width, *between, embedding))
        values["batch"] = min(512, round(16 * r**0.6))
        values["lr"] = _round_digits(0.03 * r**-0.4)
        values["weight_decay"] = _round_digits(0.3 / (r**0.6 * c))
        values["dropout"] = _round_digits(0.2 * r**-0.3)
        values["epochs"] = _round_digits(8 * min(r, 15.0) ** 0.45 * max(1.0, r / 15.0) ** -0.45)
    if num_rows >= MIN_VAL_TRAINING_ROWS:
        values["val_fraction"] = _round_digits(min(0.1, MAX_VAL_ROWS / num_rows))
    screening = _clip(math.log10(num_columns / num_rows) + 2) * _clip(math.log2(num_columns / MIN_WIDE_COLUMNS))
    if screening > 0:
        values["screening"] = _round_digits(screening)
        values["max_components"] = min(num_columns, max(MIN_WIDE_COLUMNS, num_rows // 100))
    return values


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))


def _round_width(width: float) -> int:
    return 8 * round(width / 8)


def _round_digits(value: float) -> float:
    """Three significant digits: settings are read by people."""
    return float(f"{value:.3g}")


# Options that every command on tables shares.


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """How a table is read."""
    parser.add_argument("--target", metavar="COLUMN", help="column with the classes (default: the last)")
    parser.add_argument(
        "--target-is-class",
        action="store_true",
        help="treat a numeric target as classes, however many distinct values it has",
    )
    parser.add_argument(
        "--decimal",
        choices=[",", "."],
        metavar="SIGN",
        help="decimal sign (, or .) of ambiguous columns, such as 1,234",
    )


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Where data sets are found."""
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")


def add_mlp_options(parser: argparse.ArgumentParser) -> None:
    """How the models are trained; what is not given follows the table by `MLPConfig.for_table`."""
    group = parser.add_argument_group(
        f"network and training (defaults: up to {SMALL_ROWS:,} training rows; they follow the size of larger tables)"
    )
    group.add_argument("--layers", type=int, help="matrices, the class weights included (default 3)")
    add_arguments(group, MLPConfig)


def add_fold_options(parser: argparse.ArgumentParser, *, follow_rows: bool = False) -> None:
    """How the rows are split into folds; with `follow_rows` a table's own number of rows decides how often."""
    repeats, folds = (None, None) if follow_rows else (MAX_CV_REPEATS, MAX_FOLDS)
    fewer_repeats = ", fewer for tables of more than 2,000 rows, once from 20,000 on" if follow_rows else ""
    fewer_folds = f", {MIN_FOLDS_OF_LARGE_TABLES} from {MANY_ROWS:,} rows on" if follow_rows else ""
    help_repeats = f"random partitions (default {MAX_CV_REPEATS}{fewer_repeats})"
    parser.add_argument("--cv-repeats", type=int, default=repeats, help=help_repeats)
    parser.add_argument("--folds", type=int, default=folds, help=f"parts of each (default {MAX_FOLDS}{fewer_folds})")
    parser.add_argument(
        "--stratify",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep the shares of the classes in every part (default: where a class has fewer rows than folds)",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default 0)")


MAX_CV_REPEATS, MAX_FOLDS = 10, 10
MIN_FOLDS_OF_LARGE_TABLES, MANY_ROWS = 5, 50_000


def default_repeats_and_folds(num_rows: int) -> tuple[int, int]:
    """How often, and into how many parts, a table is split: means of large test parts need fewer of them.

    >>> [default_repeats_and_folds(rows) for rows in (150, 2_000, 5_000, 20_000, 100_000)]
    [(10, 10), (10, 10), (4, 10), (1, 10), (1, 5)]
    """
    repeats = max(1, min(MAX_CV_REPEATS, round(20_000 / max(1, num_rows))))
    return repeats, MAX_FOLDS if num_rows < MANY_ROWS else MIN_FOLDS_OF_LARGE_TABLES


DEFAULT_TUNE_SECONDS = 300.0


def add_tuning_options(parser: argparse.ArgumentParser) -> None:
    """Whether, and for how long, losses are tuned."""
    parser.add_argument(
        "--tune",
        type=float,
        nargs="?",
        const=DEFAULT_TUNE_SECONDS,
        metavar="SECONDS",
        help="give every loss its own rate, decay, s and m by inner folds, equally many trials for each, in about so "
        f"many seconds per table (default {DEFAULT_TUNE_SECONDS:g})",
    )
    parser.add_argument(
        "--tune-trials", type=int, metavar="COUNT", help="trials of every loss, instead of a number of seconds"
    )


def add_output_options(parser: argparse.ArgumentParser, default: str) -> None:
    """Where results go, and on how many processes they are made."""
    parser.add_argument("--out", metavar="DIR", help=f"folder for results.jsonl and report.html (default {default})")
    parser.add_argument(
        "--overwrite", action="store_true", help="start over instead of continuing with the stored results"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")


def command_line(options: argparse.Namespace) -> str:
    """The command as it was typed."""
    return shlex.join(("widemargin", *options.argv))


def mlp_values_from_options(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of `MLPConfig` that were given; the table's size decides about the others."""
    given = given_values(options, MLPConfig)
    if options.layers is None:
        return given
    if options.hidden is None:
        return {**given, "hidden": MLPConfig().with_layers(options.layers).hidden}
    if options.layers != len(options.hidden) + 1:
        raise InputError(
            f"{spell_option('layers', options.layers)} does not fit {len(options.hidden)} widths in "
            f"{spell_option('hidden')}"
        )
    return given
