"""Cross-validation of one loss on one table: all folds of all repeats train at once.

Every loss sees the same partitions, the same starts and the same order of rows for the same seed, so
that differences between losses are differences of the losses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.tabular.encode import EncodedTable, check_width, decorrelation, encode, scaling
from ..data.tabular.table import Table
from ..io.errors import InputError
from ..losses.base import Loss
from ..losses.grammar import Sum
from ..metrics.classification import FoldEvaluator, FoldMetrics, softmax
from .batched import StackedTable, StackedTrainer, stack_angles
from .config import MLPConfig
from .results import MAX_TRAIN_ACCURACY_ROWS

# Weights of a stack of models: with gradients and moments four times as many numbers, well below 100 MiB.
_MAX_STACK_WEIGHTS = 1 << 22
# Rows that a stack draws in all its training: its order is kept, 8 bytes for each.
_MAX_STACK_SAMPLES = 1 << 25
_PREDICT_CHUNK_VALUES = 1 << 22
# What one model may have and draw: more is a slip in an option, and would end in an allocation that fails.
MAX_MODEL_WEIGHTS, MAX_MODEL_SAMPLES = 1 << 27, 1 << 28
MAX_SEED = (1 << 31) - 1


@dataclass(frozen=True)
class Partition:
    """Which rows each model learns from, and which it is tested on."""

    training: NDArray[np.int64]
    test: NDArray[np.int64]


class Score(NamedTuple):
    """What one loss reached on one table."""

    folds: list[float]
    """Accuracy in percent of every fold of every repeat."""
    angles: dict[str, float]
    """WC-Intra, W-Inter and C-Inter of the training parts in radians, mean over the models."""
    seconds: float
    train: Sequence[float] = ()
    """Accuracy in percent of every model on (at most MAX_TRAIN_ACCURACY_ROWS of) its training rows, without dropout."""
    evaluation: FoldMetrics | None = None
    """Every metric of every fold, and what the folds have together: confusions, reliability."""


def partitions(y: NDArray[np.int64], cv_repeats: int, folds: int, seed: int, stratify: bool = False) -> list[Partition]:
    """`cv_repeats` random partitions into `folds` parts; stratified ones deal the rows of each class out in turn."""
    rows = len(y)
    _check_split(rows, cv_repeats, folds, seed)
    found = []
    for repeat in range(cv_repeats):
        order = np.random.default_rng([seed, repeat]).permutation(rows)
        if stratify:
            order = order[np.argsort(y[order], kind="stable")]
            parts = [order[start::folds] for start in range(folds)]
        else:
            parts = np.array_split(order, folds)
        for part in parts:
            tested = np.zeros(rows, np.bool_)
            tested[part] = True
            found.append(Partition(np.flatnonzero(~tested), np.flatnonzero(tested)))
    return found


def stratified_sample(
    rows: NDArray[np.int64], y: NDArray[np.int64], max_rows: int, seed: Sequence[int]
) -> NDArray[np.int64]:
    """The rows, or `max_rows` of them drawn by chance in which every class keeps its share.

    >>> y = np.array([0] * 80 + [1] * 20)
    >>> np.bincount(y[stratified_sample(np.arange(100), y, 10, [0])]).tolist()
    [8, 2]
    """
    if len(rows) <= max_rows:
        return rows
    order = np.random.default_rng(seed).permutation(rows)
    order = order[np.argsort(y[order], kind="stable")]
    places = ((np.arange(max_rows) + 0.5) * len(order) / max_rows).astype(np.int64)  # at equal distances: stratified
    return np.sort(order[places])


def _check_split(num_rows: int, cv_repeats: int, folds: int, seed: int) -> None:
    if cv_repeats < 1:
        raise InputError(f"cv_repeats must be at least 1, got {cv_repeats}")
    if not 2 <= folds <= num_rows:
        raise InputError(f"folds must be between 2 and the number of rows ({num_rows}), got {folds}")
    if not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed must be between 0 and {MAX_SEED}, got {seed}")


def check_cross_validation(table: Table, cv_repeats: int, folds: int, seed: int, config: MLPConfig) -> None:
    """Refuse settings that cannot work on a table, before any training."""
    _check_split(len(table), cv_repeats, folds, seed)
    weights = _count_weights(check_width(table), config, len(table.class_names))
    if weights > MAX_MODEL_WEIGHTS:
        raise InputError(
            f"{table.name}: a model has {weights} weights; {MAX_MODEL_WEIGHTS} are the limit, take fewer hidden"
        )
    if (
        config.epochs * len(table) > MAX_MODEL_SAMPLES
        or config.min_steps * min(config.batch, len(table)) > MAX_MODEL_SAMPLES
    ):
        raise InputError(
            f"{table.name}: a model draws more than {MAX_MODEL_SAMPLES} rows; take fewer epochs or min_steps"
        )


def _count_weights(inputs: int, config: MLPConfig, num_classes: int) -> int:
    return sum(a * b for a, b in pairwise((inputs, *config.hidden, num_classes)))


def cross_validate(
    table: Table,
    loss: str | Sum | Loss,
    split: Sequence[Partition],
    config: MLPConfig,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    on_progress: Callable[[float], None] | None = None,
) -> Score:
    """Train on every training part at once, and predict the test parts; `on_progress` gets shares of the work."""
    begun = time.perf_counter()
    encoded = encode(table)
    steps_and_batch = config.steps_and_batch(min(len(part.training) for part in split))
    weights = _count_weights(encoded.x.shape[1], config, len(table.class_names))
    models_per_stack = max(
        1,
        min(len(split), _MAX_STACK_WEIGHTS // weights, _MAX_STACK_SAMPLES // (steps_and_batch[0] * steps_and_batch[1])),
    )
    stacks = math.ceil(len(split) / models_per_stack)
    evaluator = FoldEvaluator(len(table.class_names))
    train: list[float] = []
    angles: list[torch.Tensor] = []
    for block in np.array_split(np.arange(len(split)), stacks):
        chosen = [split[k] for k in block]
        training = [part.training for part in chosen]
        stacked_table = build_stacked_table(encoded, table.y, len(table.class_names), training, dtype)
        trainer = StackedTrainer(
            loss, stacked_table, training, [(seed, int(k)) for k in block], config, steps_and_batch
        )
        trainer.run(
            on_progress=None if on_progress is None else _scale_progress(on_progress, steps_and_batch[0] * stacks)
        )
        _add_test_parts(evaluator, trainer, [part.test for part in chosen], table.y)
        train_samples = [
            stratified_sample(split[k].training, table.y, MAX_TRAIN_ACCURACY_ROWS, [seed, int(k), 4]) for k in block
        ]
        train += _accuracies(trainer, train_samples, table.y)
        angles.append(stack_angles(trainer, training))
    wc_intra, w_inter, c_inter = torch.cat(angles).unbind(1)
    # A model that diverged makes the first two NaN, and is not passed over; of one class alone the third is unknown.
    named = {"wc_intra": wc_intra.mean(), "w_inter": w_inter.mean(), "c_inter": c_inter.nanmean()}
    angles_of_all = {name: value.item() for name, value in named.items()}
    evaluation = evaluator.evaluation()
    return Score(evaluation.metrics["accuracy"], angles_of_all, time.perf_counter() - begun, train, evaluation)


def _scale_progress(on_progress: Callable[[float], None], total_steps: int) -> Callable[[int], None]:
    return lambda done: on_progress(done / total_steps)


def build_stacked_table(
    encoded: EncodedTable,
    y: NDArray[np.int64],
    num_classes: int,
    parts: Sequence[NDArray[np.int64]],
    dtype: torch.dtype = torch.float32,
) -> StackedTable:
    """A table as the models that learn from `parts` of it see it."""

    def tensor(values: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy(values).to(dtype)

    scales = scaling(encoded, parts)
    fill = None if scales.fill is None else tensor(scales.fill).unsqueeze(1)
    shift, scale = tensor(scales.shift).unsqueeze(1), tensor(scales.scale).unsqueeze(1)
    decorrelation_matrix = decorrelation(encoded, parts, scales)
    return StackedTable(
        tensor(encoded.x),
        torch.from_numpy(y),
        num_classes,
        shift,
        scale,
        fill,
        None if decorrelation_matrix is None else tensor(decorrelation_matrix),
    )


def _accuracies(trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]], y: NDArray[np.int64]) -> list[float]:
    """Percent right of each model on its part of the rows."""
    predicted = predictions(trainer, parts)
    return [float((predicted[k, : len(part)] == y[part]).mean() * 100.0) for k, part in enumerate(parts)]


def _add_test_parts(
    evaluator: FoldEvaluator, trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]], y: NDArray[np.int64]
) -> None:
    """Add the metrics of each model on its part of the rows, with the probabilities of its logits as they are."""
    predicted, logits = predictions(trainer, parts), _apply_to_parts(trainer.logits, trainer, parts)
    for k, part in enumerate(parts):
        evaluator.add(y[part], softmax(logits[k, : len(part)].numpy()), predicted[k, : len(part)])


def predictions(trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Predicted classes [K, most] of each model's rows; shorter parts are filled up."""
    found: NDArray[np.int64] = _apply_to_parts(trainer.predict, trainer, parts).numpy()
    return found


def _apply_to_parts(
    function: Callable[[torch.Tensor], torch.Tensor], trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]]
) -> torch.Tensor:
    """`function` of each model's rows [K, most], in chunks; shorter parts are filled up."""
    most = max(len(part) for part in parts)
    padded = torch.from_numpy(np.stack([np.resize(part, most) for part in parts]))
    widest = max(trainer.table.x.shape[1], *trainer.config.hidden, trainer.table.num_classes)
    step = max(1, _PREDICT_CHUNK_VALUES // (len(parts) * widest))
    return torch.cat([function(padded[:, start : start + step]) for start in range(0, most, step)], 1)
