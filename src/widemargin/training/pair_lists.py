"""Pairs that somebody listed: each counts once, and their identities are found out as far as the list tells them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PairSelection:
    """The rows of a list that count, and the identity of every image."""

    rows: Ints
    identities: Ints | None
    """Numbered from 0 on; None where the list contradicts itself."""
    notes: list[str]
    """What was left out and where the identities come from, a line each."""


def select_pairs(
    first: Ints, second: Ints, same: NDArray[np.bool_], folders: Sequence[str] | None = None
) -> PairSelection:
    """What to count of pairs of images, given by their places [M], [M]; `folders` are the images' own.

    A pair that stands there again, also the other way round, counts once; an image beside itself does not count. The
    identity of an image is its folder, if that agrees with every pair. Otherwise images that same pairs join are one
    identity, so that two images of one person which no chain of same pairs joins count as two.
    """
    low, high = np.minimum(first, second), np.maximum(first, second)
    apart = np.flatnonzero(low != high)
    number = low * (int(high.max(initial=0)) + 1) + high
    rows = apart[np.sort(np.unique(number[apart], return_index=True)[1])]
    notes = []
    if len(first) > len(apart):
        notes.append(f"{len(first) - len(apart):,} pairs are of an image with itself and do not count")
    if len(apart) > len(rows):
        notes.append(f"{len(apart) - len(rows):,} pairs stand there again and count once")
    first, second, same = first[rows], second[rows], same[rows]
    if folders is not None and len(rows):
        place = np.unique(np.asarray(folders), return_inverse=True)[1].astype(np.int64)
        if np.array_equal(place[first] == place[second], same):
            return PairSelection(
                rows, place, [*notes, "identities are the folders of the images, with which all pairs agree"]
            )
    images = int(max(first.max(initial=0), second.max(initial=0))) + 1
    joined = _component_labels(first[same], second[same], images)
    if (joined[first] == joined[second])[~same].any():
        said = "different pairs are joined by same ones, so identities are not known: no folds and no intervals"
        return PairSelection(rows, None, [*notes, said])
    return PairSelection(
        rows, joined, [*notes, "the list names no identities: images that same pairs join count as one"]
    )


def _component_labels(first: Ints, second: Ints, num_images: int) -> Ints:
    """A number for all images that pairs join."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = coo_array((np.ones(len(first)), (first, second)), shape=(num_images, num_images))
    found: Ints = connected_components(pairs, directed=False)[1].astype(np.int64)
    return found
