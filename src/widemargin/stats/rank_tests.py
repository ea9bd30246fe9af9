"""Rank tests over many data sets: mean ranks, wins, and the tests of Friedman, Nemenyi and Wilcoxon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import ArrayLike

from ..io.errors import InputError
from .fold_tests import (
    FloatArray,
    check_fraction,
    check_int_at_least,
    check_score_list,
    check_score_table,
    holm,
    max_abs,
    round_float_noise,
    scaled_differences,
)


def rank_ascending(values: FloatArray) -> FloatArray:
    """Return the ranks of a list, 1 for the lowest; ties share the mean of their ranks.

    >>> rank_ascending(np.array([0.2, 0.1, 0.2])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: FloatArray = (last - (counts - 1) / 2)[group.reshape(-1)]
    return shared


def ranks(scores: ArrayLike, *, decimals: int | None = None) -> FloatArray:
    """Return the ranks [sets, methods] of scores [sets, methods]: 1 is the best (highest), ties share the mean rank.

    Scores that agree to 12 digits tie, because sums of floats differ by that much. With `decimals`, scores that agree
    to that many decimals tie, as in a printed table.

    >>> ranks([[0.91, 0.90, 0.85], [0.80, 0.80, 0.70]]).tolist()
    [[1.0, 2.0, 3.0], [1.5, 1.5, 3.0]]
    >>> ranks([[0.91, 0.90, 0.85]], decimals=1).tolist()
    [[1.5, 1.5, 3.0]]
    """
    return np.stack(
        [rank_ascending(-round_float_noise(row, max_abs(row))) for row in check_score_table(scores, decimals)]
    )


def mean_ranks(scores: ArrayLike, *, decimals: int | None = None) -> FloatArray:
    """Return the mean rank [methods] over all sets; 1 is the best possible."""
    mean: FloatArray = ranks(scores, decimals=decimals).mean(axis=0)
    return mean


@dataclass(frozen=True)
class Wins:
    """Number of sets on which each method has the highest score, and on how many of these it shares it."""

    counts: tuple[int, ...]
    tie_counts: tuple[int, ...]


def wins(scores: ArrayLike, *, decimals: int | None = None) -> Wins:
    """Count the wins of each method; a tie at the top counts for each tied method.

    >>> wins([[0.91, 0.90, 0.85], [0.80, 0.80, 0.70]])
    Wins(counts=(2, 1, 0), tie_counts=(1, 1, 0))
    """
    table_of_ranks = ranks(scores, decimals=decimals)
    top = table_of_ranks == table_of_ranks.min(axis=1, keepdims=True)
    tied = top & (top.sum(axis=1, keepdims=True) > 1)
    return Wins(tuple(top.sum(axis=0).tolist()), tuple(tied.sum(axis=0).tolist()))


# The Friedman test: do the methods differ at all over these sets?
#
# M. Friedman, JASA 32, 1937; ties as in W. J. Conover, Practical Nonparametric Statistics, 3rd ed., 5.8; the F
# of R. L. Iman & J. M. Davenport, Communications in Statistics 9, 1980, less conservative than chi-square. Over few
# sets both are inaccurate: with three methods and three sets F reaches its 5 % level in 19 % of cases by chance. So `p`
# comes from permuted ranks there, and from the sign test if only two methods are compared.

MIN_DATASETS_FOR_F_TEST = 10
"""With fewer sets, p comes from permuted ranks; from here on F is accurate to about a percent."""

MAX_PERMUTATIONS = 100_000
"""Permutations held at a time: all of them if there are no more, otherwise this many random ones."""


@dataclass(frozen=True)
class FriedmanResult:
    """Outcome of `friedman`. `p` is the p-value to use and `test` the name of the test it comes from."""

    num_datasets: int
    num_methods: int
    chi2: float
    p_chi2: float
    f: float
    p_f: float
    p: float
    test: str


def friedman(scores: ArrayLike, *, decimals: int | None = None, tie_correction: bool = True) -> FriedmanResult:
    """Test the hypothesis that all methods are equal on scores [sets, methods]; all ties give p = 1.

    `χ² = (k−1) Σ_j (R_j − N(k+1)/2)² / Σ_ij (r_ij − (k+1)/2)²` with rank sums R_j, which is correct under
    ties; `F = (N−1) χ² / (N(k−1) − χ²)` with k−1 and (k−1)(N−1) degrees of freedom. `tie_correction=False` uses
    the denominator without ties, as printed by Demšar (2006).

    >>> many = friedman([[0.9, 0.8, 0.7], [0.8, 0.9, 0.6], [0.9, 0.7, 0.6], [0.8, 0.7, 0.6]] * 3)
    >>> many.test, round(many.chi2, 2), round(many.f, 2), many.p < 0.001
    ('Iman–Davenport F', 19.5, 47.67, True)
    >>> friedman([[0.9, 0.8], [0.7, 0.6], [0.5, 0.5]]).test
    'sign test'
    """
    r = ranks(scores, decimals=decimals)
    n, k = r.shape
    if k < 2:
        raise InputError("the Friedman test needs at least two methods; scores have one column")
    centered_ranks = r - (k + 1) / 2
    spread = float((centered_ranks**2).sum()) if tie_correction else n * k * (k * k - 1) / 12
    max_chi2 = float(n * (k - 1))
    chi2 = min((k - 1) * float((centered_ranks.sum(axis=0) ** 2).sum()) / spread, max_chi2) if spread else 0.0
    f, p_f = _iman_davenport(chi2, r, max_chi2)
    p, test = p_f, "Iman–Davenport F"
    if k == 2:
        p, test = _sign_test(centered_ranks[:, 0]), "sign test"
    elif n < MIN_DATASETS_FOR_F_TEST:
        p, test = _permutation_test(centered_ranks)
    return FriedmanResult(n, k, chi2, _chi2_sf(chi2, k - 1), f, p_f, p, test)


def _chi2_sf(chi2: float, df: int) -> float:
    from scipy.special import chdtrc

    return float(chdtrc(df, chi2))


def _iman_davenport(chi2: float, r: FloatArray, max_chi2: float) -> tuple[float, float]:
    """Return F and its p. If all sets agree, F is infinite and p is the chance of that: `(1/arrangements)^(N−1)`."""
    from scipy.special import fdtrc

    n, k = r.shape
    if max_chi2 - chi2 <= 1e-9 * max_chi2:
        _, ties = np.unique(r[0], return_counts=True)
        arrangements = math.lgamma(k + 1) - sum(math.lgamma(t + 1) for t in ties)
        return math.inf, math.exp(-(n - 1) * arrangements)
    f = (n - 1) * chi2 / (max_chi2 - chi2)
    return f, float(fdtrc(k - 1, (k - 1) * (n - 1), f)) if n > 1 else 1.0


def _sign_test(centered_ranks: FloatArray) -> float:
    """Exact sign test of two methods; sets with a tie do not count."""
    from scipy.special import bdtr

    ahead, behind = int((centered_ranks < 0).sum()), int((centered_ranks > 0).sum())
    return min(1.0, 2.0 * float(bdtr(min(ahead, behind), ahead + behind, 0.5))) if ahead + behind else 1.0


def _permutation_test(centered_ranks: FloatArray) -> tuple[float, str]:
    observed = float((centered_ranks.sum(axis=0) ** 2).sum()) - 1e-9
    rows = np.sort(centered_ranks, axis=1)
    rows = rows[np.lexsort(rows.T)]  # sorted, so that the order of methods and sets does not matter
    exact = _exact_permutation_p(rows, observed)
    if exact is not None:
        return exact, "all permutations"
    return _random_permutation_p(rows, observed), "random permutations"


def _exact_permutation_p(centered_ranks: FloatArray, observed: float) -> float | None:
    """Fraction of all orders within each set whose rank sums differ at least as much; None if there are too many.

    The order of the methods does not matter, so rank sums are sorted and equal ones merged.
    """
    k = centered_ranks.shape[1]
    sums: FloatArray = centered_ranks[:1]
    chance: FloatArray = np.ones(1)
    for row in centered_ranks[1:]:
        if len(sums) * math.factorial(k) > MAX_PERMUTATIONS:
            return None
        orders = np.array(list(permutations(row.tolist())))
        sums, place = np.unique(np.sort((sums[:, None] + orders).reshape(-1, k), axis=1), axis=0, return_inverse=True)
        chance = np.bincount(place.reshape(-1), np.repeat(chance / len(orders), len(orders))).astype(np.float64)
    return float(chance[(sums**2).sum(axis=1) >= observed].sum() / chance.sum())


def _random_permutation_p(centered_ranks: FloatArray, observed: float) -> float:
    """Return the fraction among random orders (fixed seed); counting the observed one keeps the test valid."""
    rng = np.random.default_rng(0)
    sums = np.zeros((MAX_PERMUTATIONS - 1, centered_ranks.shape[1]))
    for row in centered_ranks:
        sums += rng.permuted(np.broadcast_to(row, sums.shape), axis=1)
    return (1 + int(((sums**2).sum(axis=1) >= observed).sum())) / MAX_PERMUTATIONS


# Nemenyi's test of all pairs after Friedman's, and the groups of a critical-difference diagram.
#
# P. B. Nemenyi, Distribution-free Multiple Comparisons, 1963; J. Demšar, JMLR 7, 2006, section 3.2.2.


def q_alpha(num_methods: int, alpha: float = 0.05) -> float:
    """Quantile of the studentized range of `num_methods` methods, divided by √2 (Demšar's Table 5).

    >>> [round(q_alpha(k), 3) for k in (2, 3, 4, 5)]
    [1.96, 2.344, 2.569, 2.728]
    """
    return _studentized_range_quantile(
        check_int_at_least("num_methods", num_methods, 2), check_fraction("alpha", alpha)
    )


@lru_cache(maxsize=256)
def _studentized_range_quantile(num_methods: int, alpha: float) -> float:
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - alpha, num_methods, np.inf)) / math.sqrt(2)


