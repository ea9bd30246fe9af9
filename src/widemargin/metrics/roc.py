"""ROC curve of scored pairs, metrics derived from it (AUC, EER, TAR at a FAR, thresholds), and accuracy over folds.

Curves are arrays with points from (0, 0) to (1, 1) along the last axis: one curve, or one for every identity that is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..io.errors import InputError
from .intervals import MIN_EVENTS

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class RocCurve:
    """Every threshold with its FAR and TAR, highest threshold first."""

    thresholds: FloatArray
    far: FloatArray
    tar: FloatArray


def roc_curve(scores: FloatArray, same: NDArray[np.bool_]) -> RocCurve:
    """Return one point per distinct score, after (0, 0).

    >>> roc = roc_curve(np.array([0.9, 0.8, 0.3]), np.array([True, False, True]))
    >>> roc.far.tolist(), roc.tar.tolist()
    ([0.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0])
    """
    ranked, alike = np.sort(scores)[::-1], np.sort(scores[same])  # plain sorts are several times faster than an argsort
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    accepted = len(alike) - np.searchsorted(alike, ranked[ends], side="left")
    return RocCurve(np.append(np.inf, ranked[ends]), *far_and_tar(ends + 1 - accepted, accepted))


def binned_roc(same: NDArray[np.int64], different: NDArray[np.int64], edges: FloatArray) -> RocCurve:
    """ROC curve from counts in bins, highest scores first, with lowest scores `edges`; pairs in a bin are tied."""
    occupied = np.flatnonzero(same + different)
    far, tar = far_and_tar(np.cumsum(different)[occupied], np.cumsum(same)[occupied])
    return RocCurve(np.append(np.inf, edges[occupied]), far, tar)


def far_and_tar(different: NDArray[np.generic], same: NDArray[np.generic]) -> tuple[FloatArray, FloatArray]:
    """FAR and TAR from the numbers of pairs accepted at descending thresholds, after 0."""
    rates = []
    for accepted in (different, same):
        padded = np.concatenate((np.zeros((*accepted.shape[:-1], 1)), accepted), axis=-1)
        rates.append(padded / np.maximum(padded[..., -1:], 1e-300))
    return rates[0], rates[1]


def auc(roc: RocCurve) -> float:
    """Area under the curve: the probability that a same pair scores above a different one, ties counted half."""
    return float(auc_per_curve(roc.far, roc.tar))


def eer(roc: RocCurve) -> float:
    """Equal error rate: FAR where it equals 1 − TAR, linearly interpolated."""
    return float(eer_per_curve(roc.far, roc.tar))


def tar_at(roc: RocCurve, far: float) -> float:
    """The largest TAR at a FAR of at most `far`."""
    return float(roc.tar[roc_index_at_far(roc, far)])


def roc_threshold_at_far(roc: RocCurve, far: float) -> float:
    """The smallest threshold whose FAR is at most `far`."""
    return float(roc.thresholds[roc_index_at_far(roc, far)])


def roc_index_at_far(roc: RocCurve, far: float) -> int:
    """Index of the last point of the curve whose FAR is at most `far`, up to rounding."""
    return int(np.searchsorted(roc.far, far * (1 + 1e-12), side="right")) - 1


def auc_per_curve(far: FloatArray, tar: FloatArray) -> FloatArray:
    """AUC of each curve."""
    area: FloatArray = np.asarray(np.trapezoid(tar, far, axis=-1))
    return area


def eer_per_curve(far: FloatArray, tar: FloatArray) -> FloatArray:
    """EER of each curve."""
    gap = far - (1.0 - tar)  # rises from −1 to 1
    after = np.argmax(gap >= 0, axis=-1)[..., None]
    low, high = (np.take_along_axis(gap, k, -1) for k in (after - 1, after))
    before, behind = (np.take_along_axis(far, k, -1) for k in (after - 1, after))
    rate: FloatArray = (before + -low / (high - low) * (behind - before))[..., 0]
    return rate


def interpolate_tar(far: FloatArray, tar: FloatArray, target_far: float) -> FloatArray:
    """TAR of each curve at a FAR, linearly interpolated, for coarse curves without a point at that FAR."""
    after = np.maximum(np.argmax(far >= target_far, axis=-1), 1)[..., None]
    before, behind = (np.take_along_axis(far, k, -1) for k in (after - 1, after))
    low, high = (np.take_along_axis(tar, k, -1) for k in (after - 1, after))
    share = (target_far - before) / np.maximum(behind - before, 1e-300)
    rate: FloatArray = (low + np.clip(share, 0.0, 1.0) * (high - low))[..., 0]
    return rate


# Accuracy over folds (the LFW protocol): a fold is evaluated at the threshold that is best on the other folds.
#
# Folds are disjoint in identities if these are known, so that no identity of a fold influences its
# threshold. A pair of identities in two folds belongs to neither.

NUM_FOLDS = 10


def identity_folds(y: IntArray, num_folds: int = NUM_FOLDS, seed: int = 0) -> IntArray | None:
    """Return the fold of each identity [K] of images [N] (−1 without images), at least two per fold; None for too few.

    Identities with two images or more are distributed first, so that every fold has same pairs.

    >>> identity_folds(np.array([0, 0, 1, 1, 2, 2, 3, 3]), 2).tolist()
    [1, 0, 0, 1]
    """
    sizes = np.bincount(y)
    present = np.flatnonzero(sizes)
    num_folds = min(num_folds, int((sizes > 1).sum()), len(present) // 2)
    if num_folds < 2:
        return None
    order = np.random.default_rng(seed).permutation(present)
    order = np.concatenate((order[sizes[order] > 1], order[sizes[order] == 1]))
    folds = np.full(len(sizes), -1, dtype=np.int64)
    folds[order] = np.arange(len(order)) % num_folds
    return folds


def linked_folds(first: IntArray, second: IntArray, num_folds: int = NUM_FOLDS) -> IntArray | None:
    """Return the fold of each identity [K] such that few or no pairs span two folds; None for too few identities.

    Identities connected by pairs stay in one fold. If nearly all are connected, each is distributed by itself, and
    pairs that span two folds belong to none.

    >>> linked_folds(np.array([0, 0, 2, 2, 4, 4, 6, 6]), np.array([0, 1, 2, 3, 4, 5, 6, 7]), 2).tolist()
    [0, 0, 1, 1, 0, 0, 1, 1]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = int(max(first.max(), second.max())) + 1
    joined = coo_array((np.ones(len(first)), (first, second)), shape=(size, size))
    number, group = connected_components(joined, directed=False)
    kinds = [np.bincount(group[first[kind]], minlength=number) for kind in (first == second, first != second)]
    shares = np.stack([kind / max(kind.sum(), 1) for kind in kinds])  # share of the same and of the different pairs
    if number < 2 * num_folds or shares.max() > 2 / num_folds:
        return identity_folds(np.concatenate((first, second)), num_folds)
    of_group = np.empty(number, dtype=np.int64)
    filled = np.zeros((2, num_folds))
    for k in np.argsort(-shares.sum(0), kind="stable").tolist():
        of_group[k] = int(np.argmin(shares[:, k] @ filled))
        filled[:, of_group[k]] += shares[:, k]
    folds: IntArray = of_group[group]
    return folds


