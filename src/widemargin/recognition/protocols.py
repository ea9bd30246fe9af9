"""Evaluation of embeddings beyond the classes of training: verification, retrieval, knn, fewshot, openset.

Every figure comes with its 95 % interval over identities where there are ten of them, and none is given that fewer
than ten distinct pairs, queries or false alarms support. Of pairs that somebody listed each counts once, and their
identities are found out as far as the list gives them.
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
from ..io.errors import InputError, format_value, shorten
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
    """For each image the number of its connected component, where pairs are the edges."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = coo_array((np.ones(len(first)), (first, second)), shape=(num_images, num_images))
    found: Ints = connected_components(pairs, directed=False)[1].astype(np.int64)
    return found


MAX_PAIRS_FILE_BYTES = 64 << 20  # bytes of a file of pairs; a million pairs of names are less


@dataclass(frozen=True)
class ProtocolResult:
    """Result of a protocol: `lines` for people, `metrics` for a file, and of pairs their verification metrics."""

    lines: list[str]
    metrics: dict[str, Any]
    verification: VerificationMetrics | None = None


def verification(x: Tensor, y: Tensor, settings: ProtocolSettings, seed: int = 0) -> ProtocolResult:
    """All distinct pairs, or some of each kind."""
    if settings.sampled_pairs is None:
        return _verification_result(verification_metrics_of_embeddings(x, y), [])
    first, second, _ = distinct_pairs(y, seed, settings.sampled_pairs)
    identity = np.unique(y.numpy(), return_inverse=True)[1].astype(np.int64)
    return _verification_result(_verify_embedding_pairs(x, first.numpy(), second.numpy(), identity), [])


def evaluate_listed_pairs(
    x: Tensor, first: Tensor, second: Tensor, same: Tensor, folders: Sequence[str] | None = None
) -> ProtocolResult:
    """Listed pairs of rows of `x`; `folders` are those of the images, which may be their identities."""
    listed = select_pairs(first.numpy(), second.numpy(), same.numpy(), folders)
    a, b, kinds = (part.numpy()[listed.rows] for part in (first, second, same))
    if listed.identities is None:
        return _verification_result(verification_metrics(_cosines(x, a, b), kinds), listed.notes)
    return _verification_result(_verify_embedding_pairs(x, a, b, listed.identities), listed.notes)


def _cosines(x: Tensor, first: Ints, second: Ints) -> Floats:
    unit = unit_and_norm(x.float())[0]
    found: Floats = (unit[torch.from_numpy(first)] * unit[torch.from_numpy(second)]).sum(1).double().numpy()
    return found


def _verify_embedding_pairs(x: Tensor, first: Ints, second: Ints, identities: Ints) -> VerificationMetrics:
    return verify_scored_pairs(_cosines(x, first, second), identities[first], identities[second])


def verify_scored_pairs(scores: Floats, first: Ints, second: Ints, *, intervals: bool = True) -> VerificationMetrics:
    """Figures of some distinct pairs of known identities, in folds that share none as far as that can be.

    Each kind of pairs counts half: where pairs of two folds are left out, nearly all that remain are same pairs.
    """
    place = np.unique(np.concatenate((first, second)), return_inverse=True)[1].astype(np.int64)
    pairs = ScoredPairs(scores, place[: len(first)], place[len(first) :])
    return verification_metrics_of_pairs(pairs, linked_folds(pairs.first, pairs.second), intervals=intervals)


def _verification_result(found: VerificationMetrics, notes: Sequence[str]) -> ProtocolResult:
    """Verification metrics as lines for people and as a dict for a file."""
    of = "" if found.num_identities is None else f" of {found.num_identities:,} identities"
    lines = [f"{found.num_same:,} same and {found.num_different:,} different pairs{of}", *notes]
    few = min(found.num_same, found.num_different) < MIN_EVENTS
    lines.append(f"AUC –: {MIN_EVENTS} pairs of each kind are needed" if few else f"AUC {found.auc.percent_text}")
    lines.append(f"EER –: {found.missing_reasons['eer']}" if found.eer is None else f"EER {found.eer.percent_text}")
    for far, tar in found.tar.items():
        said = f"–: {found.missing_reasons[f'tar {far:g}']}" if tar is None else f"{tar.percent_text}"
        lines.append(f"TAR at FAR {far:g}: {said}")
    if found.accuracy is not None:
        ends = _format_interval(found.accuracy_interval)
        lines.append(
            f"{found.num_folds} folds, disjoint in identities, threshold from the others: "
            f"{found.accuracy:.2f} % ± {found.accuracy_error:.2f}{ends} right"
        )
    else:
        lines.append("folds –: each of them needs two identities, and pairs of both kinds")
    if found.resolution:
        lines.append(f"more pairs than fit: their scores were counted in bins of {found.resolution:.1e}")
    facts = {
        "same": found.num_same,
        "different": found.num_different,
        "identities": found.num_identities,
        "auc": None if few else _interval_dict(found.auc),
        "eer": _interval_dict(found.eer),
        "tar": {f"{far:g}": _interval_dict(tar) for far, tar in found.tar.items()},
        "thresholds": {
            f"{far:g}": roc_threshold_at_far(found.roc, far) for far, tar in found.tar.items() if tar is not None
        },
        "accuracy": found.accuracy,
        "accuracy_error": found.accuracy_error,
        "accuracy_interval": found.accuracy_interval,
        "folds": found.num_folds,
        "missing_reasons": found.missing_reasons,
        "resolution": found.resolution,
    }
    return ProtocolResult(lines, facts, found)


