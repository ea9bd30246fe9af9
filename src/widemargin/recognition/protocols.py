"""Protocols that evaluate embeddings beyond the training classes: verification, retrieval, knn, fewshot, openset.

Every metric has a 95 % interval over identities if there are at least ten of them, and is None if fewer than ten
distinct pairs, queries or false alarms support it. Listed pairs count once each, and their identities are inferred
from the list where possible.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.images.identities import split_identities
from ..data.images.sets import Images
from ..io.bounded import read_stream
from ..io.errors import InputError, format_value, shorten, spell_option
from ..metrics.fewshot import few_shot_metrics, knn_hits
from ..metrics.intervals import MIN_EVENTS, mean_interval
from ..metrics.openset import open_set_metrics
from ..metrics.pair_counts import ScoredPairs
from ..metrics.retrieval import interval_to_percent, retrieval_metrics
from ..metrics.roc import linked_folds, roc_index_at_far, roc_threshold_at_far
from ..metrics.verification import (
    IntervalEstimate,
    VerificationMetrics,
    required_different_pairs,
    verification_metrics,
    verification_metrics_of_embeddings,
    verification_metrics_of_pairs,
)
from ..numerics.angles import unit_and_norm
from .evaluation import distinct_pairs
from .settings import ProtocolSettings

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PairSelection:
    """Rows of a list that count, and the identity of every image."""

    rows: Ints
    identities: Ints | None
    """Identities numbered from 0; None if the list contradicts itself."""
    notes: list[str]
    """What was left out, and where the identities come from, one line each."""


def select_pairs(
    first: Ints, second: Ints, same: NDArray[np.bool_], folders: Sequence[str] | None = None
) -> PairSelection:
    """Select the pairs to count from pairs of image indices [M], [M]; `folders` are the folders of the images.

    Repeated pairs, also in reverse order, count once; an image paired with itself does not count. The identity of an
    image is its folder, if that agrees with every pair. Otherwise images connected by same pairs are one identity, so
    that two images of one person that no chain of same pairs connects count as two.
    """
    low, high = np.minimum(first, second), np.maximum(first, second)
    apart = np.flatnonzero(low != high)
    number = low * (int(high.max(initial=0)) + 1) + high
    rows = apart[np.sort(np.unique(number[apart], return_index=True)[1])]
    notes = []
    if len(first) > len(apart):
        notes.append(f"{len(first) - len(apart):,} pairs of an image with itself do not count")
    if len(apart) > len(rows):
        notes.append(f"{len(apart) - len(rows):,} repeated pairs count once")
    first, second, same = first[rows], second[rows], same[rows]
    if folders is not None and len(rows):
        place = np.unique(np.asarray(folders), return_inverse=True)[1].astype(np.int64)
        if np.array_equal(place[first] == place[second], same):
            return PairSelection(
                rows, place, [*notes, "identities are the folders of the images; all pairs agree with them"]
            )
    images = int(max(first.max(initial=0), second.max(initial=0))) + 1
    joined = _component_labels(first[same], second[same], images)
    if (joined[first] == joined[second])[~same].any():
        note = "same pairs connect images of a different pair, so identities are unknown: no folds and no intervals"
        return PairSelection(rows, None, [*notes, note])
    return PairSelection(
        rows, joined, [*notes, "identities are not listed: images connected by same pairs count as one"]
    )


def _component_labels(first: Ints, second: Ints, num_images: int) -> Ints:
    """Return the index of the connected component of each image, with pairs as edges."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = coo_array((np.ones(len(first)), (first, second)), shape=(num_images, num_images))
    labels: Ints = connected_components(pairs, directed=False)[1].astype(np.int64)
    return labels


MAX_PAIRS_FILE_BYTES = 64 << 20  # bytes of a file of pairs; a million pairs take less


@dataclass(frozen=True)
class ProtocolResult:
    """Result of a protocol: `lines` to print, `metrics` for a file, and verification metrics of pairs."""

    lines: list[str]
    metrics: dict[str, Any]
    verification: VerificationMetrics | None = None


def verification(x: Tensor, y: Tensor, settings: ProtocolSettings, seed: int = 0) -> ProtocolResult:
    """Verification on all distinct pairs, or a sample of each kind."""
    if settings.sampled_pairs is None:
        return _verification_result(verification_metrics_of_embeddings(x, y), [])
    first, second, _ = distinct_pairs(y, seed, settings.sampled_pairs)
    identity = np.unique(y.numpy(), return_inverse=True)[1].astype(np.int64)
    return _verification_result(_verify_embedding_pairs(x, first.numpy(), second.numpy(), identity), [])