def pair_folds(first: IntArray, second: IntArray, fold_of_identity: IntArray | None) -> IntArray | None:
    """Return the fold of each pair [M] from the folds of its identities, −1 for a pair that spans two.

    None unless every fold has both kinds of pairs, and all folds together ten of each.
    """
    if fold_of_identity is None:
        return None
    a = fold_of_identity[first]
    folds: IntArray = np.where(a == fold_of_identity[second], a, -1)
    inside = np.flatnonzero(folds >= 0)
    alike = first[inside] == second[inside]
    kinds = [np.bincount(folds[inside[kind]], minlength=int(fold_of_identity.max()) + 1) for kind in (alike, ~alike)]
    is_valid = len(kinds[0]) > 1 and all(kind.min() > 0 and kind.sum() >= MIN_EVENTS for kind in kinds)
    return folds if is_valid else None


def fold_accuracies(scores: FloatArray, same: BoolArray, folds: IntArray, *, balanced: bool = False) -> FloatArray:
    """Accuracy of each fold at the best threshold of the others; `balanced` gives both kinds of pairs equal weight."""
    names = np.unique(folds[folds >= 0])
    if len(names) < 2:
        raise InputError("fold accuracy needs at least two folds")
    inside = np.flatnonzero(folds >= 0)
    inside = inside[np.argsort(-scores[inside], kind="stable")]  # sorting it again in `best_threshold` is fast
    scores, same, folds = scores[inside], same[inside], folds[inside]
    if balanced and any(len(np.unique(same[folds == name])) < 2 for name in names):
        raise InputError("balanced accuracy needs pairs of both kinds, same and different, in every fold")
    accuracies = []
    for name in names:
        here, others = folds == name, folds != name
        threshold = best_threshold(scores[others], same[others], balanced=balanced)
        right, kind = (scores[here] >= threshold) == same[here], same[here]
        accuracies.append((right[kind].mean() + right[~kind].mean()) / 2 if balanced else right.mean())
    return np.array(accuracies, dtype=np.float64)


