"""Verification: same or not? From scores of pairs to ROC, AUC, EER, TAR at a FAR, and the ten-fold accuracy of LFW.

A score is a similarity, larger for pairs that are more alike. A pair is accepted at a threshold when its score is at
least that. FAR is the share of different pairs that are accepted, TAR the share of same pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, shown

Floats = NDArray[np.float64]

FARS = (1e-1, 1e-2, 1e-3, 1e-4)
_RESTS_ON = 10  # false accepts a threshold must rest on, or its TAR is a matter of luck
_DRAWS = 1000


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Roc:
    """Every threshold with its FAR and TAR, from the strictest on."""

    thresholds: Floats
    far: Floats
    tar: Floats


@dataclass(frozen=True)
class Verification:
    """What a set of scored pairs says."""

    same: int
    different: int
    auc: Interval
    eer: Interval
    tar: dict[float, Interval | None]
    """By FAR; None where the number of different pairs cannot support it."""
    accuracy: float | None
    """Ten-fold best-threshold accuracy in percent, None without folds."""
    accuracy_error: float | None
    """Its standard error over the folds."""
    roc: Roc


def verify(
    scores: Floats,
    same: NDArray[np.bool_],
    folds: NDArray[np.int64] | None = None,
    fars: Sequence[float] = FARS,
    seed: int = 0,
    draws: int = _DRAWS,
) -> Verification:
    """All figures of pairs with `scores` [M] that are the `same` [M] or not; `folds` [M] number the LFW parts.

    Intervals are of so many bootstrap samples; without any they are NaN.
    """
    scores, same = _checked(scores, same)
    if folds is not None and np.shape(folds) != same.shape:
        raise InputError(f"folds number every pair: {len(same)} are wanted, got shape {list(np.shape(folds))}")
    if not all(isinstance(far, int | float) and 0 < far <= 1 for far in fars):
        raise InputError(f"fars={shown(fars)} must be rates above 0 and at most 1")
    roc = roc_curve(scores, same)
    drawn = _bootstrap(scores, same, fars, seed, draws)
    found = {far: _interval(tar_at(roc, far), drawn[far]) if supported(same, far) else None for far in fars}
    accuracy = None if folds is None else fold_accuracies(scores, same, folds)
    return Verification(
        same=int(same.sum()),
        different=int((~same).sum()),
        auc=_interval(auc(roc), drawn["auc"]),
        eer=_interval(eer(roc), drawn["eer"]),
        tar=found,
        accuracy=None if accuracy is None else 100.0 * float(accuracy.mean()),
        accuracy_error=None if accuracy is None else 100.0 * float(accuracy.std(ddof=1) / np.sqrt(len(accuracy))),
        roc=roc,
    )


def _checked(scores: Floats, same: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    try:
        scores, kinds = np.asarray(scores), np.asarray(same)
        if scores.dtype.kind not in "fiu" or not np.isin(kinds, (0, 1)).all():  # "False" and 2 would count as true
            raise ValueError
        scores, same = scores.astype(np.float64), kinds.astype(bool)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("scores of pairs are real numbers, and each pair is the same (True) or not (False)") from None
    if scores.ndim != 1 or scores.shape != same.shape:
        raise InputError(
            f"scores and labels of pairs must be two lists of one length, got {scores.shape}, {same.shape}"
        )
    if not np.isfinite(scores).all():
        raise InputError("a score is not a number: an embedding holds NaN or infinity")
    if same.all() or not same.any():
        raise InputError("verification needs pairs of both kinds, same and different")
    return scores, same


def roc_curve(scores: Floats, same: NDArray[np.bool_], weight: Floats | None = None) -> Roc:
    """One point per distinct score, and (0, 0) in front.

    >>> roc = roc_curve(np.array([0.9, 0.8, 0.3]), np.array([True, False, True]))
    >>> roc.far.tolist(), roc.tar.tolist()
    ([0.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0])
    """
    order = np.argsort(-scores, kind="stable")
    ranked, kind = scores[order], same[order]
    count = np.ones(len(scores)) if weight is None else weight[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    tar = np.cumsum(count * kind)[ends]
    far = np.cumsum(count * ~kind)[ends]
    return Roc(
        np.append(np.inf, ranked[ends]),
        np.append(0.0, far) / max(far[-1], 1e-300),
        np.append(0.0, tar) / max(tar[-1], 1e-300),
    )


def auc(roc: Roc) -> float:
    """Area under the curve: how likely a same pair scores above a different one, ties counted half."""
    return float(np.trapezoid(roc.tar, roc.far))


def eer(roc: Roc) -> float:
    """Where FAR is 1 − TAR, between two points on the line that joins them."""
    gap = roc.far - (1.0 - roc.tar)  # rises from −1 to 1
    after = int(np.argmax(gap >= 0))
    if after == 0:
        return float(roc.far[0])
    low, high = gap[after - 1], gap[after]
    share = -low / (high - low)
    return float(roc.far[after - 1] + share * (roc.far[after] - roc.far[after - 1]))


def tar_at(roc: Roc, far: float) -> float:
    """The largest TAR at a FAR of at most so much."""
    return float(roc.tar[np.searchsorted(roc.far, far, side="right") - 1])


def threshold_at(scores: Floats, same: NDArray[np.bool_], far: float) -> float:
    """The smallest threshold whose FAR on these pairs is at most so much."""
    roc = roc_curve(*_checked(scores, same))
    return float(roc.thresholds[np.searchsorted(roc.far, far, side="right") - 1])


def supported(same: NDArray[np.bool_], far: float) -> bool:
    """Whether there are enough different pairs for a TAR at this FAR to mean something."""
    return float((~same).sum()) * far >= _RESTS_ON - 1e-9


def needed(far: float) -> int:
    """Different pairs that a FAR needs."""
    return round(_RESTS_ON / far)


def fold_accuracies(scores: Floats, same: NDArray[np.bool_], folds: NDArray[np.int64]) -> Floats:
    """Accuracy of each fold at the threshold that is best on the others (the LFW protocol)."""
    names = np.unique(folds)
    if len(names) < 2:
        raise InputError("fold accuracy needs at least two folds")
    found = []
    for name in names:
        here = folds == name
        threshold = best_threshold(scores[~here], same[~here])
        found.append(float(((scores[here] >= threshold) == same[here]).mean()))
    return np.array(found)


def folds_of(same: NDArray[np.bool_], count: int = 10) -> NDArray[np.int64] | None:
    """Numbers of as many folds [M], both kinds spread evenly over them; None where there are too few pairs.

    >>> folds_of(np.array([True, False] * 4), 2).tolist()
    [0, 0, 1, 1, 0, 0, 1, 1]
    """
    if min(int(same.sum()), int((~same).sum())) < count:
        return None
    found = np.empty(len(same), dtype=np.int64)
    for kind in (same, ~same):
        found[kind] = np.arange(int(kind.sum())) % count
    return found


def best_threshold(scores: Floats, same: NDArray[np.bool_]) -> float:
    """The threshold with the most right answers; halfway to the next score, so that rounding does not decide."""
    order = np.argsort(-scores, kind="stable")
    ranked, kind = scores[order], same[order]
    right = np.append(0, np.cumsum(np.where(kind, 1, -1)))  # gained by accepting the first k
    ends = np.append(0, np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1) + 1)
    k = int(ends[np.argmax(right[ends])])
    if k == 0:
        return float(np.nextafter(ranked[0], np.inf))
    return float(ranked[k - 1]) if k == len(ranked) else float(ranked[k - 1] / 2 + ranked[k] / 2)


def _bootstrap(
    scores: Floats, same: NDArray[np.bool_], fars: Sequence[float], seed: int, draws: int
) -> dict[float | str, Floats]:
    """Figures of samples drawn with replacement, same and different pairs each among themselves."""
    draw = np.random.default_rng(seed)
    order = np.argsort(-scores, kind="stable")
    scores, same = scores[order], same[order]  # what is sorted already is sorted again in no time
    names: list[float | str] = ["auc", "eer", *fars]
    found: dict[float | str, list[float]] = {name: [] for name in names}
    kinds = [np.flatnonzero(same), np.flatnonzero(~same)]
    for _ in range(draws):
        weight = np.zeros(len(scores))
        for rows in kinds:
            weight[rows] = np.bincount(draw.integers(len(rows), size=len(rows)), minlength=len(rows))
        roc = roc_curve(scores, same, weight)
        found["auc"].append(auc(roc))
        found["eer"].append(eer(roc))
        for far in fars:
            found[far].append(tar_at(roc, far))
    return {name: np.array(values) for name, values in found.items()}


def _interval(value: float, drawn: Floats) -> Interval:
    low, high = np.quantile(drawn, (0.025, 0.975)) if len(drawn) else (np.nan, np.nan)
    return Interval(value, float(low), float(high))
