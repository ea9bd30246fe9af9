"""The ROC curve of scored pairs, and what is read off it: AUC, EER, TAR at a FAR, thresholds.

The formulas take curves as arrays whose last axis runs along the curve, from (0, 0) to (1, 1): one curve, or one for
every identity that is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Roc:
    """Every threshold with its FAR and TAR, from the strictest on."""

    thresholds: Floats
    far: Floats
    tar: Floats


def roc_curve(scores: Floats, same: NDArray[np.bool_]) -> Roc:
    """One point per distinct score, and (0, 0) in front.

    >>> roc = roc_curve(np.array([0.9, 0.8, 0.3]), np.array([True, False, True]))
    >>> roc.far.tolist(), roc.tar.tolist()
    ([0.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0])
    """
    ranked, alike = np.sort(scores)[::-1], np.sort(scores[same])  # plain sorts take a fraction of an argsort
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    accepted = len(alike) - np.searchsorted(alike, ranked[ends], side="left")
    return Roc(np.append(np.inf, ranked[ends]), *shares(ends + 1 - accepted, accepted))


def binned_roc(same: NDArray[np.int64], different: NDArray[np.int64], edges: Floats) -> Roc:
    """The same from counts in bins, the highest first, whose lowest scores are `edges`; pairs of a bin are tied."""
    there = np.flatnonzero(same + different)
    far, tar = shares(np.cumsum(different)[there], np.cumsum(same)[there])
    return Roc(np.append(np.inf, edges[there]), far, tar)


def shares(different: NDArray[np.generic], same: NDArray[np.generic]) -> tuple[Floats, Floats]:
    """FAR and TAR of the numbers of pairs accepted at falling thresholds, with 0 in front."""
    found = []
    for accepted in (different, same):
        padded = np.concatenate((np.zeros((*accepted.shape[:-1], 1)), accepted), axis=-1)
        found.append(padded / np.maximum(padded[..., -1:], 1e-300))
    return found[0], found[1]


def auc(roc: Roc) -> float:
    """Area under the curve: how likely a same pair scores above a different one, ties counted half."""
    return float(areas(roc.far, roc.tar))


def eer(roc: Roc) -> float:
    """Where FAR is 1 − TAR, between two points on the line that joins them."""
    return float(equal_errors(roc.far, roc.tar))


def tar_at(roc: Roc, far: float) -> float:
    """The largest TAR at a FAR of at most so much."""
    return float(roc.tar[place_of(roc, far)])


def threshold_of(roc: Roc, far: float) -> float:
    """The smallest threshold whose FAR is at most so much."""
    return float(roc.thresholds[place_of(roc, far)])


def place_of(roc: Roc, far: float) -> int:
    """The last point of the curve whose FAR is at most so much; rounding does not decide."""
    return int(np.searchsorted(roc.far, far * (1 + 1e-12), side="right")) - 1


def areas(far: Floats, tar: Floats) -> Floats:
    """AUC of each curve."""
    found: Floats = np.asarray(np.trapezoid(tar, far, axis=-1))
    return found


def equal_errors(far: Floats, tar: Floats) -> Floats:
    """EER of each curve."""
    gap = far - (1.0 - tar)  # rises from −1 to 1
    after = np.argmax(gap >= 0, axis=-1)[..., None]
    low, high = (np.take_along_axis(gap, k, -1) for k in (after - 1, after))
    before, behind = (np.take_along_axis(far, k, -1) for k in (after - 1, after))
    found: Floats = (before + -low / (high - low) * (behind - before))[..., 0]
    return found


def tars_between(far: Floats, tar: Floats, wanted: float) -> Floats:
    """TAR of each curve at a FAR, on the line between its points: of coarse curves, whose points lie elsewhere."""
    after = np.maximum(np.argmax(far >= wanted, axis=-1), 1)[..., None]
    before, behind = (np.take_along_axis(far, k, -1) for k in (after - 1, after))
    low, high = (np.take_along_axis(tar, k, -1) for k in (after - 1, after))
    share = (wanted - before) / np.maximum(behind - before, 1e-300)
    found: Floats = (low + np.clip(share, 0.0, 1.0) * (high - low))[..., 0]
    return found
