"""`--tune`: select rate, decay, `s` and `m` of every loss on inner folds of each training part (nested).

Every loss has the same number of trials. The first is the loss as it is given with the settings of the table; the
others are spread evenly (a Halton sequence) around it on a logarithmic scale. All trials of all inner folds of all
outer folds are trained as one batched model. Among the trials within one standard error of the best, the one nearest
to the first is selected, so that noise does not change the settings; a model with it is trained on the whole
training part and tested on rows that no trial has used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.tabular.encode import encode
from ..data.tabular.table import Table
from ..io.errors import InputError, format_value, spell_option
from ..losses.base import Loss
from ..losses.grammar import Sum
from ..losses.margin import Margin
from ..metrics.classification import METRICS, compute_metrics, fit_temperature, softmax
from .batched import ModelSettings
from .batched_objective import check_stacked_loss
from .config import DEFAULT_TUNE_SECONDS, MLPConfig
from .crossval import INNER_FOLDS, Partition, Score, evaluate_models, inner_partitions, scale_progress
from .model_stacks import StackedModels, TrainingJob, part_logits, predictions

LR_RANGE, DECAY_RANGE, SCALE_RANGE = 4.0, 10.0, 4.0
"""A trial's rate, decay and `s` lie between the first trial's over this and times this."""
MARGIN_RANGE = 2.0
"""A trial's `m` lies between 0 and the first trial's times this."""
TRIAL_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of trials that a budget in seconds is rounded down to, so that machines of similar speed run the same."""
MAX_TRIALS = 1024
HOLDOUT_FOLDS = 5
"""With early stopping there is one inner test part, one of this many parts of the training part."""
_PILOT_STEPS, _PILOT_MODELS = 10, 64  # as many models as share a step when several trials are made