def _interval_dict(interval: IntervalEstimate | None) -> dict[str, Any] | None:
    return None if interval is None else asdict(interval)


def _format_interval(interval: tuple[float, float] | None) -> str:
    """An interval in brackets, if there is one."""
    return "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"


def _too_few_result(count: int, what: str) -> ProtocolResult:
    """A result without metrics, which says that there is too little to measure."""
    reason = f"{MIN_EVENTS} {what} are needed; there are {count}"
    return ProtocolResult([f"–: {reason}"], {"missing_reasons": reason})


def retrieval(x: Tensor, y: Tensor, settings: ProtocolSettings, seed: int = 0) -> ProtocolResult:
    """Every image looks for the others of its class among all."""
    found = retrieval_metrics(x, y, batch_size=settings.batch, faiss=settings.faiss)
    if found.queries < MIN_EVENTS:
        return _too_few_result(found.queries, "queries")
    ends = found.intervals
    recall = ", ".join(
        f"recall@{k} {value:.2f} %{_format_interval(ends[f'recall@{k}'])}" for k, value in found.recall.items()
    )
    lines = [
        f"{found.queries:,} queries: {recall}",
        f"R-precision {found.r_precision:.2f} %{_format_interval(ends['r_precision'])}, "
        f"MAP@R {found.map_at_r:.2f} %{_format_interval(ends['map_at_r'])}",
    ]
    if found.without_match:
        lines.append(f"{found.without_match:,} images are the only ones of their class and were left out")
    facts = {
        "recall": {str(k): value for k, value in found.recall.items()},
        "r_precision": found.r_precision,
        "map_at_r": found.map_at_r,
        "queries": found.queries,
        "without_match": found.without_match,
        "intervals": found.intervals,
    }
    return ProtocolResult(lines, facts)


def knn(x: Tensor, y: Tensor, settings: ProtocolSettings, seed: int = 0) -> ProtocolResult:
    """The k nearest other images vote."""
    right = knn_hits(x, y, k=settings.neighbours, batch_size=settings.batch).double().numpy()
    if len(right) < MIN_EVENTS:
        return _too_few_result(len(right), "images")
    place = np.unique(y.numpy(), return_inverse=True)[1]
    ends = interval_to_percent(mean_interval(np.bincount(place, right), np.bincount(place)))
    value = 100.0 * float(right.mean())
    line = f"{settings.neighbours} nearest neighbours name {value:.2f} %{_format_interval(ends)} rightly"
    return ProtocolResult([line], {"k": settings.neighbours, "accuracy": value, "interval": ends})


def fewshot(x: Tensor, y: Tensor, settings: ProtocolSettings, seed: int = 0) -> ProtocolResult:
    """Classes known from a handful of images."""
    ways, shots, episodes = settings.ways, settings.shots, settings.episodes
    found = few_shot_metrics(x, y, ways=ways, shots=shots, episodes=episodes, seed=seed)
    if len(y) < MIN_EVENTS:
        return _too_few_result(len(y), "images")
    ends = None if found.low is None or found.high is None else (found.low, found.high)
    line = f"{ways} ways, {shots} shot{'s' if shots > 1 else ''}: {found.accuracy:.2f} %{_format_interval(ends)}"
    line += f" over {episodes:,} episodes of {found.num_classes:,} classes"
    facts = {name: value for name, value in asdict(found).items() if name != "leave_one_out"}
    return ProtocolResult([line], {"ways": ways, "shots": shots, **facts})


