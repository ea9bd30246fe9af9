"""What comes into a test: finite numbers of the right shape, equal where they differ by float noise only."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError

FloatArray = NDArray[np.float64]

SIGNIFICANT_DIGITS = 12
"""Scores that agree to so many digits are equal: the same hundred folds summed in another order agree to 15."""

MAX_ABS_SCORE = 1e150
"""Above, squares overflow."""


def check_score_table(scores: ArrayLike, decimals: int | None = None) -> FloatArray:
    """Scores [sets, methods] as finite numbers, rounded to so many decimals where that is asked."""
    values = to_finite_array("scores", scores, 2)
    if 0 in values.shape:
        raise InputError(f"scores of shape {list(values.shape)} hold nothing; they must be [sets, methods]")
    if decimals is None:
        return values
    clipped_decimals = min(check_int_at_least("rounded", decimals, 0), 15)
    large = np.abs(values) >= 1e15  # no decimals are left in these, and rounding would overflow
    return np.where(large, values, np.round(np.where(large, 0.0, values), clipped_decimals))


def check_score_list(what: str, values: ArrayLike) -> FloatArray:
    """A list of at least one finite number, such as the scores of one method on all folds."""
    checked_values = to_finite_array(what, values, 1)
    if not len(checked_values):
        raise InputError(f"{what} is empty; at least one number is needed")
    return checked_values


def scaled_differences(a: ArrayLike, b: ArrayLike) -> tuple[FloatArray, float]:
    """a − b as parts of the largest score, and that score; differences that are float noise are 0."""
    first, second = check_score_list("a", a), check_score_list("b", b)
    if len(first) != len(second):
        raise InputError(f"a has {len(first)} scores and b {len(second)}; they must come from the same folds or sets")
    scale = max_abs(first, second)
    return round_float_noise(first - second, scale), scale


def round_float_noise(values: FloatArray, scale: float) -> FloatArray:
    """Values as parts of `size`, rounded to `DIGITS`, so that float noise makes no difference and breaks no tie."""
    return np.round(values / scale, SIGNIFICANT_DIGITS) + 0.0  # no negative zero


def max_abs(*values: FloatArray) -> float:
    """The largest magnitude, to be divided by: 1 where all values are 0."""
    return float(max(np.abs(part).max() for part in values)) or 1.0


def check_fraction(what: str, value: Any) -> float:
    """A share or a level: a number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < 1:
        raise InputError(f"{what}={value!r} must be a number between 0 and 1")
    return float(value)


def check_int_at_least(what: str, value: Any, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < low:
        raise InputError(f"{what}={value!r} must be a whole number of at least {low}")
    return int(value)


def to_finite_array(what: str, given: ArrayLike, dimensions: int) -> FloatArray:
    try:
        values = np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError):
        raise InputError(f"{what} must be numbers, in rows of the same length") from None
    if values.ndim != dimensions:
        wanted = "[sets, methods]" if dimensions == 2 else "a plain list of numbers"
        raise InputError(f"{what} of shape {list(values.shape)} must be {wanted}")
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        at = "".join(f"[{int(i)}]" for i in wrong[0])
        raise InputError(f"{what}{at} is {values[tuple(wrong[0])]}; every score must be a finite number")
    if values.size and max_abs(values) > MAX_ABS_SCORE:
        raise InputError(f"{what} holds {max_abs(values):g}; scores must stay below {MAX_ABS_SCORE:g}")
    return values
