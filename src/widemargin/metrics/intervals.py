"""Confidence intervals over identities: how much a metric would change with other people, characters or classes.

Pairs, queries and episodes of one identity are not independent, and a pair of two identities depends on both. So the
unit is the identity: a metric is computed without each identity in turn (all pairs with its images are removed), and
the spread of these values measures how much it depends on the identities in the sample.

The interval is `logit⁻¹(logit p ± t · e)`: `e² = (K − 1)/K · Σ_a (l_a − l̄)²` of the K values `l_a` on the logit scale,
which keeps it between 0 and 1, and Student's t with `2K / (g + 2)` degrees of freedom, at most K − 1, where g is the
excess kurtosis of the `l_a`: if few identities cause most of the difference, e itself is uncertain (Satterthwaite's
approximation of the variance of a variance). `python -m benchmarks coverage` measures how often such intervals contain
the true value, next to those of a bootstrap over identities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

MIN_IDENTITIES = 10
"""With fewer identities there is no interval: its width would be random."""
MIN_EVENTS = 10
"""With fewer distinct events (false accepts, misses, false alarms) there is no rate."""
# An interval that exceeds this at both ends is uninformative; narrower ones are kept, because coverage depends on them.
_UNINFORMATIVE_TAIL = 0.01
_LOGIT_CLIP = 1e-6  # values of exactly 0 or 1 have no finite logit


@dataclass(frozen=True)
class VarianceEstimate:
    """Variance of a metric and its degrees of freedom."""

    variance: float
    degrees_of_freedom: float


def jackknife_variance(leave_one_out: ArrayLike) -> VarianceEstimate:
    """Variance of a metric from its values without each identity in turn [K], K ≥ 4.

    >>> estimate = jackknife_variance([0.9, 0.8, 0.7, 0.8, 0.85, 0.75])
    >>> round(estimate.variance, 4), estimate.degrees_of_freedom
    (0.0208, 5.0)
    """
    values = np.asarray(leave_one_out, dtype=np.float64)
    count = len(values)
    gaps = values - values.mean()
    square = float((gaps**2).mean())
    if square <= 0:
        return VarianceEstimate(0.0, count - 1.0)
    excess = float((gaps**4).mean()) / square**2 - 3.0
    excess = (count - 1) / ((count - 2) * (count - 3)) * ((count + 1) * excess + 6)  # unbiased for normal values
    return VarianceEstimate((count - 1) * square, float(np.clip(2 * count / max(excess + 2, 1e-9), 1.0, count - 1)))


def sum_variances(parts: Sequence[VarianceEstimate]) -> VarianceEstimate:
    """Variance of a sum of independent parts, with Welch–Satterthwaite degrees of freedom.

    >>> sum_variances([VarianceEstimate(1.0, 2.0), VarianceEstimate(1.0, 2.0)])
    VarianceEstimate(variance=2.0, degrees_of_freedom=4.0)
    """
    total = sum(part.variance for part in parts)
    if total <= 0:
        return VarianceEstimate(0.0, min(part.degrees_of_freedom for part in parts))
    return VarianceEstimate(total, total**2 / sum(part.variance**2 / part.degrees_of_freedom for part in parts))


def jackknife_interval(value: float, *leave_one_out: ArrayLike) -> tuple[float, float] | None:
    """95 % interval of a proportion from its values without each identity; None if there is no valid interval.

    Several lists are independent groups of identities, such as known and unknown ones. There is no interval for fewer
    than ten identities in a group, for a proportion of exactly 0 or 1, and if no or hardly more than one identity makes
    a difference, so that it would reach from below 1 % to above 99 %.

    >>> jackknife_interval(0.8, [0.7, 0.9, 0.8]) is None
    True
    >>> low, high = jackknife_interval(0.8, [0.8, 0.79, 0.81, 0.8, 0.78, 0.82, 0.8, 0.8, 0.79, 0.81])
    >>> 0.6 < low < 0.8 < high < 0.9
    True
    """
    if min(len(np.asarray(values)) for values in leave_one_out) < MIN_IDENTITIES:
        return None
    ends = logit_interval(value, sum_variances([jackknife_variance(logit(values)) for values in leave_one_out]))
    return None if ends is None or (ends[0] < _UNINFORMATIVE_TAIL and ends[1] > 1.0 - _UNINFORMATIVE_TAIL) else ends


def logit_interval(value: float, logit_variance: VarianceEstimate) -> tuple[float, float] | None:
    """95 % interval of a proportion from the variance of its logit; None for 0, 1 or zero variance."""
    from scipy.special import expit, stdtrit

    if not 0.0 < value < 1.0 or logit_variance.variance <= 0:
        return None
    half_width = float(stdtrit(logit_variance.degrees_of_freedom, 0.975)) * np.sqrt(logit_variance.variance)
    middle = float(np.log(value / (1.0 - value)))
    return float(expit(middle - half_width)), float(expit(middle + half_width))


def logit(shares: ArrayLike) -> FloatArray:
    """Return the logits of proportions, with those of 0 and 1 kept finite."""
    inside = np.clip(np.asarray(shares, dtype=np.float64), _LOGIT_CLIP, 1.0 - _LOGIT_CLIP)
    logits: FloatArray = np.log(inside / (1.0 - inside))
    return logits


def leave_one_out_means(sums: ArrayLike, counts: ArrayLike) -> FloatArray:
    """Return the mean without each identity, from the sum and number of its values.

    >>> leave_one_out_means([2.0, 1.0, 0.0], [2, 1, 1]).tolist()
    [0.5, 0.6666666666666666, 1.0]
    """
    total, number = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    rest: FloatArray = (total.sum() - total) / np.maximum(number.sum() - number, 1e-300)
    return rest


def mean_interval(sums: ArrayLike, counts: ArrayLike) -> tuple[float, float] | None:
    """Interval of a mean of values from 0 to 1, such as hits of queries, given by identity.

    None if hits or misses add up to fewer than ten values.
    """
    total, number = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    hits, size = float(total.sum()), float(number.sum())
    if min(hits, size - hits) < MIN_EVENTS - 1e-9:
        return None
    return jackknife_interval(hits / size, leave_one_out_means(total, number)[number > 0])


def difference_p_value(difference: float, variance_estimate: VarianceEstimate) -> float:
    """Two-sided p-value of the hypothesis that a difference is zero."""
    from scipy.special import stdtr

    if variance_estimate.variance <= 0:
        return 1.0  # no variation, so the test has no information
    return 2.0 * float(
        stdtr(variance_estimate.degrees_of_freedom, -abs(difference) / np.sqrt(variance_estimate.variance))
    )