def openset(x: Tensor, y: Tensor, settings: ProtocolSettings, seed: int = 0) -> ProtocolResult:
    """Half of the classes are unknown; images of the known ones are split evenly into gallery and probes."""
    classes = int(y.max()) + 1
    rows = Images("evaluated", torch.arange(len(y)).view(-1, 1, 1, 1), y, tuple(map(str, range(classes))))
    known, unknown = split_identities(rows, 0.5, seed)
    places, unknown_rows = known.x.flatten(), unknown.x.flatten()  # type: ignore[union-attr]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    in_gallery, probe_rows = torch.zeros(len(places), dtype=torch.bool), order
    for row in order.tolist():  # the first half of every class, in a random order, is the gallery
        is_same_class = known.y == known.y[row]
        if int(in_gallery[is_same_class].sum()) < int(is_same_class.sum()) // 2:
            in_gallery[row] = True
    probe_rows = places[~in_gallery]
    probes = torch.cat((probe_rows, unknown_rows))
    found = open_set_metrics(
        x[probes], y[probes], x[places[in_gallery]], y[places[in_gallery]], batch_size=settings.batch
    )
    if min(found.known, found.unknown) < MIN_EVENTS:
        return _too_few_result(min(found.known, found.unknown), "known and unknown images each")
    ends = found.intervals
    lines = [
        f"{found.known:,} known and {found.unknown:,} unknown images: "
        f"AUROC {100 * found.auroc:.2f} %{_format_interval(ends['auroc'])}",
        f"named rightly if none may be refused: {found.rank1:.2f} %{_format_interval(ends['rank1'])}",
    ]
    for far, value in found.dir.items():
        name = f"dir {far:g}"
        said = f"–: {found.missing_reasons[name]}" if value is None else f"{value:.2f} %{_format_interval(ends[name])}"
        lines.append(f"found and named rightly at {100 * far:g} % false alarms: {said}")
    return ProtocolResult(lines, {**asdict(found), "dir": {f"{far:g}": value for far, value in found.dir.items()}})


def calibrated_threshold(x: Tensor, y: Tensor, far: float) -> float:
    """The cosine that a fraction `far` of the different pairs reaches (false accept rate)."""
    found = verification_metrics_of_embeddings(x, y, fars=(far,), intervals=False)
    if round(float(found.roc.far[roc_index_at_far(found.roc, far)]) * found.num_different) < MIN_EVENTS:
        raise InputError(f"{found.missing_reasons[f'tar {far:g}']}; give --threshold")
    return roc_threshold_at_far(found.roc, far)


def threshold_of_unknown_scores(
    scores: Tensor, far: float, what: str = "unseen images", remedy: str = "give --reject-below"
) -> float:
    """The score that a fraction `far` of unknown images reaches, from their `scores` [N].

    `what` these are, and the `remedy` where they are too few, is for the message.
    """
    ordered = scores.sort(descending=True).values
    passing = int(far * len(ordered) + 1e-9)
    if passing < MIN_EVENTS:
        raise InputError(
            f"a rate of {far:g} needs at least {MIN_EVENTS} false alarms: {required_different_pairs(far):,} {what}; "
            f"there are {len(ordered):,}; {remedy}"
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
    """Pairs of image files from a CSV with columns a, b, same; paths are relative to the file.

    The file has at most 64 MiB, and may be a pipe; then paths are relative to where the pipe is.
    """
    import csv

    path = Path(path)
    found = []
    answers: dict[tuple[str, ...], tuple[bool, int]] = {}
    line = 1
    try:
        data = read_stream(path, MAX_PAIRS_FILE_BYTES)
        with io.TextIOWrapper(io.BytesIO(data), newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames is None or not {"a", "b", "same"} <= set(rows.fieldnames):
                raise InputError(f"{path}: a pairs file has the columns a, b and same")
            for row in rows:
                inside = sum(str(cell).count("\n") for cell in row.values())
                line = rows.line_num - inside  # where the row begins, as an editor shows it
                said = str(row["same"]).strip().lower()
                if said not in _SAME_VALUES:
                    raise InputError(f"{path}, line {line}: same is {format_value(row['same'])}; write 1 or 0")
                files = [path.parent / str(row[name] or "").strip() for name in ("a", "b")]
                for file_path in files:
                    if not _is_file(file_path):
                        there = shorten(str(file_path), 300)
                        raise InputError(
                            f"{path}, line {line}: there is no image {there}; paths are relative to the file"
                        )
                before, where = answers.setdefault(
                    tuple(sorted(map(os.path.normpath, files))), (_SAME_VALUES[said], line)
                )
                if before != _SAME_VALUES[said]:
                    raise InputError(
                        f"{path}, line {line}: says {said} of the pair of line {where}, which says otherwise"
                    )
                found.append((files[0], files[1], _SAME_VALUES[said]))
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text in UTF-8; save the pairs as CSV in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}, line {line} or below: wrong quotes or a field too long ({error})") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not found:
        raise InputError(f"{path}: holds no pairs")
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long to be one, a folder that may not be looked into
        return False


_SAME_VALUES = {"1": True, "0": False, "true": True, "false": False, "yes": True, "no": False}