@dataclass(frozen=True)
class Tuning:
    """What tuning selected for one loss on one table, and how flat the optimum is."""

    trials: int
    inner: str
    chosen: list[dict[str, float]]
    """For each outer fold: lr, weight_decay and, where the loss has them, s and m."""
    flatness: dict[str, float]
    """`within_one_se`: share of trials not worse than the best of their fold by more than a standard error;
    `default_behind`, `median_behind`: how far the first and the median trial are behind the best on inner folds."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"trials": self.trials, "inner": self.inner, "chosen": self.chosen, "flatness": self.flatness}


def tunable_values(loss: str | Sum | Loss) -> dict[str, tuple[float, float, float]]:
    """The numbers `s` and `m` of a loss that can be tuned: value, lowest and highest allowed.

    Whole numbers (A-Softmax's m), schedules, learnable, adaptive and per-class numbers stay as they are, and so does a
    number that a loss hides at its default (ArcGrad's m of 0): with another value it would be another loss.

    >>> tunable_values("arcface(s=20, m=0.1)")["s"], list(tunable_values("adacos")), list(tunable_values("softmax"))
    ((20.0, 0.0, inf), [], [])
    """
    margin = next((part for _, part in check_stacked_loss(loss).parts if isinstance(part, Margin)), None)
    if margin is None:
        return {}
    known = margin.options()
    return {
        name: (float(value), float(known[name][0].low), float(known[name][0].high))
        for name, value in margin.named_values()
        if name in ("s", "m")
        and name not in margin.adaptive_fields
        and known[name][0].kind is float
        and known[name][0].allows_schedule
        and isinstance(value, int | float)
        and not (known[name][0].hide_default and value == known[name][1])
    }


def draw_trials(loss: str | Sum | Loss, config: MLPConfig, count: int, seed: int) -> list[dict[str, float]]:
    """`count` trials: rate and decay, the same for all losses, and the loss's own numbers.

    >>> trials = draw_trials("arcgrad(s=5)", MLPConfig(), 4, seed=0)
    >>> trials[0], len(trials), 5 / 4 <= trials[1]["s"] <= 20
    ({'lr': 0.03, 'weight_decay': 0.3, 's': 5.0}, 4, True)
    """
    from scipy.stats import qmc

    numbers = tunable_values(loss)
    first = {"lr": config.lr, "weight_decay": config.weight_decay, **{name: v for name, (v, _, _) in numbers.items()}}
    points = qmc.Halton(4, seed=seed).random(max(1, count))
    trials = [first]
    for u_lr, u_decay, u_s, u_m in points[: count - 1].tolist():
        trial = {
            "lr": config.lr * LR_RANGE ** (2 * u_lr - 1),
            "weight_decay": config.weight_decay * DECAY_RANGE ** (2 * u_decay - 1),
        }
        for name, (value, low, high) in numbers.items():
            wanted = value * SCALE_RANGE ** (2 * u_s - 1) if name == "s" else value * MARGIN_RANGE * u_m
            trial[name] = min(max(wanted, low), high)
        trials.append(trial)
    return trials


def check_tuning(tune: Any, tune_trials: Any) -> tuple[float | None, int | None]:
    """Seconds and number of trials; None for what is not asked for."""
    trials = None if tune_trials is None else check_whole_number("tune_trials", tune_trials)
    if trials is not None and not 1 <= trials <= MAX_TRIALS:
        raise InputError(f"{spell_option('tune_trials')} must be from 1 to {MAX_TRIALS}, got {trials}")
    if tune is None or tune is False:
        return None, trials
    seconds = DEFAULT_TUNE_SECONDS if tune is True else check_seconds("tune", tune)
    if not seconds > 0:
        raise InputError(f"{spell_option('tune')} must be above 0 seconds, got {seconds:g}")
    return seconds, trials


def check_whole_number(name: str, value: Any) -> int:
    """A setting that is a whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{spell_option(name)} must be a whole number, got {format_value(value)}")
    return int(value)


def check_seconds(name: str, value: Any) -> float:
    """A setting that is a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{spell_option(name)} must be a number of seconds, got {format_value(value)}")
    return float(value)


def choose_trials(budget: float, seconds_per_trial: float) -> int:
    """The number of trials of every loss that fit into a budget in seconds.

    >>> choose_trials(60, 1.7), choose_trials(60, 200)
    (32, 1)
    """
    affordable = budget / max(seconds_per_trial, 1e-9)
    return max(count for count in TRIAL_COUNTS if count <= max(1.0, affordable))


def tune_and_cross_validate(
    table: Table,
    loss: str | Sum | Loss,
    split: Sequence[Partition],
    config: MLPConfig,
    seed: int = 0,
    *,
    trials: int,
    metric: str = "accuracy",
    on_progress: Callable[[float], None] | None = None,
    calibrate: bool = True,
) -> tuple[Score, Tuning]:
    """Tune on inner folds of every training part, then train and test as `cross_validate` does."""
    begun = time.perf_counter()
    models = StackedModels(encode(table), table, loss, config, seed)
    tried = draw_trials(loss, config, trials, seed)
    folds_per_part = _inner_folds_per_part(config)
    inner = _inner_split(split, table.y, config, seed)
    share = 1.0 / (1 + trials * folds_per_part)
    choices = list(
        _choose_by_fold(models, inner, tried, folds_per_part, metric, scale_progress(on_progress, 1.0 - share))
    )
    settings = _model_settings([tried[choice.trial] for choice in choices])
    jobs = [TrainingJob(part.training, (seed, k)) for k, part in enumerate(split)]
    has_temperatures = calibrate and not config.val_fraction  # otherwise from the rows held out, or none
    temperatures = [choice.temperature for choice in choices] if has_temperatures else None
    score = evaluate_models(
        models, split, jobs, temperatures, scale_progress(on_progress, share), begun, calibrate, settings
    )
    flatness = {
        name: float(np.mean([getattr(choice, name) for choice in choices]))
        for name in ("within_one_se", "default_behind", "median_behind")
    }
    inner_text = f"{INNER_FOLDS} inner folds" if folds_per_part > 1 else f"one inner part of {HOLDOUT_FOLDS}"
    chosen = [{name: float(f"{value:.4g}") for name, value in tried[choice.trial].items()} for choice in choices]
    return score, Tuning(trials, inner_text, chosen, flatness)


def seconds_per_trial(
    table: Table, losses: Sequence[str], split: Sequence[Partition], config: MLPConfig, seed: int = 0
) -> float:
    """Seconds that one trial of all losses takes on a table, from a few steps of a few models of each."""
    encoded = encode(table)
    inner = _inner_split(split, table.y, config, seed)
    return sum(_time_trial(StackedModels(encoded, table, loss, config, seed), inner) for loss in losses)


def _time_trial(models: StackedModels, inner: Sequence[Partition]) -> float:
    """Seconds of one trial on all inner parts, by a few steps of a few models."""
    jobs = [TrainingJob(inner[k % len(inner)].training, (models.seed, k)) for k in range(_PILOT_MODELS)]
    return models.time_steps(jobs, _PILOT_STEPS) * len(inner) / len(jobs)


class TunedSettings(NamedTuple):
    """What tuning selected for one model."""

    values: dict[str, float]
    """lr, weight_decay and, where the loss has them, s and m."""
    temperature: float
    """That of the inner models with these values."""
    trials: int


def tune_single(
    models: StackedModels,
    *,
    seconds: float | None,
    trials: int | None,
    metric: str = "accuracy",
    on_progress: Callable[[float], None] | None = None,
) -> TunedSettings:
    """Tune one loss on inner folds of all rows, as `tune_and_cross_validate` does on those of a training part.

    Args:
        models: the loss, its settings and the rows.
        seconds: budget, which determines the number of trials.
        trials: the number itself, instead.
    """
    rows = np.arange(len(models.table.y))
    inner = _inner_split([Partition(rows, rows[:0])], models.table.y, models.config, models.seed)
    count = trials or choose_trials(seconds or DEFAULT_TUNE_SECONDS, _time_trial(models, inner))
    tried = draw_trials(models.loss, models.config, count, models.seed)
    choice = next(_choose_by_fold(models, inner, tried, _inner_folds_per_part(models.config), metric, on_progress))
    values = {name: float(f"{value:.4g}") for name, value in tried[choice.trial].items()}
    return TunedSettings(values, choice.temperature, count)


def _inner_folds_per_part(config: MLPConfig) -> int:
    return 1 if config.val_fraction else INNER_FOLDS


def _inner_split(split: Sequence[Partition], y: NDArray[np.int64], config: MLPConfig, seed: int) -> list[Partition]:
    """Inner folds of every training part, or one inner test part where rows are many."""
    if not config.val_fraction:
        return inner_partitions(split, y, seed)
    return inner_partitions(split, y, seed, HOLDOUT_FOLDS)[::HOLDOUT_FOLDS]


def _model_settings(trials: Sequence[Mapping[str, float]]) -> ModelSettings:
    """Settings of models by their trials."""
    values = {name: torch.tensor([trial[name] for trial in trials], dtype=torch.float64) for name in trials[0]}
    return ModelSettings(values.pop("lr"), values.pop("weight_decay"), values)


class _Choice(NamedTuple):
    trial: int
    temperature: float
    within_one_se: float
    default_behind: float
    median_behind: float


class _InnerPart(NamedTuple):
    y: NDArray[np.int64]
    logits: NDArray[np.float64]
    predicted: NDArray[np.int64]


def _choose_by_fold(
    models: StackedModels,
    inner: Sequence[Partition],
    trials: Sequence[Mapping[str, float]],
    folds_per_part: int,
    metric: str,
    on_progress: Callable[[float], None] | None,
) -> Iterator[_Choice]:
    """Yield the choice of each outer fold when its last inner model is trained."""
    seed, num_trials = models.seed, len(trials)
    jobs, settings, tests = [], [], []
    for start in range(0, len(inner), folds_per_part):
        for trial in trials:
            for j, part in enumerate(inner[start : start + folds_per_part]):
                # The same draws for all trials, so that they differ by their numbers alone.
                jobs.append(TrainingJob(part.training, (seed, start // folds_per_part, 7 + j)))
                settings.append(trial)
                tests.append(part.test)
    waiting: list[_InnerPart] = []
    per_fold = num_trials * folds_per_part
    for block, trainer, _ in models.train(jobs, on_progress, _model_settings(settings)):
        parts = [tests[k] for k in block]
        predicted = predictions(trainer, parts)
        for k, (part, logits) in enumerate(zip(parts, part_logits(trainer, parts), strict=True)):
            waiting.append(_InnerPart(models.table.y[part], logits, predicted[k, : len(part)]))
        while len(waiting) >= per_fold:
            yield _choose(waiting[:per_fold], trials, folds_per_part, metric)
            del waiting[:per_fold]


def _choose(
    parts: Sequence[_InnerPart], trials: Sequence[Mapping[str, float]], folds_per_part: int, metric: str
) -> _Choice:
    by_trial = [parts[start : start + folds_per_part] for start in range(0, len(parts), folds_per_part)]
    joined = [_InnerPart(*map(np.concatenate, zip(*group, strict=True))) for group in by_trial]
    temperatures = [fit_temperature(part.logits, part.y) if np.isfinite(part.logits).all() else 1.0 for part in joined]
    scores, rows = zip(
        *(_score_trial(part, t, metric) for part, t in zip(joined, temperatures, strict=True)), strict=True
    )
    values = np.array(scores)
    best = int(values.argmax())
    behind = values[best] - values
    # Standard error of the difference to the best, row by row: the same rows, so most of the noise cancels.
    error = np.array([float((rows[best] - row).std() / math.sqrt(len(row))) for row in rows])
    good = behind <= error
    nearest = min(np.flatnonzero(good).tolist(), key=lambda t: _distance(trials[t], trials[0]))
    return _Choice(nearest, temperatures[nearest], float(good.mean()), float(behind[0]), float(np.median(behind)))


def _score_trial(part: _InnerPart, temperature: float, metric: str) -> tuple[float, NDArray[np.float64]]:
    """The metric on the inner rows, signed so that higher is better, and the contribution of each row."""
    y, rule = part.y, METRICS[metric]
    is_finite = bool(np.isfinite(part.logits).all())
    probabilities = (
        softmax(part.logits, temperature) if is_finite else np.full(part.logits.shape, 1 / part.logits.shape[1])
    )
    value = compute_metrics(y, probabilities, part.predicted)[metric]
    if not math.isfinite(value):
        value = -math.inf if rule.higher_is_better else math.inf
    if rule.is_percent:
        rows = 100.0 * (part.predicted == y)
    elif metric == "log_loss":
        rows = np.log(np.maximum(probabilities[np.arange(len(y)), y], np.finfo(np.float64).eps))
    else:
        rows = -((probabilities - np.eye(probabilities.shape[1])[y]) ** 2).sum(1)
    return (value if rule.higher_is_better else -value), np.asarray(rows, np.float64)


def _distance(trial: Mapping[str, float], first: Mapping[str, float]) -> float:
    """How far a trial is from the first, in the units of the ranges."""
    total = 0.0
    for name, value in trial.items():
        if name == "m":
            total += ((value - first[name]) / max(first[name], 1e-9)) ** 2
        else:
            reach = {"lr": LR_RANGE, "weight_decay": DECAY_RANGE, "s": SCALE_RANGE}[name]
            total += (math.log(max(value, 1e-12) / max(first[name], 1e-12)) / math.log(reach)) ** 2
    return total
