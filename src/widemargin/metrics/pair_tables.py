"""All distinct pairs of images, their scores counted by identity: what intervals over identities are computed from.

Up to `IN_MEMORY` pairs every score is kept and every figure is exact. Beyond that scores are streamed, a block of rows
at a time, into `BINS` bins from −1 to 1: the counts are exact, a threshold is known to within a bin, 1.9e-6 of cosine.

A table has one row per identity (or group of identities, where there are more than `UNITS`) and one column per bin, the
highest scores first. A pair of one identity stands in its row; a pair of two stands in the rows of both, so that the
pairs that remain without an identity are all pairs less its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]

IN_MEMORY = 5_000_000
BINS = 2**20
UNITS = 2000
_AT_ONCE = 2_000_000  # pairs of a block


@dataclass(frozen=True, eq=False)
class Pairs:
    """Scores [M] of pairs, and the numbers of both identities [M] of each."""

    scores: Floats
    first: Whole
    second: Whole

    @property
    def same(self) -> Flags:
        found: Flags = self.first == self.second
        return found


@dataclass(frozen=True, eq=False)
class Tables:
    """Counts of pairs by unit and bin, [units, bins]."""

    same: Floats
    different: Floats
    """Pairs of two identities that touch the unit."""
    all_different: Floats
    """Every pair of two identities once, [bins]."""
    in_fold: Floats | None
    """As `different`, of pairs with both identities in the unit's fold; None without folds."""
    all_in_fold: Floats | None
    """Every such pair once, [folds, bins]."""
    fold: Whole | None
    """The fold of each unit."""
    cuts: Floats
    """The lowest scores of the bins but the last, falling."""


