"""Verification metrics from scores of pairs: AUC, EER, TAR at a FAR, and the ten-fold accuracy of LFW.

A score is a similarity, larger for pairs that are more alike. A pair is accepted if its score is at least the
threshold. FAR is the fraction of different pairs that are accepted, TAR that of same pairs.

Every distinct pair counts once. Intervals are over identities (`metrics.intervals`): pairs that share an identity are
not independent. A rate supported by fewer than ten distinct pairs is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..io.errors import InputError, format_value
from . import pair_counts
from .intervals import MIN_EVENTS, MIN_IDENTITIES, jackknife_interval, jackknife_variance, logit
from .pair_counts import PairCountTables, ScoredPairs
from .roc import (
    NUM_FOLDS,
    RocCurve,
    auc,
    auc_per_curve,
    best_threshold,
    binned_roc,
    eer,
    eer_per_curve,
    far_and_tar,
    fold_accuracies,
    fold_accuracies_from_counts,
    identity_folds,
    interpolate_tar,
    pair_folds,
    roc_curve,
    roc_index_at_far,
    roc_threshold_at_far,
    tar_at,
)

if TYPE_CHECKING:
    from torch import Tensor


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

__all__ = [
    "DEFAULT_FARS",
    "IntervalEstimate",
    "RocCurve",
    "VerificationMetrics",
    "auc",
    "best_threshold",
    "eer",
    "fold_accuracies",
    "has_enough_different_pairs",
    "required_different_pairs",
    "roc_curve",
    "tar_at",
    "threshold_at_far",
    "verification_metrics",
    "verification_metrics_of_embeddings",
    "verification_metrics_of_pairs",
]

DEFAULT_FARS = (1e-1, 1e-2, 1e-3, 1e-4)
_IDENTITIES_PER_CHUNK = 100  # identities that are left out at a time for the accuracy over folds


@dataclass(frozen=True)
class IntervalEstimate:
    """A metric with its 95 % interval over identities; without an interval, `reason` says why."""

    value: float
    low: float | None
    high: float | None
    reason: str | None = None

    @property
    def percent_text(self) -> str:
        """Format the metric and its interval in percent.

        >>> IntervalEstimate(0.987, 0.98, 0.99).percent_text
        '98.70 % (98.00 to 99.00)'
        >>> IntervalEstimate(1.0, None, None, "3 identities").percent_text
        '100.00 % (no interval: 3 identities)'
        """
        if self.low is None or self.high is None:
            return f"{100 * self.value:.2f} %" + (f" (no interval: {self.reason})" if self.reason else "")
        return f"{100 * self.value:.2f} % ({100 * self.low:.2f} to {100 * self.high:.2f})"


@dataclass(frozen=True)
class VerificationMetrics:
    """Metrics of a set of scored pairs."""

    num_same: int
    num_different: int
    auc: IntervalEstimate
    eer: IntervalEstimate | None
    """None if fewer than ten pairs of a kind are wrong at its threshold."""
    tar: dict[float, IntervalEstimate | None]
    """TAR by FAR; None if fewer than ten different pairs, or fewer than ten same pairs, are accepted at it."""
    accuracy: float | None
    """Mean accuracy over folds, each at the best threshold of the others, in percent; None without folds."""
    accuracy_error: float | None
    """Standard error of the accuracy over the folds."""
    roc: RocCurve
    num_identities: int | None = None
    """Number of identities; None if unknown."""
    num_folds: int | None = None
    """Number of folds of the accuracy."""
    accuracy_interval: tuple[float, float] | None = None
    """95 % interval of the accuracy over identities, in percent."""
    missing_reasons: dict[str, str] = field(default_factory=dict)
    """Why a metric is None, one line each, by its name: `eer`, `tar 0.001`."""
    resolution: float = 0.0
    """Width of the bins in which scores were counted; 0 if each score was kept."""
    leave_one_out: dict[str, FloatArray] = field(default_factory=dict, repr=False, compare=False)
    """Metrics without each identity in turn [K] by name, also `auc` and `accuracy`; empty without intervals."""


def verification_metrics(
    scores: ArrayLike,
    same: ArrayLike,
    folds: ArrayLike | None = None,
    fars: Sequence[float] = DEFAULT_FARS,
    *,
    identities: tuple[ArrayLike, ArrayLike] | None = None,
    balanced: bool = False,
    intervals: bool = True,
) -> VerificationMetrics:
    """Compute all metrics of distinct pairs with `scores` [M] that are the `same` [M] or not.

    `folds` [M] are the parts of the LFW protocol, −1 for a pair in none. `identities` are both identities of every
    pair, [M] and [M]; without them there are no intervals, because the dependence between pairs is unknown. With
    `balanced`, same and different pairs have equal weight in the accuracy of a fold.
    """
    values, kinds = _check_scores(scores, same)
    _check_fars(fars)
    numbers = None if folds is None else _check_folds(folds, kinds)
    roc = roc_curve(values, kinds)
    accuracies = None if numbers is None else fold_accuracies(values, kinds, numbers, balanced=balanced)
    tables, count = None, None
    if identities is not None:
        pairs = _number_identities(values, kinds, identities)
        count = int(max(pairs.first.max(), pairs.second.max())) + 1
        if intervals and count >= MIN_IDENTITIES:
            fold = None if numbers is None else _find_identity_folds(pairs, numbers, count)
            tables = pair_counts.tables_from_pairs(pairs, _select_thresholds(roc, fars), fold, count)
    sizes = (int(kinds.sum()), int((~kinds).sum()))
    return _compute_metrics(roc, sizes, fars, tables, accuracies, count, balanced, 0.0)


def verification_metrics_of_pairs(
    pairs: ScoredPairs,
    fold_of_identity: IntArray | None,
    fars: Sequence[float] = DEFAULT_FARS,
    *,
    balanced: bool = True,
    intervals: bool = True,
) -> VerificationMetrics:
    """Compute the metrics of scored pairs with identities numbered from 0, and the fold of each identity [K]."""
    scores, same = _check_scores(pairs.scores, pairs.same)
    count = int(max(pairs.first.max(), pairs.second.max())) + 1
    roc = roc_curve(scores, same)
    folds = pair_folds(pairs.first, pairs.second, fold_of_identity)
    accuracies = None if folds is None else fold_accuracies(scores, same, folds, balanced=balanced)
    tables = None
    if intervals and count >= MIN_IDENTITIES:
        tables = pair_counts.tables_from_pairs(
            pairs, _select_thresholds(roc, fars), None if folds is None else fold_of_identity, count
        )
    sizes = (int(same.sum()), int((~same).sum()))
    return _compute_metrics(roc, sizes, fars, tables, accuracies, count, balanced, 0.0)


def verification_metrics_of_embeddings(
    x: Tensor, y: Tensor, fars: Sequence[float] = DEFAULT_FARS, *, num_folds: int = NUM_FOLDS, intervals: bool = True
) -> VerificationMetrics:
    """Compute the metrics of all distinct pairs of embeddings [N, D] of identities [N], by their cosines.

    An identity is in one fold, and a pair that spans two folds in none; same and different pairs have equal weight in
    the accuracy. Up to `pair_counts.MAX_IN_MEMORY_PAIRS` pairs every score is kept; more are counted in bins of width
    `resolution`.
    """
    from ..numerics.angles import unit_and_norm
    from ..numerics.validation import check_embeddings_and_labels

    check_embeddings_and_labels("verification", x, y)
    _check_fars(fars)
    unit: NDArray[np.float32] = unit_and_norm(x.detach().float())[0].cpu().numpy()
    labels: IntArray = np.unique(y.cpu().numpy(), return_inverse=True)[1].astype(np.int64)
    sizes = np.bincount(labels)
    same = int((sizes * (sizes - 1) // 2).sum())
    different = len(labels) * (len(labels) - 1) // 2 - same
    if not same or not different:
        raise InputError("verification needs at least two classes, and one class with at least two images")
    fold = identity_folds(labels, num_folds)
    if same + different <= pair_counts.MAX_IN_MEMORY_PAIRS:
        return verification_metrics_of_pairs(pair_counts.all_pairs(unit, labels), fold, fars, intervals=intervals)
    roc = binned_roc(*pair_counts.streamed_counts(unit, labels), pair_counts.bin_edges())
    accuracies = None
    if fold is not None:
        accuracies = fold_accuracies_from_counts(*pair_counts.streamed_fold_counts(unit, labels, fold), balanced=True)
    tables = None
    if intervals and len(sizes) >= MIN_IDENTITIES:
        tables = pair_counts.streamed_tables(unit, labels, _select_thresholds(roc, fars), fold)
    return _compute_metrics(
        roc, (same, different), fars, tables, accuracies, len(sizes), True, 2.0 / pair_counts.NUM_BINS
    )


def threshold_at_far(scores: ArrayLike, same: ArrayLike, far: float) -> float:
    """Return the smallest threshold with a FAR of at most `far` on these pairs."""
    return roc_threshold_at_far(roc_curve(*_check_scores(scores, same)), far)


def has_enough_different_pairs(same: BoolArray, far: float) -> bool:
    """True if there are enough different pairs to estimate a TAR at this FAR."""
    return int((~same).sum()) * far >= MIN_EVENTS - 1e-9


def required_different_pairs(far: float) -> int:
    """Number of different pairs needed to estimate a FAR."""
    return round(MIN_EVENTS / far)


def _check_scores(scores: ArrayLike, same: ArrayLike) -> tuple[FloatArray, BoolArray]:
    try:
        array, kinds = np.asarray(scores), np.asarray(same)
        if array.dtype.kind not in "fiu" or not np.isin(kinds, (0, 1)).all():  # "False" and 2 would count as true
            raise ValueError
        values, flags = array.astype(np.float64), kinds.astype(bool)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("scores must be real numbers, and `same` True or False for each pair") from None
    if values.ndim != 1 or values.shape != flags.shape:
        raise InputError(
            f"scores and same must be two lists of one length, got shapes {values.shape} and {flags.shape}"
        )
    if not np.isfinite(values).all():
        raise InputError("a score is NaN: an embedding contains NaN or infinity")
    if flags.all() or not flags.any():
        raise InputError("verification needs pairs of both kinds, same and different")
    return values, flags


def _check_fars(fars: Sequence[float]) -> None:
    if not all(isinstance(far, int | float) and 0 < far <= 1 for far in fars):
        raise InputError(f"fars={format_value(fars)} must be rates above 0 and at most 1")


def _check_folds(folds: ArrayLike, same: BoolArray) -> IntArray:
    if np.shape(folds) != same.shape:
        raise InputError(f"folds must have one number per pair, shape [{len(same)}], got {list(np.shape(folds))}")
    return np.asarray(folds).astype(np.int64)


def _number_identities(scores: FloatArray, same: BoolArray, identities: tuple[ArrayLike, ArrayLike]) -> ScoredPairs:
    """Return the pairs with their identities numbered from 0."""
    sides = [np.asarray(part) for part in identities]
    if len(sides) != 2 or any(part.shape != same.shape or part.dtype.kind not in "iuU" for part in sides):
        raise InputError(f"identities must be two lists of {len(same)} integers or names, one for each side of a pair")
    if not np.array_equal(sides[0] == sides[1], same):
        raise InputError("identities contradict `same`: it must be True exactly where both identities are equal")
    place = np.unique(np.concatenate(sides), return_inverse=True)[1].astype(np.int64)
    return ScoredPairs(scores, place[: len(same)], place[len(same) :])


def _find_identity_folds(pairs: ScoredPairs, folds: IntArray, num_identities: int) -> IntArray | None:
    """Return the fold of each identity; None if one is in several folds, so that it cannot be left out of just one."""
    names, numbers = np.unique(folds[folds >= 0], return_inverse=True)
    fold_of = np.full(num_identities, -1, dtype=np.int64)
    inside = folds >= 0
    for side in (pairs.first[inside], pairs.second[inside]):
        fold_of[side] = numbers
    for side in (pairs.first[inside], pairs.second[inside]):
        if not np.array_equal(fold_of[side], numbers):
            return None
    outside = (fold_of[pairs.first] == fold_of[pairs.second]) & (fold_of[pairs.first] >= 0) & ~inside
    return None if len(names) < 2 or outside.any() else fold_of


def _select_thresholds(roc: RocCurve, fars: Sequence[float]) -> FloatArray:
    """Return some hundred thresholds, descending: dense at few false accepts and at few misses."""
    far, tar = roc.far, roc.tar
    rare = np.geomspace(max(float(far[far > 0][0]), 1e-9), 1.0, 200)
    missed = 1.0 - np.geomspace(max(float(1.0 - tar[tar < 1][-1]), 1e-9), 1.0, 60)
    places = [
        *(roc_index_at_far(roc, target) for target in fars),
        *(np.searchsorted(far, rare, side="right") - 1),
        *(np.searchsorted(tar, np.append(missed, np.linspace(0.0, 1.0, 130)), side="left")),
    ]
    thresholds: FloatArray = roc.thresholds[np.unique(np.clip(places, 1, len(far) - 1))]
    return thresholds


def _leave_one_out_metrics(tables: PairCountTables, fars: Sequence[float], balanced: bool) -> dict[str, FloatArray]:
    """Compute all metrics without each identity in turn."""
    same = tables.same.sum(0) - tables.same
    far, tar = far_and_tar(np.cumsum(tables.all_different - tables.different, -1), np.cumsum(same, -1))
    metrics = {"auc": auc_per_curve(far, tar), "eer": eer_per_curve(far, tar)}
    metrics |= {f"tar {target:g}": interpolate_tar(far, tar, target) for target in fars}
    if (
        tables.fold_of_group is not None
        and tables.different_in_fold is not None
        and tables.all_different_in_fold is not None
    ):
        accuracies = _leave_one_out_accuracies(
            tables, tables.fold_of_group, tables.different_in_fold, tables.all_different_in_fold, balanced
        )
        metrics |= {"accuracy": accuracies} if len(accuracies) else {}
    return metrics


def _leave_one_out_accuracies(
    tables: PairCountTables,
    fold_of_group: IntArray,
    different_in_fold: FloatArray,
    all_different_in_fold: FloatArray,
    balanced: bool,
) -> FloatArray:
    """Return means over the folds; an empty list if a fold would have no pairs of a kind."""
    count, bins = all_different_in_fold.shape
    all_same = np.zeros((count, bins))
    np.add.at(all_same, fold_of_group[fold_of_group >= 0], tables.same[fold_of_group >= 0])
    accuracies = np.empty(len(fold_of_group))
    for start in range(0, len(fold_of_group), _IDENTITIES_PER_CHUNK):
        rows = np.arange(start, min(start + _IDENTITIES_PER_CHUNK, len(fold_of_group)))
        same, different = (np.repeat(part[None], len(rows), 0) for part in (all_same, all_different_in_fold))
        placed = np.flatnonzero(fold_of_group[rows] >= 0)
        same[placed, fold_of_group[rows[placed]]] -= tables.same[rows[placed]]
        different[placed, fold_of_group[rows[placed]]] -= different_in_fold[rows[placed]]
        if not (same.sum(-1).all() and different.sum(-1).all()):
            return np.empty(0)
        accuracies[rows] = fold_accuracies_from_counts(same, different, balanced=balanced).mean(-1)
    return accuracies


def _find_missing_reasons(roc: RocCurve, num_same: int, num_different: int, fars: Sequence[float]) -> dict[str, str]:
    """Return why metrics are None, one line each."""
    reasons = {}
    least = min(num_same, num_different)
    if eer(roc) * least < MIN_EVENTS - 1e-9:
        kind = "same pairs are missed" if num_same <= num_different else "different pairs are accepted"
        bound = 100.0 * MIN_EVENTS / least
        below = f"; it is below {bound:.2g} %" if bound < 50 else ""
        reasons["eer"] = f"EER needs at least {MIN_EVENTS} errors of each kind: fewer {kind}{below}"
    for far in fars:
        place = roc_index_at_far(roc, far)
        accepted, accepted_same = round(float(roc.far[place]) * num_different), round(float(roc.tar[place]) * num_same)
        if min(accepted, accepted_same) >= MIN_EVENTS:
            continue
        if not num_different * far >= MIN_EVENTS - 1e-9:
            needed = f"{required_different_pairs(far):,} different pairs"
            have = f"{MIN_EVENTS} false accepts: {needed}; there are {num_different:,}"
        elif accepted < MIN_EVENTS:
            have = f"{MIN_EVENTS} false accepts: scores are tied, so that there are {accepted}"
        elif num_same < MIN_EVENTS:
            have = f"{MIN_EVENTS} same pairs; there are {num_same:,}"
        else:
            have = f"{MIN_EVENTS} same pairs accepted; there are {accepted_same}"
        reasons[f"tar {far:g}"] = f"FAR {far:g} needs at least {have}"
    return reasons


def _compute_metrics(
    roc: RocCurve,
    sizes: tuple[int, int],
    fars: Sequence[float],
    tables: PairCountTables | None,
    accuracies: FloatArray | None,
    num_identities: int | None,
    balanced: bool,
    resolution: float,
) -> VerificationMetrics:
    """Compute all metrics of a curve, with intervals if there are tables."""
    same, different = sizes
    missing_reasons = _find_missing_reasons(roc, same, different, fars)
    supported_fars = [far for far in fars if f"tar {far:g}" not in missing_reasons]
    leave_one_out = {} if tables is None else _leave_one_out_metrics(tables, supported_fars, balanced)
    no_interval_reason = None
    if num_identities is None:
        no_interval_reason = "which pairs share an identity is not known"
    elif num_identities < MIN_IDENTITIES:
        no_interval_reason = f"{num_identities} identities, {MIN_IDENTITIES} are needed"

    def with_interval(name: str, value: float, few: str | None = None) -> IntervalEstimate:
        if name not in leave_one_out or few:
            return IntervalEstimate(value, None, None, few if name in leave_one_out else no_interval_reason)
        ends = jackknife_interval(value, leave_one_out[name])
        if ends is not None:
            return IntervalEstimate(value, *ends)
        one = jackknife_variance(logit(leave_one_out[name])).variance > 0
        return IntervalEstimate(
            value, None, None, f"{'hardly more than one' if one else 'no'} identity makes a difference"
        )

    few_errors = f"fewer than {MIN_EVENTS} errors of a kind" if "eer" in missing_reasons else None
    tar: dict[float, IntervalEstimate | None] = dict.fromkeys(fars)
    for far in supported_fars:
        value, few = tar_at(roc, far), None
        num_accepted_identities = (
            None if tables is None else _count_accepted_identities(tables, roc_threshold_at_far(roc, far))
        )
        if num_accepted_identities is not None and num_accepted_identities < MIN_IDENTITIES:
            few = f"the false accepts are of {num_accepted_identities} identities"
        elif round((1.0 - value) * same) < MIN_EVENTS:
            few = f"fewer than {MIN_EVENTS} same pairs are missed"
        tar[far] = with_interval(f"tar {far:g}", value, few)
    mean = None if accuracies is None else float(accuracies.mean())
    ends = None
    if mean is not None and "accuracy" in leave_one_out and few_errors is None:
        ends = jackknife_interval(mean, leave_one_out["accuracy"])
    return VerificationMetrics(
        num_same=same,
        num_different=different,
        auc=with_interval("auc", auc(roc), few_errors),
        eer=None if "eer" in missing_reasons else with_interval("eer", eer(roc)),
        tar=tar,
        accuracy=None if mean is None else 100.0 * mean,
        accuracy_error=None if accuracies is None else 100.0 * float(accuracies.std(ddof=1) / np.sqrt(len(accuracies))),
        roc=roc,
        num_identities=num_identities,
        num_folds=None if accuracies is None else len(accuracies),
        accuracy_interval=None if ends is None else (100.0 * ends[0], 100.0 * ends[1]),
        missing_reasons=missing_reasons,
        resolution=resolution,
        leave_one_out=leave_one_out,
    )


def _count_accepted_identities(tables: PairCountTables, threshold: float) -> int:
    """Number of identities in the different pairs that a threshold accepts."""
    bins = int(np.searchsorted(-tables.thresholds, -threshold, side="right"))
    return int((tables.different[:, :bins].sum(1) > 0).sum())
