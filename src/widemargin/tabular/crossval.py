"""Cross-validation of one loss on one table: all folds of all repeats train at once.

Every loss sees the same partitions, the same starts and the same order of rows for the same seed, so
that differences between losses are differences of the losses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.tabular.encode import check_width, encode
from ..data.tabular.table import Table
from ..io.errors import InputError, spell_option
from ..losses.base import Loss
from ..losses.grammar import Sum
from ..metrics.classification import FoldEvaluator, FoldMetrics, fit_temperature, fit_temperatures, softmax
from .batched import ModelSettings, StackedTrainer, stack_angles
from .config import MLPConfig
from .model_stacks import StackedModels, TrainingJob, count_weights, part_logits, predictions
from .results import MAX_TRAIN_ACCURACY_ROWS

INNER_FOLDS = 3
"""Inner folds of a training part, for temperatures and for tuning."""
# Largest numbers of weights and of drawn rows of a model: more is a mistake in an option and would exhaust memory.
MAX_MODEL_WEIGHTS, MAX_MODEL_SAMPLES = 1 << 27, 1 << 28
MAX_SEED = (1 << 31) - 1


@dataclass(frozen=True)
class Partition:
    """Which rows each model learns from, and which it is tested on."""

    training: NDArray[np.int64]
    test: NDArray[np.int64]


class Score(NamedTuple):
    """Scores of one loss on one table."""

    folds: list[float]
    """Accuracy in percent of every fold of every repeat."""
    angles: dict[str, float]
    """WC-Intra, W-Inter and C-Inter of the training parts in radians, mean over the models."""
    seconds: float
    train: Sequence[float] = ()
    """Accuracy in percent of every model on (at most MAX_TRAIN_ACCURACY_ROWS of) its training rows, without dropout."""
    evaluation: FoldMetrics | None = None
    """Every metric of every fold, and confusions and reliability over all folds."""


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
    """The rows, or a random sample of `max_rows` of them in which every class keeps its share.

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
        raise InputError(f"{spell_option('cv_repeats')} must be at least 1, got {cv_repeats}")
    if not 2 <= folds <= num_rows:
        raise InputError(f"{spell_option('folds')} must be between 2 and the number of rows ({num_rows}), got {folds}")
    if not 0 <= seed <= MAX_SEED:
        raise InputError(f"{spell_option('seed')} must be between 0 and {MAX_SEED}, got {seed}")


def check_cross_validation(table: Table, cv_repeats: int, folds: int, seed: int, config: MLPConfig) -> None:
    """Refuse settings that cannot work on a table, before any training."""
    _check_split(len(table), cv_repeats, folds, seed)
    weights = count_weights(check_width(table), config, len(table.class_names))
    if weights > MAX_MODEL_WEIGHTS:
        raise InputError(
            f"{table.name}: a model has {weights} weights; {MAX_MODEL_WEIGHTS} are the limit, use a smaller "
            f"{spell_option('hidden')}"
        )
    if (
        config.epochs * len(table) > MAX_MODEL_SAMPLES
        or config.min_steps * min(config.batch, len(table)) > MAX_MODEL_SAMPLES
    ):
        raise InputError(
            f"{table.name}: a model draws more than {MAX_MODEL_SAMPLES} rows; use fewer {spell_option('epochs')} or "
            f"{spell_option('min_steps')}"
        )


def cross_validate(
    table: Table,
    loss: str | Sum | Loss,
    split: Sequence[Partition],
    config: MLPConfig,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    on_progress: Callable[[float], None] | None = None,
    calibrate: bool = False,
) -> Score:
    """Train on every training part at once, and predict the test parts; `on_progress` gets shares of the work.

    With `calibrate` the probabilities of every model are those of its logits over a temperature, fitted to rows of its
    training part that the weights were not fitted to: those held out for early stopping, or where nothing is held out
    those of `INNER_FOLDS` inner folds, on which further models are trained.
    """
    begun = time.perf_counter()
    encoded = encode(table)
    models = StackedModels(encoded, table, loss, config, seed, dtype)
    jobs = [TrainingJob(part.training, (seed, k)) for k, part in enumerate(split)]
    inner = inner_partitions(split, table.y, seed) if calibrate and not config.val_fraction else []
    share = 1.0 / (1 + INNER_FOLDS) if inner else 1.0
    temperatures: list[float] | None = None
    if inner:
        inner_jobs = [TrainingJob(part.training, inner_seed(seed, k)) for k, part in enumerate(inner)]
        temperatures = inner_temperatures(models, inner, inner_jobs, scale_progress(on_progress, 1.0 - share))
    return evaluate_models(models, split, jobs, temperatures, scale_progress(on_progress, share), begun, calibrate)