def blocks(unit: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.float32], Whole, Whole]]:
    """Cosines of all pairs i < j of unit vectors [N, D], a block of rows at a time, with i and j."""
    rows = max(1, _AT_ONCE // len(unit))
    for start in range(0, len(unit), rows):
        part = unit[start : start + rows] @ unit[start:].T
        i, j = np.triu_indices(len(part), 1, part.shape[1])
        yield part[i, j], i + start, j + start


def all_pairs(unit: NDArray[np.float32], y: Whole) -> Pairs:
    """Every distinct pair of unit vectors [N, D] of identities [N], in memory."""
    parts = list(blocks(unit))
    scores = np.concatenate([part[0] for part in parts]).astype(np.float64)
    first, second = (y[np.concatenate([part[k] for part in parts])] for k in (1, 2))
    return Pairs(scores, first, second)


def bin_of(scores: NDArray[np.float32]) -> NDArray[np.int32]:
    """The bin of each cosine, 0 for the highest."""
    place = ((BINS / 2) * (1.0 - scores)).astype(np.int32)
    found: NDArray[np.int32] = np.clip(place, 0, BINS - 1)
    return found


def bin_edges() -> Floats:
    """The lowest score of each bin, from the highest bin on; the edge itself belongs to the bin below."""
    found: Floats = np.nextafter(1.0 - (np.arange(BINS, dtype=np.float64) + 1.0) * (2.0 / BINS), 2.0)
    found[-1] = -np.inf  # whatever rounding leaves below −1
    return found


def streamed_counts(unit: NDArray[np.float32], y: Whole) -> tuple[Whole, Whole]:
    """How many same and different pairs fall into each bin."""
    same, different = np.zeros(BINS, dtype=np.int64), np.zeros(BINS, dtype=np.int64)
    for scores, i, j in blocks(unit):
        place, alike = bin_of(scores), y[i] == y[j]
        same += np.bincount(place[alike], minlength=BINS)
        different += np.bincount(place[~alike], minlength=BINS)
    return same, different


def streamed_fold_counts(unit: NDArray[np.float32], y: Whole, fold: Whole) -> tuple[Floats, Floats]:
    """Same and different pairs within each fold of identities, [folds, bins], in bins of sixteen times the width."""
    rows = [fold[y] == k for k in range(int(fold.max()) + 1)]
    counts = [[kind.reshape(-1, 16).sum(1) for kind in streamed_counts(unit[part], y[part])] for part in rows]
    return np.array([same for same, _ in counts], dtype=np.float64), np.array([d for _, d in counts], dtype=np.float64)


class Counter:
    """Adds pairs to tables, a part at a time."""

    def __init__(self, identities: int, bins: int, fold: Whole | None) -> None:
        self.bins, self.fold = bins, fold
        self.unit = units_of(identities, fold)
        self.units = int(self.unit.max()) + 1
        size = self.units * bins
        self.same, self.different, self.in_fold = np.zeros(size), np.zeros(size), np.zeros(size)
        self.all_different = np.zeros(bins)
        self.folds = 0 if fold is None else int(fold.max()) + 1
        self.all_in_fold = np.zeros(max(self.folds, 1) * bins)

    def add(self, place: Whole, first: Whole, second: Whole) -> None:
        """Pairs in bins `place` of identities `first` and `second`."""
        bins, alike = self.bins, first == second
        a = self.unit[first] * bins + place
        self.same += np.bincount(a[alike], minlength=len(self.same))
        apart = ~alike
        place, first, second, a = place[apart], first[apart], second[apart], a[apart]
        self.all_different += np.bincount(place, minlength=bins)
        b = self.unit[second] * bins + place
        self.different += self._touching(a, b)
        if self.fold is not None:
            within = (self.fold[first] == self.fold[second]) & (self.fold[first] >= 0)
            self.in_fold += self._touching(a[within], b[within])
            where = self.fold[first][within] * bins + place[within]
            self.all_in_fold += np.bincount(where, minlength=len(self.all_in_fold))

    def _touching(self, a: Whole, b: Whole) -> Whole:
        """A pair counts for both of its units, and once where they are the same group."""
        size = len(self.different)
        found: Whole = np.bincount(a, minlength=size) + np.bincount(b[a != b], minlength=size)
        return found

    def tables(self, cuts: Floats) -> Tables:
        """What was counted."""
        shape = (self.units, self.bins)
        same, different = self.same.reshape(shape), self.different.reshape(shape)
        if self.fold is None:
            return Tables(same, different, self.all_different, None, None, None, cuts)
        in_fold, everywhere = self.in_fold.reshape(shape), self.all_in_fold.reshape(self.folds, self.bins)
        of_unit = np.zeros(self.units, dtype=np.int64)
        of_unit[self.unit] = self.fold
        return Tables(same, different, self.all_different, in_fold, everywhere, of_unit, cuts)


def units_of(identities: int, fold: Whole | None) -> Whole:
    """The row of each identity: its own, or that of its group; all identities of a group are of one fold."""
    if identities <= UNITS:
        return np.arange(identities)
    folds = 1 if fold is None else int(fold.max()) + 2  # one for identities without a fold
    found = np.empty(identities, dtype=np.int64)
    each = UNITS // folds
    for k in range(folds):
        rows = np.arange(identities) if fold is None else np.flatnonzero(fold == k - 1)
        found[rows] = k * each + np.arange(len(rows)) % each
    place: Whole = np.unique(found, return_inverse=True)[1].astype(np.int64)
    return place


def listed_tables(pairs: Pairs, cuts: Floats, fold: Whole | None, identities: int) -> Tables:
    """Tables of pairs in memory; `cuts` are the lowest scores of the bins, falling, and what is below has a bin too."""
    place = len(cuts) - np.searchsorted(cuts[::-1], pairs.scores, side="right")
    counter = Counter(identities, len(cuts) + 1, fold)
    counter.add(place, pairs.first, pairs.second)
    return counter.tables(cuts)


def streamed_tables(unit: NDArray[np.float32], y: Whole, cuts: Floats, fold: Whole | None) -> Tables:
    """Tables of all pairs of unit vectors, streamed; `cuts` are edges of the bins of `bin_of`."""
    coarse = len(cuts) - np.searchsorted(cuts[::-1], bin_edges(), side="right")
    counter = Counter(int(y.max()) + 1, len(cuts) + 1, fold)
    for scores, i, j in blocks(unit):
        counter.add(coarse[bin_of(scores)], y[i], y[j])
    return counter.tables(cuts)
