"""Intervals over identities: how far a figure would move with other people, characters or classes of the same kind.

Pairs, queries and episodes of one identity are not independent, and a pair of two identities depends on both. So the
unit is the identity: a figure is computed again without each identity in turn (its images leave all pairs), and the
spread of these values says how much it depends on the identities that happened to be there.

The interval is `logit⁻¹(logit p ± t · e)`: `e² = (K − 1)/K · Σ_a (l_a − l̄)²` of the K values `l_a` on the logit scale,
which keeps it between 0 and 1, and Student's t with `2K / (g + 2)` degrees of freedom, at most K − 1, where g is the
excess kurtosis of the `l_a`: where few identities make most of the difference, e itself is uncertain (Satterthwaite's
approximation of the variance of a variance). `widemargin bench coverage` shows how often such intervals hold the
truth, beside those of a bootstrap over identities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

LEAST_IDENTITIES = 10
"""Fewer identities give no interval: it would be narrow or wide by luck."""
LEAST_EVENTS = 10
"""Fewer distinct events (false accepts, misses, false alarms) give no rate."""
_NOTHING = 0.01  # an interval beyond this at both ends says nothing; narrower ones stay, for coverage counts on them
_EDGE = 1e-6  # a value of exactly 0 or 1 has no logit


@dataclass(frozen=True)
class Spread:
    """Variance of a figure, and how many degrees of freedom it was estimated with."""

    variance: float
    freedom: float


def spread(without: ArrayLike) -> Spread:
    """Variance of a figure from its values without each identity in turn [K], K ≥ 4.

    >>> found = spread([0.9, 0.8, 0.7, 0.8, 0.85, 0.75])
    >>> round(found.variance, 4), found.freedom
    (0.0208, 5.0)
    """
    values = np.asarray(without, dtype=np.float64)
    count = len(values)
    gaps = values - values.mean()
    square = float((gaps**2).mean())
    if square <= 0:
        return Spread(0.0, count - 1.0)
    excess = float((gaps**4).mean()) / square**2 - 3.0
    excess = (count - 1) / ((count - 2) * (count - 3)) * ((count + 1) * excess + 6)  # unbiased for normal values
    return Spread((count - 1) * square, float(np.clip(2 * count / max(excess + 2, 1e-9), 1.0, count - 1)))


def summed(parts: Sequence[Spread]) -> Spread:
    """Variance of a sum of independent parts, with Welch and Satterthwaite's degrees of freedom.

    >>> summed([Spread(1.0, 2.0), Spread(1.0, 2.0)])
    Spread(variance=2.0, freedom=4.0)
    """
    total = sum(part.variance for part in parts)
    if total <= 0:
        return Spread(0.0, min(part.freedom for part in parts))
    return Spread(total, total**2 / sum(part.variance**2 / part.freedom for part in parts))


def interval(value: float, *without: ArrayLike) -> tuple[float, float] | None:
    """95 % interval of a share from its values without each identity; None where there is none.

    Several lists are independent groups of identities, such as known and unknown ones. There is none for fewer than
    ten identities in a group, for a share of exactly 0 or 1, and where no identity makes a difference or hardly more
    than one does, so that it would reach from below 1 % to above 99 %.

    >>> interval(0.8, [0.7, 0.9, 0.8]) is None
    True
    >>> low, high = interval(0.8, [0.8, 0.79, 0.81, 0.8, 0.78, 0.82, 0.8, 0.8, 0.79, 0.81])
    >>> 0.6 < low < 0.8 < high < 0.9
    True
    """
    if min(len(np.asarray(values)) for values in without) < LEAST_IDENTITIES:
        return None
    ends = logit_interval(value, summed([spread(logit(values)) for values in without]))
    return None if ends is None or (ends[0] < _NOTHING and ends[1] > 1.0 - _NOTHING) else ends


def logit_interval(value: float, of_logit: Spread) -> tuple[float, float] | None:
    """The same from the spread of the logit."""
    from scipy.special import expit, stdtrit

    if not 0.0 < value < 1.0 or of_logit.variance <= 0:
        return None
    reach = float(stdtrit(of_logit.freedom, 0.975)) * np.sqrt(of_logit.variance)
    middle = float(np.log(value / (1.0 - value)))
    return float(expit(middle - reach)), float(expit(middle + reach))


def logit(shares: ArrayLike) -> Floats:
    """Logits of shares, those of 0 and 1 kept finite."""
    inside = np.clip(np.asarray(shares, dtype=np.float64), _EDGE, 1.0 - _EDGE)
    found: Floats = np.log(inside / (1.0 - inside))
    return found


def means_without(sums: ArrayLike, counts: ArrayLike) -> Floats:
    """Mean without each identity, from the sum and the number of its values.

    >>> means_without([2.0, 1.0, 0.0], [2, 1, 1]).tolist()
    [0.5, 0.6666666666666666, 1.0]
    """
    total, number = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    rest: Floats = (total.sum() - total) / np.maximum(number.sum() - number, 1e-300)
    return rest


def mean_interval(sums: ArrayLike, counts: ArrayLike) -> tuple[float, float] | None:
    """Interval of a mean of values from 0 to 1, such as hits of queries, given by identity.

    There is none where fewer than ten values' worth are hits or misses: a handful of events.
    """
    total, number = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    hits, size = float(total.sum()), float(number.sum())
    if min(hits, size - hits) < LEAST_EVENTS - 1e-9:
        return None
    return interval(hits / size, means_without(total, number)[number > 0])


def difference_p(difference: float, of_difference: Spread) -> float:
    """Two-sided p-value that a difference is zero."""
    from scipy.special import stdtr

    if of_difference.variance <= 0:
        return 1.0  # nothing varied, so nothing is known of how much it would
    return 2.0 * float(stdtr(of_difference.freedom, -abs(difference) / np.sqrt(of_difference.variance)))
