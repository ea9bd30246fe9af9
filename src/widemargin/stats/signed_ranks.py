"""Wilcoxon's signed-rank test of two methods over sets, and of many with Holm's correction.

F. Wilcoxon, Biometrics 1, 1945; zeros as in J. W. Pratt, JASA 54, 1959: they take part in the ranking and then
have no sign. Demšar (2006) gives half of their ranks to either side, which shifts both sums alike: the exact
p is the same, and his sums are the ones returned. Dropping zeros before the ranking (scipy's default)
would throw away the sets on which methods do not differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .correction import holm
from .ranking import rank_ascending
from .scores import FloatArray, check_score_table, scaled_differences

MAX_EXACT_DATASETS = 100


@dataclass(frozen=True)
class SignedRankResult:
    """Sums of ranks for and against the first method (zeros split evenly), and the two-sided p."""

    plus: float
    minus: float
    p: float
    exact: bool


def signed_rank_test(a: ArrayLike, b: ArrayLike) -> SignedRankResult:
    """Does `a` score higher or lower than `b` over sets? p = 1 where they never differ.

    Up to 100 sets p is exact, with ties and zeros too: the distribution of the sum over all signs of the
    ranks as they are. Above, it is normal with the variance of these ranks. Differences that agree
    to 12 digits tie.

    >>> signed_rank([0.9, 0.8, 0.7, 0.95, 0.6, 0.7], [0.8, 0.6, 0.4, 0.55, 0.1, 0.1])
    SignedRank(plus=21.0, minus=0.0, p=0.03125, exact=True)
    """
    difference, _ = scaled_differences(a, b)
    rank = rank_ascending(np.abs(difference))
    sign = np.sign(difference)
    signed = rank[sign != 0]
    rank_difference = float((rank * sign).sum())  # plus − minus
    total = float(rank.sum())
    exact = len(difference) <= MAX_EXACT_DATASETS
    p = (
        1.0
        if rank_difference == 0
        else _exact_p(signed, rank_difference)
        if exact
        else _normal_p(signed, rank_difference)
    )
    return SignedRankResult((total + rank_difference) / 2, (total - rank_difference) / 2, p, exact)


@dataclass(frozen=True)
class PairTest:
    """Two methods by their column, the test of the first against the second, and p after Holm's correction."""

    first: int
    second: int
    test: SignedRankResult
    adjusted_p: float


def wilcoxon(scores: ArrayLike, control: int | None = None, *, decimals: int | None = None) -> tuple[PairTest, ...]:
    """Signed-rank tests over scores [sets, methods]: the method `against` with every other, or all pairs.

    Holm's correction is over the tests returned.

    >>> for pair in wilcoxon([[0.9, 0.8, 0.9], [0.8, 0.6, 0.7], [0.7, 0.4, 0.8]], against=0):
    ...     print(pair.first, pair.second, pair.test.p, pair.adjusted)
    0 1 0.25 0.5
    0 2 1.0 1.0
    """
    values = check_score_table(scores, decimals)
    k = values.shape[1]
    if control is not None and control not in range(k):
        raise InputError(f"against={control!r} must be a column of the scores, from 0 to {k - 1}")
    firsts = range(k) if control is None else [control]
    pairs = [(i, j) for i in firsts for j in range(k) if j != i and (control is not None or j > i)]
    tests = [signed_rank_test(values[:, i], values[:, j]) for i, j in pairs]
    adjusted = holm([test.p for test in tests]).tolist()
    return tuple(PairTest(i, j, test, p) for (i, j), test, p in zip(pairs, tests, adjusted, strict=True))


def _exact_p(rank: FloatArray, rank_difference: float) -> float:
    """Share of all sign choices that lean as far either way; ranks are doubled to be whole numbers."""
    steps = np.round(2 * rank).astype(int).tolist()
    chance = np.ones(1)  # of each doubled sum of ranks with a plus
    for step in steps:
        longer = np.zeros(len(chance) + step)
        longer[: len(chance)] += 0.5 * chance
        longer[step:] += 0.5 * chance
        chance = longer
    smaller = round((sum(steps) - 2 * abs(rank_difference)) / 2)
    return min(1.0, 2.0 * float(chance[: smaller + 1].sum()))


def _normal_p(rank: FloatArray, rank_difference: float) -> float:
    return math.erfc(abs(rank_difference) / math.sqrt(2.0 * float((rank**2).sum())))