def evaluate_listed_pairs(
    x: Tensor, first: Tensor, second: Tensor, same: Tensor, folders: Sequence[str] | None = None
) -> ProtocolResult:
    """Verification on listed pairs of rows of `x`; `folders` are those of the images, which may be their identities."""
    listed = select_pairs(first.numpy(), second.numpy(), same.numpy(), folders)
    a, b, kinds = (part.numpy()[listed.rows] for part in (first, second, same))
    if listed.identities is None:
        return _verification_result(verification_metrics(pair_cosines(x, a, b), kinds), listed.notes)
    return _verification_result(_verify_embedding_pairs(x, a, b, listed.identities), listed.notes)


def pair_cosines(x: Tensor, first: Ints, second: Ints) -> Floats:
    """Cosines [M] of pairs of rows of `x`, which are given by their places [M] and [M]."""
    unit = unit_and_norm(x.float())[0]
    cosines: Floats = (unit[torch.from_numpy(first)] * unit[torch.from_numpy(second)]).sum(1).double().numpy()
    return cosines


def _verify_embedding_pairs(x: Tensor, first: Ints, second: Ints, identities: Ints) -> VerificationMetrics:
    return verify_scored_pairs(pair_cosines(x, first, second), identities[first], identities[second])


def verify_scored_pairs(scores: Floats, first: Ints, second: Ints, *, intervals: bool = True) -> VerificationMetrics:
    """Compute the metrics of distinct pairs of known identities, in folds that share as few identities as possible.

    Same and different pairs have equal weight: without pairs that span two folds, nearly all pairs are same pairs.
    """
    place = np.unique(np.concatenate((first, second)), return_inverse=True)[1].astype(np.int64)
    pairs = ScoredPairs(scores, place[: len(first)], place[len(first) :])
    return verification_metrics_of_pairs(pairs, linked_folds(pairs.first, pairs.second), intervals=intervals)


def _verification_result(metrics: VerificationMetrics, notes: Sequence[str]) -> ProtocolResult:
    """Return verification metrics as lines to print and as a dict for a file."""
    of = "" if metrics.num_identities is None else f" of {metrics.num_identities:,} identities"
    lines = [f"{metrics.num_same:,} same and {metrics.num_different:,} different pairs{of}", *notes]
    few = min(metrics.num_same, metrics.num_different) < MIN_EVENTS
    lines.append(f"AUC –: needs {MIN_EVENTS} pairs of each kind" if few else f"AUC {metrics.auc.percent_text}")
    lines.append(
        f"EER –: {metrics.missing_reasons['eer']}" if metrics.eer is None else f"EER {metrics.eer.percent_text}"
    )
    for far, tar in metrics.tar.items():
        text = f"–: {metrics.missing_reasons[f'tar {far:g}']}" if tar is None else f"{tar.percent_text}"
        lines.append(f"TAR at FAR {far:g}: {text}")
    if metrics.accuracy is not None:
        ends = _format_interval(metrics.accuracy_interval)
        lines.append(
            f"{metrics.num_folds} folds, disjoint in identities, threshold from the others: "
            f"{metrics.accuracy:.2f} % ± {metrics.accuracy_error:.2f}{ends} accuracy"
        )
    else:
        lines.append("folds –: each needs at least two identities, and pairs of both kinds")
    if metrics.resolution:
        lines.append(f"too many pairs for memory: their scores were counted in bins of {metrics.resolution:.1e}")
    facts = {
        "same": metrics.num_same,
        "different": metrics.num_different,
        "identities": metrics.num_identities,
        "auc": None if few else _interval_dict(metrics.auc),
        "eer": _interval_dict(metrics.eer),
        "tar": {f"{far:g}": _interval_dict(tar) for far, tar in metrics.tar.items()},
        "thresholds": {
            f"{far:g}": roc_threshold_at_far(metrics.roc, far) for far, tar in metrics.tar.items() if tar is not None
        },
        "accuracy": metrics.accuracy,
        "accuracy_error": metrics.accuracy_error,
        "accuracy_interval": metrics.accuracy_interval,
        "folds": metrics.num_folds,
        "missing_reasons": metrics.missing_reasons,
        "resolution": metrics.resolution,
    }
    return ProtocolResult(lines, facts, metrics)


def _interval_dict(interval: IntervalEstimate | None) -> dict[str, Any] | None:
    return None if interval is None else asdict(interval)


def _format_interval(interval: tuple[float, float] | None) -> str:
    """Format an interval in brackets; empty if None."""
    return "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"