def critical_difference(num_methods: int, num_datasets: int, alpha: float = 0.05) -> float:
    """Smallest difference of mean ranks that is significant: `q_alpha √(k(k+1) / 6N)`.

    >>> round(critical_difference(num_methods=4, num_datasets=14), 2)
    1.25
    """
    return q_alpha(num_methods, alpha) * _rank_difference_std(
        num_methods, check_int_at_least("num_datasets", num_datasets, 1)
    )


def nemenyi(mean_ranks: ArrayLike, num_datasets: int) -> FloatArray:
    """Return p-values [methods, methods] of all pairs, adjusted for all pairs, with 1 on the diagonal.

    >>> nemenyi([3.143, 2.0, 2.893, 1.964], num_datasets=14).round(3)[0].tolist()
    [1.0, 0.089, 0.956, 0.074]
    """
    from scipy.stats import studentized_range

    mean = check_score_list("mean_ranks", mean_ranks)
    k = check_int_at_least("num_methods", len(mean), 2)
    p = np.ones((k, k))
    for i in range(k):
        for j in range(i):
            apart = (
                abs(float(mean[i] - mean[j]))
                / _rank_difference_std(k, check_int_at_least("num_datasets", num_datasets, 1))
                * math.sqrt(2)
            )
            if apart > 0:
                p[i, j] = p[j, i] = min(1.0, max(0.0, float(studentized_range.sf(apart, k, np.inf))))
    return p


