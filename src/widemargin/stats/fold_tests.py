"""Tests on the folds of one data set, Holm's correction, and validation of scores for all tests.

Scores must be finite; scores that differ only by floating-point noise count as equal.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..io.errors import InputError

FloatArray = NDArray[np.float64]

SIGNIFICANT_DIGITS = 12
"""Scores that agree to this many digits are equal; sums of the same hundred folds in another order agree to 15."""

MAX_ABS_SCORE = 1e150
"""Squares of larger scores overflow."""


def check_score_table(scores: ArrayLike, decimals: int | None = None) -> FloatArray:
    """Validate scores [sets, methods] and return them as floats, optionally rounded to `decimals`."""
    values = to_finite_array("scores", scores, 2)
    if 0 in values.shape:
        raise InputError(f"scores of shape {list(values.shape)} are empty; they must be [sets, methods]")
    if decimals is None:
        return values
    clipped_decimals = min(check_int_at_least("decimals", decimals, 0), 15)
    large = np.abs(values) >= 1e15  # these have no decimals left, and rounding would overflow
    return np.where(large, values, np.round(np.where(large, 0.0, values), clipped_decimals))


def check_score_list(what: str, values: ArrayLike) -> FloatArray:
    """Validate a non-empty list of finite numbers, such as the scores of one method on all folds."""
    checked_values = to_finite_array(what, values, 1)
    if not len(checked_values):
        raise InputError(f"{what} is empty; at least one number is needed")
    return checked_values


def scaled_differences(a: ArrayLike, b: ArrayLike) -> tuple[FloatArray, float]:
    """Return (a − b) / m and m, the largest absolute score; differences that are floating-point noise become 0."""
    first, second = check_score_list("a", a), check_score_list("b", b)
    if len(first) != len(second):
        raise InputError(f"a has {len(first)} scores and b {len(second)}; they must come from the same folds or sets")
    scale = max_abs(first, second)
    return round_float_noise(first - second, scale), scale


def round_float_noise(values: FloatArray, scale: float) -> FloatArray:
    """Return `values / scale` rounded to `SIGNIFICANT_DIGITS`, which removes floating-point noise."""
    return np.round(values / scale, SIGNIFICANT_DIGITS) + 0.0  # avoid negative zero


def max_abs(*values: FloatArray) -> float:
    """Return the largest magnitude as a divisor: 1 if all values are 0."""
    return float(max(np.abs(part).max() for part in values)) or 1.0


def check_fraction(what: str, value: Any) -> float:
    """Validate a fraction or a level: a number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < 1:
        raise InputError(f"{what}={value!r} must be a number between 0 and 1")
    return float(value)