def evaluate_models(
    models: StackedModels,
    split: Sequence[Partition],
    jobs: Sequence[TrainingJob],
    temperatures: Sequence[float] | None,
    on_progress: Callable[[float], None] | None,
    begun: float,
    calibrate: bool = False,
    settings: ModelSettings | None = None,
) -> Score:
    """Train the models of all partitions, and compute every figure of their test parts."""
    y, seed = models.table.y, models.seed
    evaluator = FoldEvaluator(len(models.table.class_names))
    train: list[float] = []
    angles: list[torch.Tensor] = []
    for block, trainer, validation in models.train(jobs, on_progress, settings):
        chosen = [split[k] for k in block]
        if calibrate and validation is not None:
            labels = [y[rows] for rows in validation]
            fitted: list[float] | None = fit_temperatures(
                list(zip(part_logits(trainer, validation), labels, strict=True))
            )
        else:
            fitted = None if temperatures is None else [temperatures[k] for k in block]
        _add_test_parts(evaluator, trainer, [part.test for part in chosen], y, fitted)
        train_samples = [
            stratified_sample(split[k].training, y, MAX_TRAIN_ACCURACY_ROWS, [seed, int(k), 4]) for k in block
        ]
        train += _accuracies(trainer, train_samples, y)
        angles.append(stack_angles(trainer, [part.training for part in chosen]))
    wc_intra, w_inter, c_inter = torch.cat(angles).unbind(1)
    # A model that diverged makes the first two NaN, and is not passed over; of one class alone the third is unknown.
    named = {"wc_intra": wc_intra.mean(), "w_inter": w_inter.mean(), "c_inter": c_inter.nanmean()}
    angles_of_all = {name: value.item() for name, value in named.items()}
    evaluation = evaluator.evaluation()
    return Score(evaluation.metrics["accuracy"], angles_of_all, time.perf_counter() - begun, train, evaluation)


def inner_partitions(split: Sequence[Partition], y: NDArray[np.int64], seed: int, folds: int = 0) -> list[Partition]:
    """Each training part split into stratified inner folds (`INNER_FOLDS` by default), one after the other."""
    folds = folds or INNER_FOLDS
    found = []
    for k, part in enumerate(split):
        rows = part.training
        order = np.random.default_rng([seed, k, 6]).permutation(len(rows))
        order = order[np.argsort(y[rows][order], kind="stable")]
        for fold in range(folds):
            tested = np.zeros(len(rows), np.bool_)
            tested[order[fold::folds]] = True
            found.append(Partition(rows[~tested], rows[tested]))
    return found


def inner_seed(seed: int, place: int) -> tuple[int, int, int]:
    """The seed of an inner model, by its index among all inner partitions."""
    return seed, place // INNER_FOLDS, 7 + place % INNER_FOLDS


def inner_temperatures(
    models: StackedModels,
    inner: Sequence[Partition],
    jobs: Sequence[TrainingJob],
    on_progress: Callable[[float], None] | None,
) -> list[float]:
    """The temperature of each outer fold, from the logits of its inner folds."""
    y = models.table.y
    fitted: list[float] = []
    waiting: list[tuple[NDArray[np.float64], NDArray[np.int64]]] = []
    for block, trainer, _ in models.train(jobs, on_progress):
        parts = [inner[k].test for k in block]
        waiting += zip(part_logits(trainer, parts), (y[part] for part in parts), strict=True)
        while len(waiting) >= INNER_FOLDS:
            logits, labels = zip(*waiting[:INNER_FOLDS], strict=True)
            fitted.append(fit_temperature(np.concatenate(logits), np.concatenate(labels)))
            del waiting[:INNER_FOLDS]
    return fitted


def scale_progress(on_progress: Callable[[float], None] | None, share: float) -> Callable[[float], None] | None:
    """A callback for a part of the work that is this share of the whole."""
    return None if on_progress is None else lambda done: on_progress(done * share)


def _accuracies(trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]], y: NDArray[np.int64]) -> list[float]:
    """Percent right of each model on its part of the rows."""
    predicted = predictions(trainer, parts)
    return [float((predicted[k, : len(part)] == y[part]).mean() * 100.0) for k, part in enumerate(parts)]


def _add_test_parts(
    evaluator: FoldEvaluator,
    trainer: StackedTrainer,
    parts: Sequence[NDArray[np.int64]],
    y: NDArray[np.int64],
    temperatures: Sequence[float] | None,
) -> None:
    """Add the metrics of each model on its part of the rows, with the probabilities at its temperature."""
    predicted, logits = predictions(trainer, parts), part_logits(trainer, parts)
    for k, part in enumerate(parts):
        plain, answers = softmax(logits[k]), predicted[k, : len(part)]
        if temperatures is None:
            evaluator.add(y[part], plain, answers)
            continue
        scaled = softmax(logits[k], temperatures[k])
        evaluator.add(y[part], scaled, answers, uncalibrated=plain, temperature=temperatures[k])
