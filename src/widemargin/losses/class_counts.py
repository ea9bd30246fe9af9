"""Margins and class weights from class counts, for long-tailed data.

All margins are `a n_c^−λ + b` with n_c samples of class c: the rarer a class, the larger its margin. References:
K. Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss (LDAM), NeurIPS 2019; Q. Ha et
al., Google Landmark Recognition 2020 3rd place, arXiv 2010.05350 (GLD); the first place of Happywhale 2022. Class
weights are those of Y. Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from torch import Tensor

from ..io.errors import InputError, format_value, unknown_name_error
from ..io.options import MAX_FLOAT
from .base import Loss
from .grammar import Sum, is_number
from .margin import Margin

# The parameters of each form with their published values.
_FORMS: dict[str, dict[str, float]] = {
    "gld": {"power": 0.25, "low": 0.05, "high": 0.5},
    "happywhale": {"a": 0.271, "power": 0.364, "b": 0.05},
    "ldam": {"power": 0.25, "max_m": 0.5},
}
MARGIN_FORMS = tuple(_FORMS)
_MAX_COUNT = 10**15


def margins_from_counts(counts: Iterable[int] | Tensor, form: str = "gld", **numbers: float) -> list[float]:
    """Compute a margin for each class from its number of training samples, for `arcface(m=…)` or `cosface(m=…)`.

    Args:
        counts: samples of each class, at least 1, in class order.
        form: `gld` maps `n^−power` linearly to [low, high], with the rarest class at `high` (all classes if all counts
            are equal); `happywhale` is `a · n^−power + b`; `ldam` is `max_m · (n / min n)^−power`.
        numbers: parameters of the form instead of the published ones: `power=0.25, low=0.05, high=0.5` for gld,
            `a=0.271, power=0.364, b=0.05` for happywhale, `power=0.25, max_m=0.5` for ldam.

    >>> [round(m, 3) for m in margins_from_counts([5000, 500, 50])]
    [0.05, 0.212, 0.5]
    >>> [round(m, 3) for m in margins_from_counts([5000, 500, 50], "ldam", max_m=0.3)]
    [0.095, 0.169, 0.3]
    """
    if not isinstance(form, str) or form not in _FORMS:
        raise unknown_name_error("form of margins", form, MARGIN_FORMS)
    values = dict(_FORMS[form])
    for name, value in numbers.items():
        if name not in values:
            raise unknown_name_error(f"number of form {form!r}", name, values)
        if not is_number(value) or not 0 <= value < MAX_FLOAT:
            reason = f"{name} must be a finite number of at least 0, got {format_value(value)}"
            raise InputError(f"margins_from_counts: {reason}")
        values[name] = float(value)
    n = np.array(check_class_counts(counts), np.float64)
    power = values["power"]
    if form == "happywhale":
        margins = values["a"] * n**-power + values["b"]
    elif form == "ldam":
        return ldam_margins(n.tolist(), values["max_m"], power)
    else:
        low, high = values["low"], values["high"]
        if low > high:
            raise InputError(f"margins_from_counts: low={low:g} must not be above high={high:g}")
        shape = n**-power
        span = shape.max() - shape.min()
        share = (shape - shape.min()) / span if span > 0 else np.ones_like(shape)
        margins = low + (high - low) * share
    result: list[float] = margins.tolist()
    return result


def ldam_margins(counts: Sequence[float], max_m: float, power: float = 0.25) -> list[float]:
    """LDAM's margins `max_m · (n / min n)^−power`: max_m for the rarest class."""
    fewest = min(counts)
    return [max_m * (n / fewest) ** -power for n in counts]


def class_weights_from_counts(counts: Iterable[int] | Tensor, beta: float = 0.9999) -> list[float]:
    """Class weights `(1 − β) / (1 − β^n)`, scaled to a mean of 1 over the classes.

    `(1 − β^n) / (1 − β)` is the effective number of n samples: β = 0 weights all classes equally, β → 1 as 1/n.

    >>> [round(w, 3) for w in class_weights_from_counts([5000, 500, 50])]
    [0.034, 0.275, 2.691]
    """
    if not is_number(beta) or not 0 <= beta < 1:
        raise InputError(f"class_weights_from_counts: beta must be at least 0 and below 1, got {format_value(beta)}")
    n = np.array(check_class_counts(counts), np.float64)
    if beta == 0:
        return [1.0] * len(n)
    # β^n is close to 1 for small n: expm1 computes 1 − β^n without cancellation.
    weights = (1.0 - beta) / -np.expm1(n * math.log(beta))
    result: list[float] = (weights / weights.mean()).tolist()
    return result


def check_class_counts(counts: Any) -> list[int]:
    """Check the samples of each class, integers of at least 1; the error names a class without samples."""
    if (isinstance(counts, Tensor) and not counts.is_meta) or isinstance(counts, np.ndarray):
        counts = counts.tolist()
    if isinstance(counts, str | bytes | Mapping | Set | Tensor) or not isinstance(counts, Iterable):
        raise InputError(f"class counts must be one integer per class, got {format_value(counts)}")
    checked = []
    for c, n in enumerate(counts):
        number = n.item() if isinstance(n, np.generic | Tensor) else n
        if not is_number(number) or number != number // 1 or number > _MAX_COUNT:
            raise InputError(f"class counts: class {c} has {format_value(number)}; it must be an integer")
        if number < 1:
            raise InputError(f"class counts: class {c} has {number:g} samples; remove the class or add samples")
        checked.append(int(number))
    if not checked:
        raise InputError("class counts are empty; give one integer per class")
    return checked


def with_class_counts(spec: Sum | Loss, counts: Iterable[int]) -> Sum | Loss:
    """Return a loss or sum in which every margin that needs class counts, and has none, has these."""
    numbers = list(counts)
    if isinstance(spec, Sum):
        return Sum(tuple((factor, _fill_in_counts(loss, numbers)) for factor, loss in spec.parts))
    return _fill_in_counts(spec, numbers)


def _fill_in_counts(loss: Loss, counts: list[int]) -> Loss:
    """Check the counts only for a loss that needs them: others can be trained with empty classes."""
    if not isinstance(loss, Margin) or loss.with_class_counts([1] * len(counts)) == loss:
        return loss
    return loss.with_class_counts(check_class_counts(counts))
