"""The Friedman test: do methods differ at all over these sets?

M. Friedman, JASA 32, 1937; ties as in W. J. Conover, Practical Nonparametric Statistics, 3rd ed., 5.8; the F
of R. L. Iman & J. M. Davenport, Communications in Statistics 9, 1980, less timid than chi-square. Of few sets
both are poor: three methods over three sets reach F's 5 % in 19 % of all cases by chance alone. So `p` comes
from permuted ranks there, and from the sign test where only two methods are compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .ranking import ranks
from .scores import FloatArray

MIN_DATASETS_FOR_F_TEST = 10
"""Below this, p comes from permuted ranks; from here on F is right to within a percent or so."""

MAX_PERMUTATIONS = 100_000
"""Permutations held at a time: all of them where that is enough, else as many random ones are drawn."""


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
    """Test that all methods are alike on scores [sets, methods]; all ties give p = 1.

    `χ² = (k−1) Σ_j (R_j − N(k+1)/2)² / Σ_ij (r_ij − (k+1)/2)²` with rank sums R_j, which is right under
    ties; `F = (N−1) χ² / (N(k−1) − χ²)` with k−1 and (k−1)(N−1) degrees of freedom. `corrected=False` takes
    the denominator without ties, as Demšar (2006) prints it.

    >>> many = friedman([[0.9, 0.8, 0.7], [0.8, 0.9, 0.6], [0.9, 0.7, 0.6], [0.8, 0.7, 0.6]] * 3)
    >>> many.test, round(many.chi2, 2), round(many.f, 2), many.p < 0.001
    ('Iman–Davenport F', 19.5, 47.67, True)
    >>> friedman([[0.9, 0.8], [0.7, 0.6], [0.5, 0.5]]).test
    'sign test'
    """
    r = ranks(scores, decimals=decimals)
    n, k = r.shape
    if k < 2:
        raise InputError("the Friedman test compares methods; scores hold only one")
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
    """F and its p. Where all sets agree F is infinite and p the chance of that: `(1/arrangements)^(N−1)`."""
    from scipy.special import fdtrc

    n, k = r.shape
    if max_chi2 - chi2 <= 1e-9 * max_chi2:
        _, ties = np.unique(r[0], return_counts=True)
        arrangements = math.lgamma(k + 1) - sum(math.lgamma(t + 1) for t in ties)
        return math.inf, math.exp(-(n - 1) * arrangements)
    f = (n - 1) * chi2 / (max_chi2 - chi2)
    return f, float(fdtrc(k - 1, (k - 1) * (n - 1), f)) if n > 1 else 1.0


def _sign_test(centered_ranks: FloatArray) -> float:
    """Two methods: only who is ahead is left of the ranks. Exact; sets with a tie say nothing."""
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
    """Share of all orders within each set whose rank sums differ as much; None where they are too many.

    Which method has which sum does not matter, so sums are kept in order and equal ones together.
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
    """The same share among random orders (from a fixed seed), the given one included, which keeps the level."""
    rng = np.random.default_rng(0)
    sums = np.zeros((MAX_PERMUTATIONS - 1, centered_ranks.shape[1]))
    for row in centered_ranks:
        sums += rng.permuted(np.broadcast_to(row, sums.shape), axis=1)
    return (1 + int(((sums**2).sum(axis=1) >= observed).sum())) / MAX_PERMUTATIONS
