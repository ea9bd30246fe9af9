"""Verification: same or not? From scores of pairs to AUC, EER, TAR at a FAR, and the ten-fold accuracy of LFW.

A score is a similarity, larger for pairs that are more alike. A pair is accepted at a threshold when its score is at
least that. FAR is the share of different pairs that are accepted, TAR the share of same pairs.

Every distinct pair counts once. Intervals are over identities (`identity_intervals`): pairs that share an identity are
not independent. A rate that fewer than ten distinct pairs support is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError, shown
from . import pair_tables
from .folds import FOLDS, best_threshold, counted_accuracies, fold_accuracies, identity_folds, pair_folds
from .identity_intervals import LEAST_EVENTS, LEAST_IDENTITIES, interval, logit, spread
from .pair_tables import Pairs, Tables
from .roc import (
    Roc,
    areas,
    auc,
    binned_roc,
    eer,
    equal_errors,
    place_of,
    roc_curve,
    shares,
    tar_at,
    tars_between,
    threshold_of,
)

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]

__all__ = [
    "FARS",
    "Interval",
    "Roc",
    "Verification",
    "auc",
    "best_threshold",
    "eer",
    "fold_accuracies",
    "needed",
    "roc_curve",
    "supported",
    "tar_at",
    "threshold_at",
    "verify",
    "verify_embeddings",
    "verify_pairs",
]

FARS = (1e-1, 1e-2, 1e-3, 1e-4)
_AT_ONCE = 100  # identities that are left out at a time where folds are judged


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval over identities; where there is none, `why` says so in a few words."""

    value: float
    low: float | None
    high: float | None
    why: str | None = None

    @property
    def percent(self) -> str:
        """In words.

        >>> Interval(0.987, 0.98, 0.99).percent, Interval(1.0, None, None, "3 identities").percent
        ('98.70 % (98.00 to 99.00)', '100.00 % (no interval: 3 identities)')
        """
        if self.low is None or self.high is None:
            return f"{100 * self.value:.2f} %" + (f" (no interval: {self.why})" if self.why else "")
        return f"{100 * self.value:.2f} % ({100 * self.low:.2f} to {100 * self.high:.2f})"


@dataclass(frozen=True)
class Verification:
    """What a set of scored pairs says."""

    same: int
    different: int
    auc: Interval
    eer: Interval | None
    """None where fewer than ten pairs of a kind are wrong at its threshold."""
    tar: dict[float, Interval | None]
    """By FAR; None where fewer than ten different pairs, or fewer than ten same pairs, are accepted at it."""
    accuracy: float | None
    """Accuracy over folds at the threshold of the others, in percent; None without folds."""
    accuracy_error: float | None
    """Its standard error over the folds."""
    roc: Roc
    identities: int | None = None
    """How many identities the pairs are of; None where that is not known."""
    folds: int | None = None
    """How many folds the accuracy is of."""
    accuracy_interval: tuple[float, float] | None = None
    """95 % interval of the accuracy over identities, in percent."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why a figure is None, a line each, by its name: `eer`, `tar 0.001`."""
    resolution: float = 0.0
    """Width of the bins that scores were counted in; 0 where each was kept."""
    without: dict[str, Floats] = field(default_factory=dict, repr=False, compare=False)
    """Figures without each identity in turn [K] by name, also `auc` and `accuracy`; empty without intervals."""


def verify(
    scores: ArrayLike,
    same: ArrayLike,
    folds: ArrayLike | None = None,
    fars: Sequence[float] = FARS,
    *,
    identities: tuple[ArrayLike, ArrayLike] | None = None,
    balanced: bool = False,
    intervals: bool = True,
) -> Verification:
    """All figures of distinct pairs with `scores` [M] that are the `same` [M] or not.

    `folds` [M] number the parts of the LFW protocol, −1 for a pair of none. `identities` are the numbers of both
    identities of every pair, [M] and [M]; without them there are no intervals, for which pairs depend on each other is
    not known. With `balanced` each kind of pairs counts half in the accuracy of a fold, however many there are.
    """
    values, kinds = _checked(scores, same)
    _check_fars(fars)
    numbers = None if folds is None else _check_folds(folds, kinds)
    roc = roc_curve(values, kinds)
    accuracies = None if numbers is None else fold_accuracies(values, kinds, numbers, balanced=balanced)
    tables, count = None, None
    if identities is not None:
        pairs = _numbered(values, kinds, identities)
        count = int(max(pairs.first.max(), pairs.second.max())) + 1
        if intervals and count >= LEAST_IDENTITIES:
            fold = None if numbers is None else _fold_of_each(pairs, numbers, count)
            tables = pair_tables.listed_tables(pairs, _cuts(roc, fars), fold, count)
    sizes = (int(kinds.sum()), int((~kinds).sum()))
    return _figures(roc, sizes, fars, tables, accuracies, count, balanced, 0.0)