def _too_few_result(count: int, what: str) -> ProtocolResult:
    """Return a result without metrics that says what is missing."""
    reason = f"{MIN_EVENTS} {what} are needed; there are {count}"
    return ProtocolResult([f"–: {reason}"], {"missing_reasons": reason})


def retrieval(x: Tensor, y: Tensor, settings: ProtocolSettings, seed: int = 0) -> ProtocolResult:
    """Every image is a query for the other images of its class among all."""
    metrics = retrieval_metrics(x, y, batch_size=settings.batch, faiss=settings.faiss)
    if metrics.queries < MIN_EVENTS:
        return _too_few_result(metrics.queries, "queries")
    ends = metrics.intervals
    recall = ", ".join(
        f"recall@{k} {value:.2f} %{_format_interval(ends[f'recall@{k}'])}" for k, value in metrics.recall.items()
    )
    lines = [
        f"{metrics.queries:,} queries: {recall}",
        f"R-precision {metrics.r_precision:.2f} %{_format_interval(ends['r_precision'])}, "
        f"MAP@R {metrics.map_at_r:.2f} %{_format_interval(ends['map_at_r'])}",
    ]
    if metrics.without_match:
        lines.append(f"{metrics.without_match:,} images are the only ones of their class and do not count")
    facts = {
        "recall": {str(k): value for k, value in metrics.recall.items()},
        "r_precision": metrics.r_precision,
        "map_at_r": metrics.map_at_r,
        "queries": metrics.queries,
        "without_match": metrics.without_match,
        "intervals": metrics.intervals,
    }
    return ProtocolResult(lines, facts)


def knn(x: Tensor, y: Tensor, settings: ProtocolSettings, seed: int = 0) -> ProtocolResult:
    """Classification by the k nearest other images."""
    right = knn_hits(x, y, k=settings.neighbours, batch_size=settings.batch).double().numpy()
    if len(right) < MIN_EVENTS:
        return _too_few_result(len(right), "images")
    place = np.unique(y.numpy(), return_inverse=True)[1]
    ends = interval_to_percent(mean_interval(np.bincount(place, right), np.bincount(place)))
    value = 100.0 * float(right.mean())
    line = f"{settings.neighbours} nearest neighbours: {value:.2f} %{_format_interval(ends)} accuracy"
    return ProtocolResult([line], {"k": settings.neighbours, "accuracy": value, "interval": ends})


def fewshot(x: Tensor, y: Tensor, settings: ProtocolSettings, seed: int = 0) -> ProtocolResult:
    """Classification from a few images per class."""
    ways, shots, episodes = settings.ways, settings.shots, settings.episodes
    metrics = few_shot_metrics(x, y, ways=ways, shots=shots, episodes=episodes, seed=seed)
    if len(y) < MIN_EVENTS:
        return _too_few_result(len(y), "images")
    ends = None if metrics.low is None or metrics.high is None else (metrics.low, metrics.high)
    line = f"{ways} ways, {shots} shot{'s' if shots > 1 else ''}: {metrics.accuracy:.2f} %{_format_interval(ends)}"
    line += f" over {episodes:,} episodes of {metrics.num_classes:,} classes"
    facts = {name: value for name, value in asdict(metrics).items() if name != "leave_one_out"}
    return ProtocolResult([line], {"ways": ways, "shots": shots, **facts})


def openset(x: Tensor, y: Tensor, settings: ProtocolSettings, seed: int = 0) -> ProtocolResult:
    """Half of the classes are unknown; images of the known ones are split evenly into gallery and probes."""
    classes = int(y.max()) + 1
    rows = Images("evaluated", torch.arange(len(y)).view(-1, 1, 1, 1), y, tuple(map(str, range(classes))))
    known, unknown = split_identities(rows, 0.5, seed)
    places, unknown_rows = known.x.flatten(), unknown.x.flatten()  # type: ignore[union-attr]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    in_gallery, probe_rows = torch.zeros(len(places), dtype=torch.bool), order
    for row in order.tolist():  # the first half of every class, in random order, is the gallery
        is_same_class = known.y == known.y[row]
        if int(in_gallery[is_same_class].sum()) < int(is_same_class.sum()) // 2:
            in_gallery[row] = True
    probe_rows = places[~in_gallery]
    probes = torch.cat((probe_rows, unknown_rows))
    metrics = open_set_metrics(
        x[probes], y[probes], x[places[in_gallery]], y[places[in_gallery]], batch_size=settings.batch
    )
    if min(metrics.known, metrics.unknown) < MIN_EVENTS:
        return _too_few_result(min(metrics.known, metrics.unknown), "known and unknown images each")
    ends = metrics.intervals
    lines = [
        f"{metrics.known:,} known and {metrics.unknown:,} unknown images: "
        f"AUROC {100 * metrics.auroc:.2f} %{_format_interval(ends['auroc'])}",
        f"rank-1 accuracy if no image may be rejected: {metrics.rank1:.2f} %{_format_interval(ends['rank1'])}",
    ]
    for far, value in metrics.dir.items():
        name = f"dir {far:g}"
        text = (
            f"–: {metrics.missing_reasons[name]}" if value is None else f"{value:.2f} %{_format_interval(ends[name])}"
        )
        lines.append(f"identified at {100 * far:g} % false alarms: {text}")
    return ProtocolResult(lines, {**asdict(metrics), "dir": {f"{far:g}": value for far, value in metrics.dir.items()}})


