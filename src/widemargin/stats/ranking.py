"""Ranks of methods on every set, their means, and how often a method is at the top."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .scores import FloatArray, check_score_table, max_abs, round_float_noise


def rank_ascending(values: FloatArray) -> FloatArray:
    """Ranks of a list, 1 for the lowest; equal values share the mean of their ranks.

    >>> ascending(np.array([0.2, 0.1, 0.2])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: FloatArray = (last - (counts - 1) / 2)[group.reshape(-1)]
    return shared


def ranks(scores: ArrayLike, *, decimals: int | None = None) -> FloatArray:
    """Ranks [sets, methods] of scores [sets, methods]: 1 is the best (highest), ties share the mean rank.

    Scores that agree to 12 digits tie, for sums of floats differ by that without any meaning. `rounded`
    makes those tie that agree to so many decimals, as in a printed table.

    >>> ranks([[0.91, 0.90, 0.85], [0.80, 0.80, 0.70]]).tolist()
    [[1.0, 2.0, 3.0], [1.5, 1.5, 3.0]]
    >>> ranks([[0.91, 0.90, 0.85]], rounded=1).tolist()
    [[1.5, 1.5, 3.0]]
    """
    return np.stack(
        [rank_ascending(-round_float_noise(row, max_abs(row))) for row in check_score_table(scores, decimals)]
    )


def mean_ranks(scores: ArrayLike, *, decimals: int | None = None) -> FloatArray:
    """Mean rank [methods] over all sets, 1 at best."""
    mean: FloatArray = ranks(scores, decimals=decimals).mean(axis=0)
    return mean


@dataclass(frozen=True)
class Wins:
    """On how many sets each method has the highest score, and on how many of these another one has it too."""

    counts: tuple[int, ...]
    tie_counts: tuple[int, ...]


def wins(scores: ArrayLike, *, decimals: int | None = None) -> Wins:
    """Wins of each method; a tie at the top counts for each of the tied.

    >>> wins([[0.91, 0.90, 0.85], [0.80, 0.80, 0.70]])
    Wins(counts=(2, 1, 0), shared=(1, 1, 0))
    """
    table_of_ranks = ranks(scores, decimals=decimals)
    top = table_of_ranks == table_of_ranks.min(axis=1, keepdims=True)
    tied = top & (top.sum(axis=1, keepdims=True) > 1)
    return Wins(tuple(top.sum(axis=0).tolist()), tuple(tied.sum(axis=0).tolist()))