def best_threshold(scores: FloatArray, same: BoolArray, *, balanced: bool = False) -> float:
    """Return the threshold with the highest accuracy, halfway to the next score, so that rounding does not matter."""
    order = np.argsort(-scores, kind="stable")
    ranked, kind = scores[order], same[order]
    gain, loss = (1 / max(int(kind.sum()), 1), 1 / max(int((~kind).sum()), 1)) if balanced else (1, 1)
    right = np.append(0, np.cumsum(np.where(kind, gain, -loss)))  # gain of accepting the first k
    ends = np.append(0, np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1) + 1)
    k = int(ends[np.argmax(right[ends])])
    if k == 0:
        return float(np.nextafter(ranked[0], np.inf))
    return float(ranked[k - 1]) if k == len(ranked) else float(ranked[k - 1] / 2 + ranked[k] / 2)


def fold_accuracies_from_counts(same: FloatArray, different: FloatArray, *, balanced: bool) -> FloatArray:
    """Accuracy of each fold from counts in bins [..., folds, bins], highest scores first.

    Thresholds are edges of bins.

    >>> fold_accuracies_from_counts(np.array([[5.0, 0], [4, 1]]), np.array([[0.0, 5], [1, 4]]), balanced=True).tolist()
    [1.0, 0.8]
    """
    alike, apart = (_cumulative_accepted(counts) for counts in (same, different))
    here = _accuracy_from_accepted(alike, apart, balanced)
    others = _accuracy_from_accepted(
        alike.sum(-2, keepdims=True) - alike, apart.sum(-2, keepdims=True) - apart, balanced
    )
    best = np.argmax(others, axis=-1)[..., None]
    accuracy: FloatArray = np.take_along_axis(here, best, -1)[..., 0]
    return accuracy


def _cumulative_accepted(counts: FloatArray) -> FloatArray:
    """Cumulative counts of accepted pairs down to each bin, starting with 0."""
    accepted: FloatArray = np.concatenate((np.zeros((*counts.shape[:-1], 1)), np.cumsum(counts, axis=-1)), axis=-1)
    return accepted


def _accuracy_from_accepted(same: FloatArray, different: FloatArray, balanced: bool) -> FloatArray:
    """Accuracy from the cumulative counts of accepted pairs of each kind, whose last entries are the totals."""
    alike, apart = np.maximum(same[..., -1:], 1e-300), np.maximum(different[..., -1:], 1e-300)
    plain: FloatArray = (same + apart - different) / (alike + apart)
    return (same / alike + 1.0 - different / apart) / 2 if balanced else plain