def check_int_at_least(what: str, value: Any, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < low:
        raise InputError(f"{what}={value!r} must be a whole number of at least {low}")
    return int(value)


def to_finite_array(what: str, array: ArrayLike, dimensions: int) -> FloatArray:
    try:
        values = np.asarray(array, dtype=np.float64)
    except (ValueError, TypeError):
        raise InputError(f"{what} must be numbers, in rows of the same length") from None
    if values.ndim != dimensions:
        expected = "[sets, methods]" if dimensions == 2 else "a plain list of numbers"
        raise InputError(f"{what} of shape {list(values.shape)} must be {expected}")
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        at = "".join(f"[{int(i)}]" for i in wrong[0])
        raise InputError(f"{what}{at} is {values[tuple(wrong[0])]}; every score must be a finite number")
    if values.size and max_abs(values) > MAX_ABS_SCORE:
        raise InputError(f"{what} holds {max_abs(values):g}; scores must stay below {MAX_ABS_SCORE:g}")
    return values


# Holm's correction for several tests at once.
#
# S. Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of Statistics 6, 1979.
# It needs nothing of the tests' dependence and rejects all that Bonferroni's correction rejects.


def holm(p: ArrayLike) -> FloatArray:
    """Return Holm-adjusted p-values in the given order; testing `p ≤ alpha` keeps the family-wise error rate at alpha.

    The i-th smallest of m is `max_{j ≤ i} min(1, (m − j + 1) p_j)`.

    >>> holm([0.01, 0.04, 0.03]).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    values = to_finite_array("p", p, 1)
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError("p must be a list of p-values from 0 to 1")
    order = np.argsort(values, kind="stable")
    stepped = np.minimum(values[order] * np.arange(len(values), 0, -1), 1.0)
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(stepped)
    return adjusted


# Tests on the folds of one set, whose training parts overlap.
#
# Folds of a cross-validation are not independent: two of ten folds share 8/9 of their training samples, and runs
# repeat the same samples. The usual t-test takes them as independent and finds differences that are not there.
# C. Nadeau & Y. Bengio, Inference for the Generalization Error, Machine Learning 52, 2003, put `1/J + n_test/n_train`
# in place of `1/J` in the variance of a mean of J folds; R. R. Bouckaert & E. Frank, PAKDD 2004, showed it for
# r runs of k folds, J = k r.

Split = float | tuple[float, float]
"""Split of a set: the fraction of its test part (0.1 for ten folds), or `(n_train, n_test)`."""


@dataclass(frozen=True)
class CorrectedTResult:
    """Mean of a − b with its confidence interval, and the test that it is zero."""

    difference: float
    low: float
    high: float
    t: float
    df: int
    p: float


def corrected_t_test(a: ArrayLike, b: ArrayLike, test_fraction: Split, *, level: float = 0.95) -> CorrectedTResult:
    """Corrected resampled t-test of two methods on the same J folds: two-sided, J − 1 degrees of freedom.

    If all folds agree there is no variance to divide by. No difference in any fold: p = 1. The same difference in every
    fold: scores of a fold are coarse, so the next fold may differ, and p = 0 would be wrong. The variance is then
    computed as if one further fold had shown no difference, `d²/(J+1)`: p falls with more folds and never reaches 0.
    A single fold has p = 1.

    >>> c = corrected_t_test([0.9, 0.8, 0.9, 0.8, 1.0], [0.8, 0.8, 0.8, 0.7, 0.8], test_fraction=0.2)
    >>> round(c.difference, 3), round(c.t, 3), c.df, round(c.p, 4)
    (0.1, 2.108, 4, 0.1027)
    >>> round(corrected_t_test([0.9] * 10, [0.8] * 10, test_fraction=0.1).p, 6)
    5e-05
    """
    parts, size = scaled_differences(a, b)
    mean, error = _mean_and_error(parts, test_fraction)
    folds = len(parts)
    if error == 0.0 and mean != 0.0:
        error = abs(mean) * math.sqrt(_variance_factor(folds, test_fraction) / (folds + 1))
    if error == 0.0 or math.isinf(error):
        t, p = 0.0, 1.0
    else:
        t = mean / error
        p = _two_sided_p_value(t, folds - 1)
    low, high = _interval_bounds(mean, error, folds, level)
    return CorrectedTResult(mean * size, low * size, high * size, t, folds - 1, p)


def interval(
    folds: ArrayLike, test_fraction: Split, level: float = 0.95, *, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float]:
    """Confidence interval of a method's mean score over folds, with the corrected variance.

    `bounds` clip it to the range of a score, such as (0, 100). Folds that all agree give an interval of width 0,
    because they contain no information about the spread of other folds. A single fold gives an unbounded interval,
    clipped to `bounds`.

    >>> [round(end, 3) for end in interval([0.9, 0.8, 0.9, 0.8, 1.0], test_fraction=0.2)]
    [0.724, 1.036]
    >>> [round(end, 3) for end in interval([0.9, 0.8, 0.9, 0.8, 1.0], test_fraction=(80, 20), bounds=(0.0, 1.0))]
    [0.724, 1.0]
    """
    values = check_score_list("folds", folds)
    size = max_abs(values)
    mean, error = _mean_and_error(round_float_noise(values, size), test_fraction)
    low, high = _interval_bounds(mean, error, len(values), level)
    return max(low * size, bounds[0]), min(high * size, bounds[1])


def methods_not_worse(
    folds: Mapping[str, Sequence[float]],
    test_fraction: Split,
    alpha: float = 0.05,
    *,
    family: Literal["best", "pairs"] = "best",
) -> set[str]:
    """Return the method with the best mean and all that `corrected_t_test` with Holm's correction does not find worse.

    See `p_values_against_best` for `family`.

    >>> scores = {"a": [0.9, 0.8, 0.9, 0.8, 1.0], "b": [0.8, 0.8, 0.9, 0.9, 0.9], "c": [0.1, 0.2, 0.1, 0.2, 0.3]}
    >>> sorted(methods_not_worse(scores, test_fraction=0.2))
    ['a', 'b']
    """
    alpha = check_fraction("alpha", alpha)
    return {name for name, p in p_values_against_best(folds, test_fraction, family=family).items() if p > alpha}


def p_values_against_best(
    folds: Mapping[str, Sequence[float]], test_fraction: Split, *, family: Literal["best", "pairs"] = "best"
) -> dict[str, float]:
    """Return the adjusted p of every method against the one with the best mean (the first in a tie), which has p = 1.

    `family` selects the tests that Holm's correction covers: those against the best, or all pairs. Because the best is
    selected on the same folds, the first is too liberal: among seven equal methods one is called worse in 11 % of cases
    at alpha = 0.05, with "pairs" in fewer than 5 %.
    """
    if family not in ("best", "pairs"):
        raise InputError(f"family={family!r} must be 'best' or 'pairs'")
    best = best_methods(folds)[0]
    rest = [name for name in folds if name != best]
    pairs = [(best, name) for name in rest]
    if family == "pairs":
        pairs += combinations(rest, 2)
    p = holm([corrected_t_test(folds[first], folds[second], test_fraction).p for first, second in pairs])
    adjusted = dict(zip(rest, p.tolist(), strict=False))  # pairs with the best come first
    return {name: adjusted.get(name, 1.0) for name in folds}


def best_methods(folds: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """Return the methods with the highest mean, several in a tie; all must have the same number of folds."""
    if not folds:
        raise InputError("folds is empty; at least one method is needed")
    values = {name: check_score_list(f"folds of {name!r}", scores) for name, scores in folds.items()}
    first = next(iter(values))
    for name, scores in values.items():
        if len(scores) != len(values[first]):
            counts = f"{first!r} has {len(values[first])} folds and {name!r} {len(scores)}"
            raise InputError(f"{counts}; all methods must be run on the same folds")
    table = np.stack(list(values.values()))
    means = round_float_noise(table.mean(axis=1), max_abs(table))
    return tuple(name for name, mean in zip(values, means, strict=True) if mean == means.max())


def _variance_factor(folds: int, test_fraction: Split) -> float:
    """`1/J + n_test/n_train`, which replaces 1/J in the variance of a mean over J overlapping folds."""
    if isinstance(test_fraction, tuple):
        if len(test_fraction) != 2 or not all(0 < n < math.inf for n in test_fraction):
            raise InputError(f"test_fraction={test_fraction!r} must be (n_train, n_test), both above 0")
        return 1 / folds + test_fraction[1] / test_fraction[0]
    share = check_fraction("test_fraction", test_fraction)
    return 1 / folds + share / (1 - share)


def _mean_and_error(values: FloatArray, test_fraction: Split) -> tuple[float, float]:
    """Return the mean and its standard error: NaN for one fold, 0 if all folds are equal."""
    factor = _variance_factor(len(values), test_fraction)
    if (values == values[0]).all():
        return float(values[0]), 0.0 if len(values) > 1 else math.inf
    return float(values.mean()), math.sqrt(float(values.var(ddof=1)) * factor)


def _two_sided_p_value(t: float, df: int) -> float:
    from scipy.special import stdtr

    return min(1.0, 2.0 * float(stdtr(df, -abs(t))))


def _interval_bounds(mean: float, error: float, folds: int, level: float) -> tuple[float, float]:
    from scipy.special import stdtrit

    level = check_fraction("level", level)
    if math.isinf(error):
        return -math.inf, math.inf
    half_width = float(stdtrit(folds - 1, (1 + level) / 2)) * error
    return mean - half_width, mean + half_width