def calibrated_threshold(x: Tensor, y: Tensor, far: float) -> float:
    """Return the cosine that a fraction `far` of the different pairs reaches (false accept rate)."""
    metrics = verification_metrics_of_embeddings(x, y, fars=(far,), intervals=False)
    if round(float(metrics.roc.far[roc_index_at_far(metrics.roc, far)]) * metrics.num_different) < MIN_EVENTS:
        raise InputError(f"{metrics.missing_reasons[f'tar {far:g}']}; give {spell_option('threshold')}")
    return roc_threshold_at_far(metrics.roc, far)


def threshold_of_unknown_scores(
    scores: Tensor, far: float, what: str = "unseen images", remedy: str | None = None
) -> float:
    """Return the score that a fraction `far` of unknown images reaches, from their `scores` [N].

    `what` they are and the `remedy` if they are too few (by default `reject_below`) are named in the message.
    """
    ordered = scores.sort(descending=True).values
    passing = int(far * len(ordered) + 1e-9)
    if passing < MIN_EVENTS:
        raise InputError(
            f"a rate of {far:g} needs at least {MIN_EVENTS} false alarms: {required_different_pairs(far):,} {what}; "
            f"there are {len(ordered):,}; {remedy or 'give ' + spell_option('reject_below')}"
        )
    return float((ordered[passing - 1] + ordered[passing]) / 2)


PROTOCOLS: dict[str, Callable[[Tensor, Tensor, ProtocolSettings, int], ProtocolResult]] = {
    "verification": verification,
    "retrieval": retrieval,
    "knn": knn,
    "fewshot": fewshot,
    "openset": openset,
}


def read_pairs(path: str | Path) -> list[tuple[Path, Path, bool]]:
    """Read pairs of image files from a CSV with columns a, b, same; paths are relative to the file.

    The file has at most 64 MiB and may be a pipe; then paths are relative to the pipe's folder.
    """
    import csv

    path = Path(path)
    pairs = []
    answers: dict[tuple[str, ...], tuple[bool, int]] = {}
    line = 1
    try:
        data = read_stream(path, MAX_PAIRS_FILE_BYTES)
        with io.TextIOWrapper(io.BytesIO(data), newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames is None or not {"a", "b", "same"} <= set(rows.fieldnames):
                raise InputError(f"{path}: the columns a, b and same are needed")
            for row in rows:
                inside = sum(str(cell).count("\n") for cell in row.values())
                line = rows.line_num - inside  # line of the row's beginning, as an editor shows it
                same_text = str(row["same"]).strip().lower()
                if same_text not in _SAME_VALUES:
                    raise InputError(f"{path}, line {line}: same is {format_value(row['same'])}; write 1 or 0")
                files = [path.parent / str(row[name] or "").strip() for name in ("a", "b")]
                for file_path in files:
                    if not _is_file(file_path):
                        there = shorten(str(file_path), 300)
                        raise InputError(f"{path}, line {line}: no such image {there}; paths are relative to the file")
                before, where = answers.setdefault(
                    tuple(sorted(map(os.path.normpath, files))), (_SAME_VALUES[same_text], line)
                )
                if before != _SAME_VALUES[same_text]:
                    raise InputError(
                        f"{path}, line {line}: same is {same_text}, which contradicts line {where}, which has the "
                        "same pair"
                    )
                pairs.append((files[0], files[1], _SAME_VALUES[same_text]))
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text in UTF-8; save the pairs as CSV in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}, line {line} or below: wrong quotes or a field too long ({error})") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not pairs:
        raise InputError(f"{path}: contains no pairs")
    return pairs


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, or a folder without permission
        return False


_SAME_VALUES = {"1": True, "0": False, "true": True, "false": False, "yes": True, "no": False}