def cliques(mean_ranks: ArrayLike, cd: float) -> tuple[tuple[int, ...], ...]:
    """Return the largest groups of two or more methods with mean ranks less than `cd` apart: the bars of a diagram.

    Methods are indices, the best first; groups may overlap, and none contains another.

    >>> cliques([1.2, 3.0, 2.1, 1.9], cd=1.0)
    ((0, 3, 2), (2, 1))
    """
    mean = check_score_list("mean_ranks", mean_ranks)
    if not cd >= 0:
        raise InputError(f"cd={cd!r} must be a number of at least 0")
    order = np.argsort(mean, kind="stable")
    sorted_ranks = mean[order]
    ends = [0]  # end of the group that begins at each method
    for start in sorted_ranks:
        ends.append(int(((sorted_ranks - start < cd) | (sorted_ranks == start)).sum()))
    grown = [(start, end) for start, (before, end) in enumerate(pairwise(ends)) if end > before and end - start > 1]
    return tuple(tuple(order[start:end].tolist()) for start, end in grown)


def _rank_difference_std(num_methods: int, num_datasets: int) -> float:
    """Standard deviation of the difference of two mean ranks: `√(k(k+1) / 6N)`."""
    return math.sqrt(num_methods * (num_methods + 1) / (6 * num_datasets))


