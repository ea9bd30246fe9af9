"""Open sets: is this somebody we know, and who? Detection and identification at a rate of false alarms.

The gallery knows some classes. A probe is said to be the class of the nearest gallery image if that is near enough.
DIR at a FAR is the share of known probes that are both found near enough and named rightly, at the threshold that so
many unknown probes pass. Reference: Phillips, Grother, Micheals, Evaluation Methods in Face Recognition (2011).

A rate is refused where fewer than ten unknown probes are false alarms, or fewer than ten known ones are found.
Intervals are over the identities of the probes, known and unknown ones apart (`metrics.intervals`); the gallery is
taken as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io.errors import InputError, format_value
from .intervals import MIN_EVENTS, jackknife_interval, mean_interval
from .neighbors import NeighborSearch
from .retrieval import check_search_inputs, interval_to_percent
from .roc import RocCurve, auc, eer, roc_curve

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
_MAX_PROBE_GROUPS = 500


@dataclass(frozen=True)
class OpenSetMetrics:
    """Figures of known and unknown probes."""

    dir: dict[float, float | None]
    """By FAR, percent; None where fewer than ten unknown probes are false alarms at it, or fewer than ten known ones
    are found and named rightly."""
    auroc: float
    """Known against unknown, by the nearest similarity."""
    rank1: float
    """Percent of known probes named rightly when nobody may be refused."""
    known: int
    unknown: int
    intervals: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    """95 % intervals by name (`dir 0.1`, `auroc`, `rank1`), percent; None for fewer than ten identities of a kind, and
    for fewer than ten probes that are missed (`auroc`: errors of a kind where both kinds are equally frequent)."""
    missing_reasons: dict[str, str] = field(default_factory=dict)
    """Why a figure is None, a line each, by its name: `dir 0.01`."""


def open_set_metrics(
    probes: Tensor,
    labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    *,
    fars: Sequence[float] = (0.1, 0.01),
    batch_size: int = 1024,
) -> OpenSetMetrics:
    """Figures of probes [N, D]: those of a class in the gallery are known, the others are not."""
    check_search_inputs(probes, labels, gallery, gallery_labels, batch_size)
    if not all(isinstance(far, int | float) and 0 < far <= 1 for far in fars):
        raise InputError(f"fars={format_value(fars)} must be rates above 0 and at most 1")
    known = torch.isin(labels, gallery_labels)
    if bool(known.all()) or not bool(known.any()):
        raise InputError("an open set needs probes of known and of unknown classes")
    search = NeighborSearch(gallery)
    scores, predicted = [], []
    for start in range(0, len(probes), batch_size):
        best, place = search(probes[start : start + batch_size], 1)
        scores.append(best[:, 0])
        predicted.append(gallery_labels[place[:, 0]])
    score = torch.cat(scores).double().numpy()
    right = (torch.cat(predicted) == labels).numpy()
    of_known = _ProbeScores(score[known.numpy()], labels[known].numpy(), right[known.numpy()])
    of_unknown = _ProbeScores(score[~known.numpy()], labels[~known].numpy(), right[~known.numpy()])
    found: dict[float, float | None] = {}
    intervals: dict[str, tuple[float, float] | None] = {}
    missing_reasons: dict[str, str] = {}
    for far in fars:
        name = f"dir {far:g}"
        share, alarms = _dir_and_false_alarms(of_known, of_unknown, far)
        hits = round(share * len(of_known.score))
        if min(alarms, hits) < MIN_EVENTS:
            missing_reasons[name] = _missing_rate_reason(far, alarms, hits, len(of_unknown.score))
        found[far] = None if name in missing_reasons else 100.0 * share
        intervals[name] = None
        if name not in missing_reasons and len(of_known.score) - hits >= MIN_EVENTS:
            rest = [_dir_and_false_alarms(part, of_unknown, far)[0] for part in of_known.leave_one_identity_out()]
            others = [_dir_and_false_alarms(of_known, part, far)[0] for part in of_unknown.leave_one_identity_out()]
            intervals[name] = interval_to_percent(jackknife_interval(share, rest, others))
    curve = _known_unknown_roc(of_known, of_unknown)
    area, errors = auc(curve), eer(curve) * min(len(of_known.score), len(of_unknown.score))
    rest = [_known_unknown_auc(part, of_unknown) for part in of_known.leave_one_identity_out()]
    others = [_known_unknown_auc(of_known, part) for part in of_unknown.leave_one_identity_out()]
    intervals["auroc"] = (
        interval_to_percent(jackknife_interval(area, rest, others)) if errors >= MIN_EVENTS - 1e-9 else None
    )
    row = np.unique(of_known.identity, return_inverse=True)[1]
    intervals["rank1"] = interval_to_percent(mean_interval(np.bincount(row, of_known.correct), np.bincount(row)))
    named_rightly = 100.0 * float(of_known.correct.mean())
    return OpenSetMetrics(
        found, area, named_rightly, len(of_known.score), len(of_unknown.score), intervals, missing_reasons
    )


def _missing_rate_reason(far: float, alarms: int, hits: int, unknown: int) -> str:
    """Why a rate of found probes is not given."""
    if unknown * far < MIN_EVENTS - 1e-9:
        images = f"{round(MIN_EVENTS / far):,} unknown images; there are {unknown:,}"
        return f"{100 * far:g} % needs at least {MIN_EVENTS} false alarms: {images}"
    if alarms < MIN_EVENTS:
        return f"{100 * far:g} % needs at least {MIN_EVENTS} false alarms: scores are tied, so that there are {alarms}"
    return f"at least {MIN_EVENTS} known images must be found; there are {hits}"


@dataclass(frozen=True, eq=False)
class _ProbeScores:
    """Similarity to the nearest of the gallery, identity, and whether the nearest is of it."""

    score: FloatArray
    identity: IntArray
    correct: BoolArray

    def leave_one_identity_out(self) -> list[_ProbeScores]:
        """The probes without each identity in turn, or without each group of them where there are very many."""
        unit = np.unique(self.identity, return_inverse=True)[1] % _MAX_PROBE_GROUPS
        parts = [unit != k for k in range(int(unit.max()) + 1)]
        return [_ProbeScores(self.score[keep], self.identity[keep], self.correct[keep]) for keep in parts if keep.any()]


def _dir_and_false_alarms(known: _ProbeScores, unknown: _ProbeScores, far: float) -> tuple[float, int]:
    """Share of known probes found and named rightly at a rate of false alarms, and how many these are."""
    unknown_scores = np.sort(unknown.score)[::-1]
    passing = int(far * len(unknown_scores) + 1e-9)
    threshold = unknown_scores[passing] if passing < len(unknown_scores) else -np.inf
    return float((known.correct & (known.score > threshold)).mean()), int((unknown_scores > threshold).sum())


def _known_unknown_roc(known: _ProbeScores, unknown: _ProbeScores) -> RocCurve:
    """Known against unknown probes, by the nearest similarity."""
    scores = np.concatenate((known.score, unknown.score))
    return roc_curve(scores, np.arange(len(scores)) < len(known.score))


def _known_unknown_auc(known: _ProbeScores, unknown: _ProbeScores) -> float:
    """How likely a known probe is nearer to the gallery than an unknown one."""
    return auc(_known_unknown_roc(known, unknown))