def verify_pairs(
    pairs: Pairs, fold: Whole | None, fars: Sequence[float] = FARS, *, balanced: bool = True, intervals: bool = True
) -> Verification:
    """The figures of scored pairs whose identities are numbered from 0 on, with the fold of each identity [K]."""
    scores, same = _checked(pairs.scores, pairs.same)
    count = int(max(pairs.first.max(), pairs.second.max())) + 1
    roc = roc_curve(scores, same)
    folds = pair_folds(pairs.first, pairs.second, fold)
    accuracies = None if folds is None else fold_accuracies(scores, same, folds, balanced=balanced)
    tables = None
    if intervals and count >= LEAST_IDENTITIES:
        tables = pair_tables.listed_tables(pairs, _cuts(roc, fars), None if folds is None else fold, count)
    sizes = (int(same.sum()), int((~same).sum()))
    return _figures(roc, sizes, fars, tables, accuracies, count, balanced, 0.0)


def verify_embeddings(
    x: Tensor, y: Tensor, fars: Sequence[float] = FARS, *, folds: int = FOLDS, intervals: bool = True
) -> Verification:
    """The figures of all distinct pairs of embeddings [N, D] of identities [N], by their cosines.

    An identity is in one fold, and a pair of two folds in none; each kind of pairs counts half in the accuracy. Up to
    `pair_tables.IN_MEMORY` pairs every score is kept; more are counted in bins of width `resolution`.
    """
    from ..angle import direction
    from ..labels import check_embedded

    check_embedded("verification", x, y)
    _check_fars(fars)
    unit: NDArray[np.float32] = direction(x.detach().float())[0].cpu().numpy()
    labels: Whole = np.unique(y.cpu().numpy(), return_inverse=True)[1].astype(np.int64)
    sizes = np.bincount(labels)
    same = int((sizes * (sizes - 1) // 2).sum())
    different = len(labels) * (len(labels) - 1) // 2 - same
    if not same or not different:
        raise InputError("pairs want two classes, and a class with two images")
    fold = identity_folds(labels, folds)
    if same + different <= pair_tables.IN_MEMORY:
        return verify_pairs(pair_tables.all_pairs(unit, labels), fold, fars, intervals=intervals)
    roc = binned_roc(*pair_tables.streamed_counts(unit, labels), pair_tables.bin_edges())
    accuracies = None
    if fold is not None:
        accuracies = counted_accuracies(*pair_tables.streamed_fold_counts(unit, labels, fold), balanced=True)
    tables = None
    if intervals and len(sizes) >= LEAST_IDENTITIES:
        tables = pair_tables.streamed_tables(unit, labels, _cuts(roc, fars), fold)
    return _figures(roc, (same, different), fars, tables, accuracies, len(sizes), True, 2.0 / pair_tables.BINS)


def threshold_at(scores: ArrayLike, same: ArrayLike, far: float) -> float:
    """The smallest threshold whose FAR on these pairs is at most so much."""
    return threshold_of(roc_curve(*_checked(scores, same)), far)


def supported(same: Flags, far: float) -> bool:
    """Whether there are enough different pairs for a TAR at this FAR to mean something."""
    return int((~same).sum()) * far >= LEAST_EVENTS - 1e-9


def needed(far: float) -> int:
    """Different pairs that a FAR needs."""
    return round(LEAST_EVENTS / far)


def _checked(scores: ArrayLike, same: ArrayLike) -> tuple[Floats, Flags]:
    try:
        given, kinds = np.asarray(scores), np.asarray(same)
        if given.dtype.kind not in "fiu" or not np.isin(kinds, (0, 1)).all():  # "False" and 2 would count as true
            raise ValueError
        values, flags = given.astype(np.float64), kinds.astype(bool)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("scores of pairs are real numbers, and each pair is the same (True) or not (False)") from None
    if values.ndim != 1 or values.shape != flags.shape:
        raise InputError(
            f"scores and labels of pairs must be two lists of one length, got {values.shape}, {flags.shape}"
        )
    if not np.isfinite(values).all():
        raise InputError("a score is not a number: an embedding holds NaN or infinity")
    if flags.all() or not flags.any():
        raise InputError("verification needs pairs of both kinds, same and different")
    return values, flags


def _check_fars(fars: Sequence[float]) -> None:
    if not all(isinstance(far, int | float) and 0 < far <= 1 for far in fars):
        raise InputError(f"fars={shown(fars)} must be rates above 0 and at most 1")


def _check_folds(folds: ArrayLike, same: Flags) -> Whole:
    if np.shape(folds) != same.shape:
        raise InputError(f"folds number every pair: {len(same)} are wanted, got shape {list(np.shape(folds))}")
    return np.asarray(folds).astype(np.int64)


def _numbered(scores: Floats, same: Flags, identities: tuple[ArrayLike, ArrayLike]) -> Pairs:
    """The pairs with their identities numbered from 0 on."""
    given = [np.asarray(part) for part in identities]
    if len(given) != 2 or any(part.shape != same.shape or part.dtype.kind not in "iuU" for part in given):
        raise InputError(f"identities are two lists of {len(same)} whole numbers or names, one for each side of a pair")
    if not np.array_equal(given[0] == given[1], same):
        raise InputError("a pair is the same exactly where both of its identities are")
    place = np.unique(np.concatenate(given), return_inverse=True)[1].astype(np.int64)
    return Pairs(scores, place[: len(same)], place[len(same) :])


def _fold_of_each(pairs: Pairs, folds: Whole, identities: int) -> Whole | None:
    """The fold of each identity; None where one stands in several, so that it cannot be left out of one alone."""
    names, numbers = np.unique(folds[folds >= 0], return_inverse=True)
    found = np.full(identities, -1, dtype=np.int64)
    inside = folds >= 0
    for side in (pairs.first[inside], pairs.second[inside]):
        found[side] = numbers
    for side in (pairs.first[inside], pairs.second[inside]):
        if not np.array_equal(found[side], numbers):
            return None
    outside = (found[pairs.first] == found[pairs.second]) & (found[pairs.first] >= 0) & ~inside
    return None if len(names) < 2 or outside.any() else found


def _cuts(roc: Roc, fars: Sequence[float]) -> Floats:
    """Some hundred thresholds, falling: dense where few different pairs are accepted or few same ones missed."""
    far, tar = roc.far, roc.tar
    rare = np.geomspace(max(float(far[far > 0][0]), 1e-9), 1.0, 200)
    missed = 1.0 - np.geomspace(max(float(1.0 - tar[tar < 1][-1]), 1e-9), 1.0, 60)
    places = [
        *(place_of(roc, wanted) for wanted in fars),
        *(np.searchsorted(far, rare, side="right") - 1),
        *(np.searchsorted(tar, np.append(missed, np.linspace(0.0, 1.0, 130)), side="left")),
    ]
    found: Floats = roc.thresholds[np.unique(np.clip(places, 1, len(far) - 1))]
    return found


def _without_each(tables: Tables, fars: Sequence[float], balanced: bool) -> dict[str, Floats]:
    """All figures without each identity in turn."""
    same = tables.same.sum(0) - tables.same
    far, tar = shares(np.cumsum(tables.all_different - tables.different, -1), np.cumsum(same, -1))
    found = {"auc": areas(far, tar), "eer": equal_errors(far, tar)}
    found |= {f"tar {wanted:g}": tars_between(far, tar, wanted) for wanted in fars}
    if tables.fold is not None and tables.in_fold is not None and tables.all_in_fold is not None:
        accuracies = _accuracies_without(tables, tables.fold, tables.in_fold, tables.all_in_fold, balanced)
        found |= {"accuracy": accuracies} if len(accuracies) else {}
    return found


def _accuracies_without(tables: Tables, fold: Whole, in_fold: Floats, all_in_fold: Floats, balanced: bool) -> Floats:
    """Means over the folds; an empty list where a fold would be left without pairs of a kind."""
    count, bins = all_in_fold.shape
    all_same = np.zeros((count, bins))
    np.add.at(all_same, fold[fold >= 0], tables.same[fold >= 0])
    found = np.empty(len(fold))
    for start in range(0, len(fold), _AT_ONCE):
        rows = np.arange(start, min(start + _AT_ONCE, len(fold)))
        same, different = (np.repeat(part[None], len(rows), 0) for part in (all_same, all_in_fold))
        placed = np.flatnonzero(fold[rows] >= 0)
        same[placed, fold[rows[placed]]] -= tables.same[rows[placed]]
        different[placed, fold[rows[placed]]] -= in_fold[rows[placed]]
        if not (same.sum(-1).all() and different.sum(-1).all()):
            return np.empty(0)
        found[rows] = counted_accuracies(same, different, balanced=balanced).mean(-1)
    return found


def _refused(roc: Roc, same: int, different: int, fars: Sequence[float]) -> dict[str, str]:
    """Why figures are not given, in a line each."""
    found = {}
    least = min(same, different)
    if eer(roc) * least < LEAST_EVENTS - 1e-9:
        kind = "same pairs are missed" if same <= different else "different pairs are accepted"
        bound = 100.0 * LEAST_EVENTS / least
        below = f"; it is below {bound:.2g} %" if bound < 50 else ""
        found["eer"] = f"EER needs at least {LEAST_EVENTS} errors of each kind: fewer {kind}{below}"
    for far in fars:
        place = place_of(roc, far)
        accepted, named = round(float(roc.far[place]) * different), round(float(roc.tar[place]) * same)
        if min(accepted, named) >= LEAST_EVENTS:
            continue
        if not different * far >= LEAST_EVENTS - 1e-9:
            have = f"{LEAST_EVENTS} false accepts: {needed(far):,} different pairs; there are {different:,}"
        elif accepted < LEAST_EVENTS:
            have = f"{LEAST_EVENTS} false accepts: scores are tied, so that there are {accepted}"
        elif same < LEAST_EVENTS:
            have = f"{LEAST_EVENTS} same pairs; there are {same:,}"
        else:
            have = f"{LEAST_EVENTS} same pairs accepted; there are {named}"
        found[f"tar {far:g}"] = f"FAR {far:g} needs at least {have}"
    return found


def _figures(
    roc: Roc,
    sizes: tuple[int, int],
    fars: Sequence[float],
    tables: Tables | None,
    accuracies: Floats | None,
    identities: int | None,
    balanced: bool,
    resolution: float,
) -> Verification:
    """All figures of a curve, with intervals where there are tables."""
    same, different = sizes
    refused = _refused(roc, same, different, fars)
    given = [far for far in fars if f"tar {far:g}" not in refused]
    without = {} if tables is None else _without_each(tables, given, balanced)
    none = None
    if identities is None:
        none = "which pairs share an identity is not known"
    elif identities < LEAST_IDENTITIES:
        none = f"{identities} identities, {LEAST_IDENTITIES} are needed"

    def known(name: str, value: float, few: str | None = None) -> Interval:
        if name not in without or few:
            return Interval(value, None, None, few if name in without else none)
        ends = interval(value, without[name])
        if ends is not None:
            return Interval(value, *ends)
        one = spread(logit(without[name])).variance > 0
        return Interval(value, None, None, f"{'hardly more than one' if one else 'no'} identity makes a difference")

    few_errors = f"fewer than {LEAST_EVENTS} errors of a kind" if "eer" in refused else None
    tar: dict[float, Interval | None] = dict.fromkeys(fars)
    for far in given:
        value, few = tar_at(roc, far), None
        touched = None if tables is None else _touched(tables, threshold_of(roc, far))
        if touched is not None and touched < LEAST_IDENTITIES:
            few = f"the false accepts are of {touched} identities"
        elif round((1.0 - value) * same) < LEAST_EVENTS:
            few = f"fewer than {LEAST_EVENTS} same pairs are missed"
        tar[far] = known(f"tar {far:g}", value, few)
    mean = None if accuracies is None else float(accuracies.mean())
    ends = None
    if mean is not None and "accuracy" in without and few_errors is None:
        ends = interval(mean, without["accuracy"])
    return Verification(
        same=same,
        different=different,
        auc=known("auc", auc(roc), few_errors),
        eer=None if "eer" in refused else known("eer", eer(roc)),
        tar=tar,
        accuracy=None if mean is None else 100.0 * mean,
        accuracy_error=None if accuracies is None else 100.0 * float(accuracies.std(ddof=1) / np.sqrt(len(accuracies))),
        roc=roc,
        identities=identities,
        folds=None if accuracies is None else len(accuracies),
        accuracy_interval=None if ends is None else (100.0 * ends[0], 100.0 * ends[1]),
        refused=refused,
        resolution=resolution,
        without=without,
    )


def _touched(tables: Tables, threshold: float) -> int:
    """How many identities the different pairs are of that a threshold accepts."""
    bins = int(np.searchsorted(-tables.cuts, -threshold, side="right"))
    return int((tables.different[:, :bins].sum(1) > 0).sum())
