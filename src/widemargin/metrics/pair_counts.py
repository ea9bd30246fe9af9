"""Counts of all distinct pairs of images by score and identity, from which intervals over identities are computed.

Up to `MAX_IN_MEMORY_PAIRS` pairs every score is kept and every metric is exact. Above, scores are streamed, one block
of rows at a time, into `NUM_BINS` bins from −1 to 1: the counts are exact, and a threshold is accurate to a bin,
1.9e-6 of cosine.

A table has one row per identity (or group of identities, above `MAX_GROUPS`) and one column per bin, highest scores
first. A pair of one identity is counted in its row; a pair of two is counted in the rows of both, so that the pairs
without an identity are all pairs minus its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

MAX_IN_MEMORY_PAIRS = 5_000_000
NUM_BINS = 2**20
MAX_GROUPS = 2000
_PAIRS_PER_BLOCK = 2_000_000


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """Scores [M] of pairs, and the indices of both identities [M]."""

    scores: FloatArray
    first: IntArray
    second: IntArray

    @property
    def same(self) -> BoolArray:
        is_same: BoolArray = self.first == self.second
        return is_same


@dataclass(frozen=True, eq=False)
class PairCountTables:
    """Counts of pairs by group (one identity, or several) and bin, [groups, bins]."""

    same: FloatArray
    different: FloatArray
    """Pairs of two identities with at least one in the group."""
    all_different: FloatArray
    """Every pair of two identities once, [bins]."""
    different_in_fold: FloatArray | None
    """As `different`, for pairs with both identities in the group's fold; None without folds."""
    all_different_in_fold: FloatArray | None
    """Every such pair once, [folds, bins]."""
    fold_of_group: IntArray | None
    """The fold of each group."""
    thresholds: FloatArray
    """The lowest scores of all bins but the last, descending."""