# Wilcoxon's signed-rank test of two methods over sets, and of many with Holm's correction.
#
# F. Wilcoxon, Biometrics 1, 1945; zeros as in J. W. Pratt, JASA 54, 1959: they are ranked and then
# have no sign. Demšar (2006) gives half of their ranks to each side, which shifts both sums equally: the exact
# p is the same, and his sums are returned. Dropping zeros before the ranking (scipy's default)
# would ignore the sets on which the methods do not differ.

MAX_EXACT_DATASETS = 100


@dataclass(frozen=True)
class SignedRankResult:
    """Rank sums for and against the first method (zeros split evenly), and the two-sided p."""

    plus: float
    minus: float
    p: float
    exact: bool


def signed_rank_test(a: ArrayLike, b: ArrayLike) -> SignedRankResult:
    """Two-sided Wilcoxon signed-rank test of `a` against `b` over sets; p = 1 if they never differ.

    Up to 100 sets p is exact, also with ties and zeros: the distribution of the sum over all signs of the actual
    ranks. Above, it is the normal approximation with the variance of these ranks. Differences that agree to 12 digits
    tie.

    >>> signed_rank_test([0.9, 0.8, 0.7, 0.95, 0.6, 0.7], [0.8, 0.6, 0.4, 0.55, 0.1, 0.1])
    SignedRankResult(plus=21.0, minus=0.0, p=0.03125, exact=True)
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
        else _exact_signed_rank_p(signed, rank_difference)
        if exact
        else _normal_signed_rank_p(signed, rank_difference)
    )
    return SignedRankResult((total + rank_difference) / 2, (total - rank_difference) / 2, p, exact)


@dataclass(frozen=True)
class PairTest:
    """Two methods (columns), the test of the first against the second, and p after Holm's correction."""

    first: int
    second: int
    test: SignedRankResult
    adjusted_p: float


def wilcoxon(scores: ArrayLike, control: int | None = None, *, decimals: int | None = None) -> tuple[PairTest, ...]:
    """Signed-rank tests over scores [sets, methods]: method `control` against every other, or all pairs.

    Holm's correction is over the tests returned.

    >>> for pair in wilcoxon([[0.9, 0.8, 0.9], [0.8, 0.6, 0.7], [0.7, 0.4, 0.8]], control=0):
    ...     print(pair.first, pair.second, pair.test.p, pair.adjusted_p)
    0 1 0.25 0.5
    0 2 1.0 1.0
    """
    values = check_score_table(scores, decimals)
    k = values.shape[1]
    if control is not None and control not in range(k):
        raise InputError(f"control={control!r} must be a column of the scores, from 0 to {k - 1}")
    firsts = range(k) if control is None else [control]
    pairs = [(i, j) for i in firsts for j in range(k) if j != i and (control is not None or j > i)]
    tests = [signed_rank_test(values[:, i], values[:, j]) for i, j in pairs]
    adjusted = holm([test.p for test in tests]).tolist()
    return tuple(PairTest(i, j, test, p) for (i, j), test, p in zip(pairs, tests, adjusted, strict=True))


def _exact_signed_rank_p(rank: FloatArray, rank_difference: float) -> float:
    """Fraction of all sign assignments at least as extreme in either direction; ranks are doubled to be integers."""
    steps = np.round(2 * rank).astype(int).tolist()
    chance = np.ones(1)  # probability of each doubled sum of positive ranks
    for step in steps:
        longer = np.zeros(len(chance) + step)
        longer[: len(chance)] += 0.5 * chance
        longer[step:] += 0.5 * chance
        chance = longer
    smaller = round((sum(steps) - 2 * abs(rank_difference)) / 2)
    return min(1.0, 2.0 * float(chance[: smaller + 1].sum()))


def _normal_signed_rank_p(rank: FloatArray, rank_difference: float) -> float:
    return math.erfc(abs(rank_difference) / math.sqrt(2.0 * float((rank**2).sum())))
