"""Fit one model on rows: hold rows out, scale, tune and calibrate on inner folds, train.

`MarginClassifier.fit` reads its X and y and calls `fit_rows`, which gets rows as numbers, classes as codes, and options
that are checked already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..losses.base import Loss
from ..losses.grammar import Sum, replace_options
from ..metrics.classification import fit_temperature
from .config import MLPConfig
from .crossval import (
    INNER_FOLDS,
    Partition,
    inner_partitions,
    inner_seed,
    inner_temperatures,
    scale_progress,
    stratified_sample,
)
from .early_stopping import train_validation_split
from .fit_options import FitOptions
from .metric_choice import BALANCED_METRIC_THRESHOLD
from .model_stacks import TrainingJob
from .novelty import MAX_FIT_ROWS, NoveltyDetector
from .single import (
    InputModels,
    RowSource,
    TrainedMLP,
    TrainingHistory,
    learn_preprocessing,
    network_inputs,
    train_single,
)
from .tune import tune_single

MAX_INNER_ROWS = 100_000
"""Rows used for tuning and for the temperature on inner folds: a stratified sample of more."""
_READING_SHARE = 0.1  # of the progress bar, estimated

ProgressCallback = Callable[[float], None] | None


@dataclass(frozen=True)
class Fit:
    """A trained model and what was decided on the way."""

    model: TrainedMLP
    loss: Sum | Loss
    """The loss with tuned values."""
    config: MLPConfig
    """The settings with tuned values."""
    tuned: dict[str, float] | None
    """Values that tuning chose (lr, weight_decay, s, m)."""
    temperature: float
    seed: int
    class_counts: list[int]
    """Training rows of each class, without those held out."""
    novelty: NoveltyDetector
    history: TrainingHistory


def fit_rows(
    source: RowSource,
    codes: NDArray[np.int64],
    num_classes: int,
    options: FitOptions,
    *,
    is_numeric: NDArray[np.bool_] | None = None,
    indicators: NDArray[np.bool_] | None = None,
    weights: torch.Tensor | None = None,
    on_progress: ProgressCallback = None,
) -> Fit:
    """Train one model.

    Args:
        source: rows.
        codes: class of each row, 0 … C−1; with `indicators` groups of rows that are held out alike.
        num_classes: C.
        options: loss and settings.
        is_numeric: [F], False for levels of categories, which are not scaled; None if all are numbers.
        indicators: [n, C], the labels of each row if rows have several.
        weights: [n], factors of the rows' losses.
        on_progress: gets shares of the work as they are done.
    """
    config, seed = options.config, options.seed
    training, held_out = (
        train_validation_split(codes, config.val_fraction, [seed])
        if config.val_fraction
        else (np.arange(len(source)), None)
    )
    if weights is not None:
        weights = weights * (len(training) / weights[torch.from_numpy(training)].sum())
    scaler, table = learn_preprocessing(
        source,
        codes,
        num_classes + (indicators is not None),  # rows without any label are a group of their own
        training,
        config,
        is_numeric=is_numeric,
        standardize=options.standardize,
        seed=seed,
    )
    table = replace(table, num_classes=num_classes)
    reading_progress = scale_progress(on_progress, _READING_SHARE)
    inputs = network_inputs(source, scaler, table, options.dtype, options.device, reading_progress)
    uses_inner_folds = indicators is None and (options.needs_tuning or (options.calibrate and held_out is None))
    share = (1.0 - _READING_SHARE) * (0.5 if uses_inner_folds else 1.0)
    inner = _InnerFit(options.loss, config)
    if uses_inner_folds:
        inner = _fit_inner_folds(inputs, codes, num_classes, options, weights, scale_progress(on_progress, share))
    model, history = train_single(
        inner.loss,
        scaler,
        table,
        inputs,
        torch.from_numpy(codes if indicators is None else indicators),
        (training, held_out),
        inner.config,
        seed=seed,
        sample_weight=weights,
        on_progress=print if options.verbose else None,
        on_steps=scale_progress(on_progress, share),
    )
    temperature = inner.temperature
    if held_out is not None and indicators is None and options.calibrate:
        temperature = _held_out_temperature(model, inputs, codes, held_out)
    return Fit(
        model,
        inner.loss,
        inner.config,
        inner.tuned,
        temperature,
        seed,
        np.bincount(codes[training], minlength=num_classes).tolist(),
        _learn_novelty(inputs, codes, seed),
        history,
    )


def _held_out_temperature(
    model: TrainedMLP, inputs: torch.Tensor, codes: NDArray[np.int64], held_out: NDArray[np.int64]
) -> float:
    rows = inputs[torch.from_numpy(held_out)].to("cpu", torch.float64)
    logits = model.head.logits(model.network_outputs(rows).unsqueeze(0))[0]
    return fit_temperature(logits.numpy(), codes[held_out])


def _learn_novelty(inputs: torch.Tensor, codes: NDArray[np.int64], seed: int) -> NoveltyDetector:
    rows = stratified_sample(np.arange(len(codes)), codes, MAX_FIT_ROWS, [seed, 11])
    sample = inputs[torch.from_numpy(rows).to(inputs.device)].to("cpu", torch.float64).numpy()
    return NoveltyDetector.learn(sample, codes[rows], seed)


# ---------------------------------------------------------------- inner folds


class _InnerFit(NamedTuple):
    """Loss and settings, tuned if that was asked for, and the temperature of models on inner folds."""

    loss: Sum | Loss
    config: MLPConfig
    temperature: float = 1.0
    tuned: dict[str, float] | None = None


def _fit_inner_folds(
    inputs: torch.Tensor,
    codes: NDArray[np.int64],
    num_classes: int,
    options: FitOptions,
    weights: torch.Tensor | None,
    on_progress: ProgressCallback,
) -> _InnerFit:
    """Tune on inner folds, or fit only the temperature there."""
    loss, config, seed = options.loss, options.config, options.seed
    rows = stratified_sample(np.arange(len(codes)), codes, MAX_INNER_ROWS, [seed, 9])
    if len(rows) < 4 * INNER_FOLDS:
        return _InnerFit(loss, config)  # an inner fold would have three rows
    chosen = torch.from_numpy(rows)
    models = InputModels.build(
        inputs[chosen.to(inputs.device)].cpu(),
        codes[rows],
        num_classes,
        loss,
        config,
        seed,
        None if weights is None else weights[chosen],
    )
    if not options.needs_tuning:
        everything = np.arange(len(rows))
        inner = inner_partitions([Partition(everything, everything[:0])], codes[rows], seed)
        jobs = [TrainingJob(part.training, inner_seed(seed, k)) for k, part in enumerate(inner)]
        with torch.enable_grad():
            return _InnerFit(loss, config, inner_temperatures(models, inner, jobs, on_progress)[0])
    is_unbalanced = np.bincount(codes).max() >= BALANCED_METRIC_THRESHOLD * len(codes)
    metric = "balanced_accuracy" if is_unbalanced or options.balance else "accuracy"
    with torch.enable_grad():
        tuned = tune_single(
            models, seconds=options.tune_seconds, trials=options.tune_trials, metric=metric, on_progress=on_progress
        )
    if options.verbose:
        values_text = ", ".join(f"{name} {value:g}" for name, value in tuned.values.items())
        print(f"tuned with {tuned.trials} trials: {values_text}")
    values = dict(tuned.values)
    config = replace(config, lr=values.pop("lr"), weight_decay=values.pop("weight_decay"))
    return _InnerFit(
        replace_options(loss, **values) if values else loss,
        config,
        tuned.temperature if options.calibrate else 1.0,
        dict(tuned.values),
    )
