"""The parameters of `MarginClassifier`, checked, as the options of one fit."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from ..io.errors import InputError, format_value
from ..losses.base import Loss
from ..losses.grammar import Sum, parse
from .config import MLPConfig
from .tune import check_tuning

if TYPE_CHECKING:
    from .estimator import MarginClassifier

_RULE_PARAMETERS = (
    "hidden",
    "epochs",
    "min_steps",
    "batch",
    "lr",
    "warmup",
    "weight_decay",
    "dropout",
    "screening",
    "max_components",
)
"""Parameters that follow the size of X if they are None."""


@dataclass(frozen=True)
class FitOptions:
    """Settings of one fit, all of them checked."""

    loss: Sum | Loss
    config: MLPConfig
    seed: int
    device: torch.device
    dtype: torch.dtype
    standardize: bool
    calibrate: bool
    tune_seconds: float | None
    tune_trials: int | None
    balance: bool
    """Tune by balanced accuracy, whatever the frequencies of the classes."""
    verbose: bool

    @property
    def needs_tuning(self) -> bool:
        """Whether a budget or a number of trials is given."""
        return self.tune_seconds is not None or self.tune_trials is not None


def resolve_fit_options(
    estimator: MarginClassifier, dtype: torch.dtype, num_rows: int, num_columns: int, num_classes: int
) -> FitOptions:
    """Check the parameters of an estimator, and resolve those that follow the size of a table."""
    loss, device = parse_loss(estimator.loss), _resolve_device(estimator.device)
    seed = _resolve_seed(estimator.random_state)
    config = _resolve_config(estimator, num_rows, num_columns, num_classes)
    seconds, trials = check_tuning(estimator.tune, estimator.tune_trials)
    if estimator.calibrate not in (True, False):
        raise InputError(f"calibrate must be True or False, got {format_value(estimator.calibrate)}")
    return FitOptions(
        loss,
        config,
        seed,
        device,
        dtype,
        standardize=estimator.standardize,
        calibrate=estimator.calibrate,
        tune_seconds=seconds,
        tune_trials=trials,
        balance=estimator.class_weight == "balanced",
        verbose=bool(estimator.verbose),
    )


def parse_loss(loss: Any) -> Sum | Loss:
    """Return a loss that is given as text or as a value."""
    value = parse(loss) if isinstance(loss, str) else loss
    if not isinstance(value, Sum | Loss):
        raise InputError(f"loss must be a string such as 'arcgrad(s=5)' or a loss, got {format_value(loss)}")
    return value


def _resolve_config(estimator: MarginClassifier, num_rows: int, num_columns: int, num_classes: int) -> MLPConfig:
    """The settings of the training: the parameters, and the rule for a table of this size for those that are None."""
    if estimator.hidden is not None and not isinstance(estimator.hidden, list | tuple | np.ndarray):
        raise InputError(
            f"hidden must be a sequence of whole numbers such as (64, 24), got {format_value(estimator.hidden)}"
        )
    given = {name: value for name in _RULE_PARAMETERS if (value := getattr(estimator, name)) is not None}
    if "hidden" in given:
        given["hidden"] = tuple(given["hidden"])
    given |= {"label_smoothing": estimator.label_smoothing, "patience": estimator.patience}
    if estimator.early_stopping is not None:
        given["val_fraction"] = _check_fraction(estimator.validation_fraction) if estimator.early_stopping else 0.0
    return MLPConfig.for_table(num_rows, num_columns, num_classes, **given)


def _check_fraction(fraction: Any) -> float:
    if not isinstance(fraction, Real) or not 0 < float(fraction) < 1:
        raise InputError(f"validation_fraction must be a number above 0 and below 1, got {format_value(fraction)}")
    return float(fraction)


def _resolve_seed(random_state: Any) -> int:
    """A whole number is the seed itself, so that a comparison with it has the same initial weights."""
    generator = check_random_state(random_state)
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(generator.randint(np.iinfo(np.int32).max))


def _resolve_device(device: Any) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        raise InputError(f"device={device!r} cannot be used here; device='cpu' always can") from None
