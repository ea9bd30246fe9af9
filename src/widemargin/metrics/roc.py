"""The ROC curve of scored pairs, and what is read off it: AUC, EER, TAR at a FAR, thresholds.

The formulas take curves as arrays whose last axis runs along the curve, from (0, 0) to (1, 1): one curve, or one for
every identity that is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class RocCurve:
    """Every threshold with its FAR and TAR, from the strictest on."""

    thresholds: FloatArray
    far: FloatArray
    tar: FloatArray


def roc_curve(scores: FloatArray, same: NDArray[np.bool_]) -> RocCurve:
    """One point per distinct score, and (0, 0) in front.

    >>> roc = roc_curve(np.array([0.9, 0.8, 0.3]), np.array([True, False, True]))
    >>> roc.far.tolist(), roc.tar.tolist()
    ([0.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0])
    """
    ranked, alike = np.sort(scores)[::-1], np.sort(scores[same])  # plain sorts take a fraction of an argsort
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    accepted = len(alike) - np.searchsorted(alike, ranked[ends], side="left")
    return RocCurve(np.append(np.inf, ranked[ends]), *far_and_tar(ends + 1 - accepted, accepted))


def binned_roc(same: NDArray[np.int64], different: NDArray[np.int64], edges: FloatArray) -> RocCurve:
    """The same from counts in bins, the highest first, whose lowest scores are `edges`; pairs of a bin are tied."""
    there = np.flatnonzero(same + different)
    far, tar = far_and_tar(np.cumsum(different)[there], np.cumsum(same)[there])
    return RocCurve(np.append(np.inf, edges[there]), far, tar)


def far_and_tar(different: NDArray[np.generic], same: NDArray[np.generic]) -> tuple[FloatArray, FloatArray]:
    """FAR and TAR of the numbers of pairs accepted at falling thresholds, with 0 in front."""
    found = []
    for accepted in (different, same):
        padded = np.concatenate((np.zeros((*accepted.shape[:-1], 1)), accepted), axis=-1)
        found.append(padded / np.maximum(padded[..., -1:], 1e-300))
    return found[0], found[1]


def auc(roc: RocCurve) -> float:
    """Area under the curve: how likely a same pair scores above a different one, ties counted half."""
    return float(auc_per_curve(roc.far, roc.tar))


def eer(roc: RocCurve) -> float:
    """Where FAR is 1 − TAR, between two points on the line that joins them."""
    return float(eer_per_curve(roc.far, roc.tar))


def tar_at(roc: RocCurve, far: float) -> float:
    """The largest TAR at a FAR of at most so much."""
    return float(roc.tar[roc_index_at_far(roc, far)])


def roc_threshold_at_far(roc: RocCurve, far: float) -> float:
    """The smallest threshold whose FAR is at most so much."""
    return float(roc.thresholds[roc_index_at_far(roc, far)])


def roc_index_at_far(roc: RocCurve, far: float) -> int:
    """The last point of the curve whose FAR is at most so much; rounding does not decide."""
    return int(np.searchsorted(roc.far, far * (1 + 1e-12), side="right")) - 1


def auc_per_curve(far: FloatArray, tar: FloatArray) -> FloatArray:
    """AUC of each curve."""
    found: FloatArray = np.asarray(np.trapezoid(tar, far, axis=-1))
    return found


def eer_per_curve(far: FloatArray, tar: FloatArray) -> FloatArray:
    """EER of each curve."""
    gap = far - (1.0 - tar)  # rises from −1 to 1
    after = np.argmax(gap >= 0, axis=-1)[..., None]
    low, high = (np.take_along_axis(gap, k, -1) for k in (after - 1, after))
    before, behind = (np.take_along_axis(far, k, -1) for k in (after - 1, after))
    found: FloatArray = (before + -low / (high - low) * (behind - before))[..., 0]
    return found


def interpolate_tar(far: FloatArray, tar: FloatArray, target_far: float) -> FloatArray:
    """TAR of each curve at a FAR, on the line between its points: of coarse curves, whose points lie elsewhere."""
    after = np.maximum(np.argmax(far >= target_far, axis=-1), 1)[..., None]
    before, behind = (np.take_along_axis(far, k, -1) for k in (after - 1, after))
    low, high = (np.take_along_axis(tar, k, -1) for k in (after - 1, after))
    share = (target_far - before) / np.maximum(behind - before, 1e-300)
    found: FloatArray = (low + np.clip(share, 0.0, 1.0) * (high - low))[..., 0]
    return found
