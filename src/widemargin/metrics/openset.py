"""Open-set identification: detect whether a probe is of a known class, and name it, at a rate of false alarms.

The gallery holds the known classes. A probe is assigned the class of the nearest gallery image if that is near enough.
DIR at a FAR is the fraction of known probes that are both near enough and assigned the right class, at the threshold
that this fraction of unknown probes passes. Reference: Phillips, Grother, Micheals, Evaluation Methods in Face
Recognition (2011).

A rate is None if fewer than ten unknown probes are false alarms, or fewer than ten known ones are identified.
Intervals are over the identities of the probes, known and unknown ones separately (`metrics.intervals`), for a fixed
gallery.
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
    """Metrics of known and unknown probes."""

    dir: dict[float, float | None]
    """DIR by FAR, percent; None if fewer than ten unknown probes are false alarms at it, or fewer than ten known
    probes are identified correctly."""
    auroc: float
    """AUROC of known against unknown probes, by the nearest similarity."""
    rank1: float
    """Percent of known probes identified correctly if none may be rejected."""
    known: int
    unknown: int
    intervals: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    """95 % intervals by name (`dir 0.1`, `auroc`, `rank1`), percent; None for fewer than ten known or unknown
    identities, and for fewer than ten missed probes (`auroc`: errors of a kind at the equal error rate)."""
    missing_reasons: dict[str, str] = field(default_factory=dict)
    """Why a metric is None, one line each, by its name: `dir 0.01`."""


def open_set_metrics(
    probes: Tensor,
    labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    *,
    fars: Sequence[float] = (0.1, 0.01),
    batch_size: int = 1024,
) -> OpenSetMetrics:
    """Compute the metrics of probes [N, D]: those of a class in the gallery are known, the others unknown."""
    check_search_inputs(probes, labels, gallery, gallery_labels, batch_size)
    if not all(isinstance(far, int | float) and 0 < far <= 1 for far in fars):
        raise InputError(f"fars={format_value(fars)} must be rates above 0 and at most 1")
    known = torch.isin(labels, gallery_labels)
    if bool(known.all()) or not bool(known.any()):
        raise InputError("open-set metrics need probes of both known and unknown classes")
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
    rates: dict[float, float | None] = {}
    intervals: dict[str, tuple[float, float] | None] = {}
    missing_reasons: dict[str, str] = {}
    for far in fars:
        name = f"dir {far:g}"
        share, alarms = _dir_and_false_alarms(of_known, of_unknown, far)
        hits = round(share * len(of_known.score))
        if min(alarms, hits) < MIN_EVENTS:
            missing_reasons[name] = _missing_rate_reason(far, alarms, hits, len(of_unknown.score))
        rates[far] = None if name in missing_reasons else 100.0 * share
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
        rates, area, named_rightly, len(of_known.score), len(of_unknown.score), intervals, missing_reasons
    )


def _missing_rate_reason(far: float, alarms: int, hits: int, unknown: int) -> str:
    """Return why a detection rate is None."""
    if unknown * far < MIN_EVENTS - 1e-9:
        images = f"{round(MIN_EVENTS / far):,} unknown images; there are {unknown:,}"
        return f"{100 * far:g} % needs at least {MIN_EVENTS} false alarms: {images}"
    if alarms < MIN_EVENTS:
        return f"{100 * far:g} % needs at least {MIN_EVENTS} false alarms: scores are tied, so that there are {alarms}"
    return f"at least {MIN_EVENTS} known images must be identified; there are {hits}"


@dataclass(frozen=True, eq=False)
class _ProbeScores:
    """Similarity to the nearest gallery image, identity, and whether that image has the same identity."""

    score: FloatArray
    identity: IntArray
    correct: BoolArray

    def leave_one_identity_out(self) -> list[_ProbeScores]:
        """Return the probes without each identity in turn, or without groups of identities if there are very many."""
        unit = np.unique(self.identity, return_inverse=True)[1] % _MAX_PROBE_GROUPS
        parts = [unit != k for k in range(int(unit.max()) + 1)]
        return [_ProbeScores(self.score[keep], self.identity[keep], self.correct[keep]) for keep in parts if keep.any()]


def _dir_and_false_alarms(known: _ProbeScores, unknown: _ProbeScores, far: float) -> tuple[float, int]:
    """Return the fraction of known probes identified at a false alarm rate, and the number of false alarms."""
    unknown_scores = np.sort(unknown.score)[::-1]
    passing = int(far * len(unknown_scores) + 1e-9)
    threshold = unknown_scores[passing] if passing < len(unknown_scores) else -np.inf
    return float((known.correct & (known.score > threshold)).mean()), int((unknown_scores > threshold).sum())


def _known_unknown_roc(known: _ProbeScores, unknown: _ProbeScores) -> RocCurve:
    """ROC of known against unknown probes, by the nearest similarity."""
    scores = np.concatenate((known.score, unknown.score))
    return roc_curve(scores, np.arange(len(scores)) < len(known.score))


def _known_unknown_auc(known: _ProbeScores, unknown: _ProbeScores) -> float:
    """Probability that a known probe is nearer to the gallery than an unknown one."""
    return auc(_known_unknown_roc(known, unknown))