def iter_pair_blocks(unit_vectors: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.float32], IntArray, IntArray]]:
    """Yield the cosines of all pairs i < j of unit vectors [N, D], one block of rows at a time, with i and j."""
    rows = max(1, _PAIRS_PER_BLOCK // len(unit_vectors))
    for start in range(0, len(unit_vectors), rows):
        part = unit_vectors[start : start + rows] @ unit_vectors[start:].T
        i, j = np.triu_indices(len(part), 1, part.shape[1])
        yield part[i, j], i + start, j + start


def all_pairs(unit_vectors: NDArray[np.float32], y: IntArray) -> ScoredPairs:
    """Return every distinct pair of unit vectors [N, D] of identities [N], in memory."""
    parts = list(iter_pair_blocks(unit_vectors))
    scores = np.concatenate([part[0] for part in parts]).astype(np.float64)
    first, second = (y[np.concatenate([part[k] for part in parts])] for k in (1, 2))
    return ScoredPairs(scores, first, second)


def bin_indices(scores: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the bin of each cosine, 0 for the highest."""
    place = ((NUM_BINS / 2) * (1.0 - scores)).astype(np.int32)
    indices: NDArray[np.int32] = np.clip(place, 0, NUM_BINS - 1)
    return indices


def bin_edges() -> FloatArray:
    """Return the lowest score of each bin, highest bin first; the edge itself belongs to the bin below."""
    edges: FloatArray = np.nextafter(1.0 - (np.arange(NUM_BINS, dtype=np.float64) + 1.0) * (2.0 / NUM_BINS), 2.0)
    edges[-1] = -np.inf  # rounding may give cosines below −1
    return edges


def streamed_counts(unit_vectors: NDArray[np.float32], y: IntArray) -> tuple[IntArray, IntArray]:
    """Count the same and different pairs in each bin."""
    same, different = np.zeros(NUM_BINS, dtype=np.int64), np.zeros(NUM_BINS, dtype=np.int64)
    for scores, i, j in iter_pair_blocks(unit_vectors):
        place, alike = bin_indices(scores), y[i] == y[j]
        same += np.bincount(place[alike], minlength=NUM_BINS)
        different += np.bincount(place[~alike], minlength=NUM_BINS)
    return same, different


def streamed_fold_counts(
    unit_vectors: NDArray[np.float32], y: IntArray, fold_of_identity: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Count same and different pairs within each fold of identities, [folds, bins], in bins sixteen times as wide."""
    rows = [fold_of_identity[y] == k for k in range(int(fold_of_identity.max()) + 1)]
    counts = [[kind.reshape(-1, 16).sum(1) for kind in streamed_counts(unit_vectors[part], y[part])] for part in rows]
    return np.array([same for same, _ in counts], dtype=np.float64), np.array([d for _, d in counts], dtype=np.float64)


class PairCounter:
    """Accumulates pairs into tables."""

    def __init__(self, num_identities: int, num_bins: int, fold_of_identity: IntArray | None) -> None:
        self.num_bins, self.fold_of_identity = num_bins, fold_of_identity
        self.group_of_identity = jackknife_groups(num_identities, fold_of_identity)
        self.num_groups = int(self.group_of_identity.max()) + 1
        size = self.num_groups * num_bins
        self.same, self.different, self.different_in_fold = np.zeros(size), np.zeros(size), np.zeros(size)
        self.all_different = np.zeros(num_bins)
        self.num_folds = 0 if fold_of_identity is None else int(fold_of_identity.max()) + 1
        self.all_different_in_fold = np.zeros(max(self.num_folds, 1) * num_bins)

    def add(self, bin_index: IntArray, first: IntArray, second: IntArray) -> None:
        """Add pairs of identities `first` and `second` in bins `bin_index`."""
        num_bins, alike = self.num_bins, first == second
        a = self.group_of_identity[first] * num_bins + bin_index
        self.same += np.bincount(a[alike], minlength=len(self.same))
        apart = ~alike
        bin_index, first, second, a = bin_index[apart], first[apart], second[apart], a[apart]
        self.all_different += np.bincount(bin_index, minlength=num_bins)
        b = self.group_of_identity[second] * num_bins + bin_index
        self.different += self._count_for_both_groups(a, b)
        if self.fold_of_identity is not None:
            within = (self.fold_of_identity[first] == self.fold_of_identity[second]) & (
                self.fold_of_identity[first] >= 0
            )
            self.different_in_fold += self._count_for_both_groups(a[within], b[within])
            where = self.fold_of_identity[first][within] * num_bins + bin_index[within]
            self.all_different_in_fold += np.bincount(where, minlength=len(self.all_different_in_fold))

    def _count_for_both_groups(self, a: IntArray, b: IntArray) -> IntArray:
        """Count a pair for both of its groups, or once if they are the same group."""
        size = len(self.different)
        counts: IntArray = np.bincount(a, minlength=size) + np.bincount(b[a != b], minlength=size)
        return counts

    def to_tables(self, thresholds: FloatArray) -> PairCountTables:
        """Return the counts so far as tables."""
        shape = (self.num_groups, self.num_bins)
        same, different = self.same.reshape(shape), self.different.reshape(shape)
        if self.fold_of_identity is None:
            return PairCountTables(same, different, self.all_different, None, None, None, thresholds)
        in_fold, all_in_fold = (
            self.different_in_fold.reshape(shape),
            self.all_different_in_fold.reshape(self.num_folds, self.num_bins),
        )
        fold_of_group = np.zeros(self.num_groups, dtype=np.int64)
        fold_of_group[self.group_of_identity] = self.fold_of_identity
        return PairCountTables(same, different, self.all_different, in_fold, all_in_fold, fold_of_group, thresholds)


def jackknife_groups(num_identities: int, fold_of_identity: IntArray | None) -> IntArray:
    """Return the row of each identity: its own or that of its group; all identities of a group are in one fold."""
    if num_identities <= MAX_GROUPS:
        return np.arange(num_identities)
    folds = 1 if fold_of_identity is None else int(fold_of_identity.max()) + 2  # one more for identities without a fold
    groups = np.empty(num_identities, dtype=np.int64)
    each = MAX_GROUPS // folds
    for k in range(folds):
        rows = np.arange(num_identities) if fold_of_identity is None else np.flatnonzero(fold_of_identity == k - 1)
        groups[rows] = k * each + np.arange(len(rows)) % each
    place: IntArray = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    return place


def tables_from_pairs(
    pairs: ScoredPairs, thresholds: FloatArray, fold_of_identity: IntArray | None, num_identities: int
) -> PairCountTables:
    """Build tables from pairs in memory; `thresholds` are the lowest scores of all bins but the last, descending."""
    place = len(thresholds) - np.searchsorted(thresholds[::-1], pairs.scores, side="right")
    counter = PairCounter(num_identities, len(thresholds) + 1, fold_of_identity)
    counter.add(place, pairs.first, pairs.second)
    return counter.to_tables(thresholds)


def streamed_tables(
    unit_vectors: NDArray[np.float32], y: IntArray, thresholds: FloatArray, fold_of_identity: IntArray | None
) -> PairCountTables:
    """Build tables of all pairs of unit vectors by streaming; `thresholds` are edges of the bins of `bin_indices`."""
    coarse_bin = len(thresholds) - np.searchsorted(thresholds[::-1], bin_edges(), side="right")
    counter = PairCounter(int(y.max()) + 1, len(thresholds) + 1, fold_of_identity)
    for scores, i, j in iter_pair_blocks(unit_vectors):
        counter.add(coarse_bin[bin_indices(scores)], y[i], y[j])
    return counter.to_tables(thresholds)
