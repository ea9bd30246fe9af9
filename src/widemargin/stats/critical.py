"""Nemenyi's test of all pairs after Friedman's, and the groups of a critical-difference diagram.

P. B. Nemenyi, Distribution-free Multiple Comparisons, 1963; J. Demšar, JMLR 7, 2006, section 3.2.2.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .scores import FloatArray, check_fraction, check_int_at_least, check_score_list


def q_alpha(num_methods: int, alpha: float = 0.05) -> float:
    """Quantile of the studentized range of so many methods, over √2 (Demšar's Table 5).

    >>> [round(q_alpha(k), 3) for k in (2, 3, 4, 5)]
    [1.96, 2.344, 2.569, 2.728]
    """
    return _quantile(check_int_at_least("methods", num_methods, 2), check_fraction("alpha", alpha))


@lru_cache(maxsize=256)
def _quantile(num_methods: int, alpha: float) -> float:
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - alpha, num_methods, np.inf)) / math.sqrt(2)


def critical_difference(num_methods: int, num_datasets: int, alpha: float = 0.05) -> float:
    """Methods differ whose mean ranks are at least this far apart: `q_alpha √(k(k+1) / 6N)`.

    >>> round(critical_difference(methods=4, sets=14), 2)
    1.25
    """
    return q_alpha(num_methods, alpha) * _rank_difference_std(num_methods, check_int_at_least("sets", num_datasets, 1))


def nemenyi(mean_ranks: ArrayLike, num_datasets: int) -> FloatArray:
    """p-values [methods, methods] of all pairs, 1 on the diagonal, good for all pairs at once.

    >>> nemenyi([3.143, 2.0, 2.893, 1.964], sets=14).round(3)[0].tolist()
    [1.0, 0.089, 0.956, 0.074]
    """
    from scipy.stats import studentized_range

    mean = check_score_list("mean_ranks", mean_ranks)
    k = check_int_at_least("methods", len(mean), 2)
    p = np.ones((k, k))
    for i in range(k):
        for j in range(i):
            apart = (
                abs(float(mean[i] - mean[j]))
                / _rank_difference_std(k, check_int_at_least("sets", num_datasets, 1))
                * math.sqrt(2)
            )
            if apart > 0:
                p[i, j] = p[j, i] = min(1.0, max(0.0, float(studentized_range.sf(apart, k, np.inf))))
    return p


def cliques(mean_ranks: ArrayLike, cd: float) -> tuple[tuple[int, ...], ...]:
    """Largest groups of two or more methods whose mean ranks lie within less than `cd`: a diagram's bars.

    Methods are given by their index, the best first; groups may overlap, none holds another.

    >>> cliques([1.2, 3.0, 2.1, 1.9], cd=1.0)
    ((0, 3, 2), (2, 1))
    """
    mean = check_score_list("mean_ranks", mean_ranks)
    if not cd >= 0:
        raise InputError(f"cd={cd!r} must be a number of at least 0")
    order = np.argsort(mean, kind="stable")
    sorted_ranks = mean[order]
    ends = [0]  # where the group that begins at each method ends
    for start in sorted_ranks:
        ends.append(int(((sorted_ranks - start < cd) | (sorted_ranks == start)).sum()))
    grown = [(start, end) for start, (before, end) in enumerate(pairwise(ends)) if end > before and end - start > 1]
    return tuple(tuple(order[start:end].tolist()) for start, end in grown)


def _rank_difference_std(num_methods: int, num_datasets: int) -> float:
    """Standard deviation of the difference of two mean ranks: `√(k(k+1) / 6N)`."""
    return math.sqrt(num_methods * (num_methods + 1) / (6 * num_datasets))
