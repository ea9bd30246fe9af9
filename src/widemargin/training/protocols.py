"""How embeddings of a run are judged beyond its own classes: verification, retrieval, knn, fewshot, openset.

Every figure comes with its 95 % interval over identities where there are ten of them, and none is given that fewer
than ten distinct pairs, queries or false alarms support.
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

from ..angle import direction
from ..bounded_files import read_stream
from ..data.identities import split_identities
from ..data.images import Images
from ..errors import InputError, short, shown
from ..metrics.fewshot import few_shot, knn_right
from ..metrics.folds import linked_folds
from ..metrics.identity_intervals import LEAST_EVENTS, mean_interval
from ..metrics.openset import open_set
from ..metrics.pair_tables import Pairs
from ..metrics.retrieval import percent, retrieve
from ..metrics.roc import place_of, threshold_of
from ..metrics.verification import Interval, Verification, verify, verify_embeddings, verify_pairs
from .pair_lists import listed_pairs
from .unseen import distinct_pairs

LARGEST_PAIRS = 64 << 20  # bytes of a file of pairs; a million pairs of names are less

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Settings:
    """What the protocols can be told."""

    pairs: int | None = None
    """Distinct pairs of each kind to draw; None for all."""
    batch: int = 1024
    k: int = 5
    ways: int = 5
    shots: int = 1
    episodes: int = 1000
    seed: int = 0
    faiss: bool = False


@dataclass(frozen=True)
class Judged:
    """Figures, as lines for people and as facts for a file; with pairs also what these say."""

    lines: list[str]
    facts: dict[str, Any]
    verification: Verification | None = None


def verification(x: Tensor, y: Tensor, settings: Settings) -> Judged:
    """All distinct pairs, or some of each kind."""
    if settings.pairs is None:
        return _verified(verify_embeddings(x, y), [])
    first, second, _ = distinct_pairs(y, settings.seed, settings.pairs)
    identity = np.unique(y.numpy(), return_inverse=True)[1].astype(np.int64)
    return _verified(_scored(x, first.numpy(), second.numpy(), identity), [])


def verification_of(
    x: Tensor, first: Tensor, second: Tensor, same: Tensor, folders: Sequence[str] | None = None
) -> Judged:
    """Listed pairs of rows of `x`; `folders` are those of the images, which may be their identities."""
    listed = listed_pairs(first.numpy(), second.numpy(), same.numpy(), folders)
    a, b, kinds = (part.numpy()[listed.rows] for part in (first, second, same))
    if listed.identity is None:
        return _verified(verify(_cosines(x, a, b), kinds), listed.notes)
    return _verified(_scored(x, a, b, listed.identity), listed.notes)


def _cosines(x: Tensor, first: Whole, second: Whole) -> Floats:
    unit = direction(x.float())[0]
    found: Floats = (unit[torch.from_numpy(first)] * unit[torch.from_numpy(second)]).sum(1).double().numpy()
    return found


def _scored(x: Tensor, first: Whole, second: Whole, identity: Whole) -> Verification:
    return scored_pairs(_cosines(x, first, second), identity[first], identity[second])


def scored_pairs(scores: Floats, first: Whole, second: Whole, *, intervals: bool = True) -> Verification:
    """Figures of some distinct pairs of known identities, in folds that share none as far as that can be.

    Each kind of pairs counts half: where pairs of two folds are left out, nearly all that remain are same pairs.
    """
    place = np.unique(np.concatenate((first, second)), return_inverse=True)[1].astype(np.int64)
    pairs = Pairs(scores, place[: len(first)], place[len(first) :])
    return verify_pairs(pairs, linked_folds(pairs.first, pairs.second), intervals=intervals)


def _verified(found: Verification, notes: Sequence[str]) -> Judged:
    """What pairs say, in lines and facts."""
    of = "" if found.identities is None else f" of {found.identities:,} identities"
    lines = [f"{found.same:,} same and {found.different:,} different pairs{of}", *notes]
    few = min(found.same, found.different) < LEAST_EVENTS
    lines.append(f"AUC –: {LEAST_EVENTS} pairs of each kind are needed" if few else f"AUC {found.auc.percent}")
    lines.append(f"EER –: {found.refused['eer']}" if found.eer is None else f"EER {found.eer.percent}")
    for far, tar in found.tar.items():
        said = f"–: {found.refused[f'tar {far:g}']}" if tar is None else f"{tar.percent}"
        lines.append(f"TAR at FAR {far:g}: {said}")
    if found.accuracy is not None:
        ends = _ends(found.accuracy_interval)
        lines.append(
            f"{found.folds} folds, disjoint in identities, threshold from the others: "
            f"{found.accuracy:.2f} % ± {found.accuracy_error:.2f}{ends} right"
        )
    else:
        lines.append("folds –: each of them needs two identities, and pairs of both kinds")
    if found.resolution:
        lines.append(f"more pairs than fit: their scores were counted in bins of {found.resolution:.1e}")
    facts = {
        "same": found.same,
        "different": found.different,
        "identities": found.identities,
        "auc": None if few else _facts(found.auc),
        "eer": _facts(found.eer),
        "tar": {f"{far:g}": _facts(tar) for far, tar in found.tar.items()},
        "thresholds": {f"{far:g}": threshold_of(found.roc, far) for far, tar in found.tar.items() if tar is not None},
        "accuracy": found.accuracy,
        "accuracy_error": found.accuracy_error,
        "accuracy_interval": found.accuracy_interval,
        "folds": found.folds,
        "refused": found.refused,
        "resolution": found.resolution,
    }
    return Judged(lines, facts, found)


def _facts(one: Interval | None) -> dict[str, Any] | None:
    return None if one is None else asdict(one)


def _ends(ends: tuple[float, float] | None) -> str:
    """An interval in brackets, if there is one."""
    return "" if ends is None else f" ({ends[0]:.2f} to {ends[1]:.2f})"


def _too_few(count: int, what: str) -> Judged:
    """Nothing but why."""
    why = f"{LEAST_EVENTS} {what} are needed; there are {count}"
    return Judged([f"–: {why}"], {"refused": why})


def retrieval(x: Tensor, y: Tensor, settings: Settings) -> Judged:
    """Every image looks for the others of its class among all."""
    found = retrieve(x, y, batch=settings.batch, faiss=settings.faiss)
    if found.queries < LEAST_EVENTS:
        return _too_few(found.queries, "queries")
    ends = found.intervals
    recall = ", ".join(f"recall@{k} {value:.2f} %{_ends(ends[f'recall@{k}'])}" for k, value in found.recall.items())
    lines = [
        f"{found.queries:,} queries: {recall}",
        f"R-precision {found.r_precision:.2f} %{_ends(ends['r_precision'])}, "
        f"MAP@R {found.map_at_r:.2f} %{_ends(ends['map_at_r'])}",
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
    return Judged(lines, facts)


def knn(x: Tensor, y: Tensor, settings: Settings) -> Judged:
    """The k nearest other images vote."""
    right = knn_right(x, y, k=settings.k, batch=settings.batch).double().numpy()
    if len(right) < LEAST_EVENTS:
        return _too_few(len(right), "images")
    place = np.unique(y.numpy(), return_inverse=True)[1]
    ends = percent(mean_interval(np.bincount(place, right), np.bincount(place)))
    value = 100.0 * float(right.mean())
    line = f"{settings.k} nearest neighbours name {value:.2f} %{_ends(ends)} rightly"
    return Judged([line], {"k": settings.k, "accuracy": value, "interval": ends})


def fewshot(x: Tensor, y: Tensor, settings: Settings) -> Judged:
    """Classes known from a handful of images."""
    ways, shots, episodes = settings.ways, settings.shots, settings.episodes
    found = few_shot(x, y, ways=ways, shots=shots, episodes=episodes, seed=settings.seed)
    if len(y) < LEAST_EVENTS:
        return _too_few(len(y), "images")
    ends = None if found.low is None or found.high is None else (found.low, found.high)
    line = f"{ways} ways, {shots} shot{'s' if shots > 1 else ''}: {found.accuracy:.2f} %{_ends(ends)}"
    line += f" over {episodes:,} episodes of {found.classes:,} classes"
    facts = {name: value for name, value in asdict(found).items() if name != "without"}
    return Judged([line], {"ways": ways, "shots": shots, **facts})


def openset(x: Tensor, y: Tensor, settings: Settings) -> Judged:
    """Half of the classes are strangers; of the others half of the images are known, and half ask."""
    classes = int(y.max()) + 1
    rows = Images("judged", torch.arange(len(y)).view(-1, 1, 1, 1), y, tuple(map(str, range(classes))))
    known, strangers = split_identities(rows, 0.5, settings.seed)
    places, theirs = known.x.flatten(), strangers.x.flatten()  # type: ignore[union-attr]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(settings.seed))
    seen, asked = torch.zeros(len(places), dtype=torch.bool), order
    for row in order.tolist():  # the first half of every class, in a random order, is the gallery
        mine = known.y == known.y[row]
        if int(seen[mine].sum()) < int(mine.sum()) // 2:
            seen[row] = True
    asked = places[~seen]
    probes = torch.cat((asked, theirs))
    found = open_set(x[probes], y[probes], x[places[seen]], y[places[seen]], batch=settings.batch)
    if min(found.known, found.unknown) < LEAST_EVENTS:
        return _too_few(min(found.known, found.unknown), "known and unknown images each")
    ends = found.intervals
    lines = [
        f"{found.known:,} known and {found.unknown:,} unknown images: "
        f"AUROC {100 * found.auroc:.2f} %{_ends(ends['auroc'])}",
        f"named rightly if none may be refused: {found.rank1:.2f} %{_ends(ends['rank1'])}",
    ]
    for far, value in found.dir.items():
        name = f"dir {far:g}"
        said = f"–: {found.refused[name]}" if value is None else f"{value:.2f} %{_ends(ends[name])}"
        lines.append(f"found and named rightly at {100 * far:g} % false alarms: {said}")
    return Judged(lines, {**asdict(found), "dir": {f"{far:g}": value for far, value in found.dir.items()}})


def calibrated_threshold(x: Tensor, y: Tensor, far: float) -> float:
    """The cosine that so large a share of the different pairs passes."""
    found = verify_embeddings(x, y, fars=(far,), intervals=False)
    if round(float(found.roc.far[place_of(found.roc, far)]) * found.different) < LEAST_EVENTS:
        raise InputError(f"{found.refused[f'tar {far:g}']}; give --threshold")
    return threshold_of(found.roc, far)


PROTOCOLS: dict[str, Callable[[Tensor, Tensor, Settings], Judged]] = {
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
        data = read_stream(path, LARGEST_PAIRS)
        with io.TextIOWrapper(io.BytesIO(data), newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames is None or not {"a", "b", "same"} <= set(rows.fieldnames):
                raise InputError(f"{path}: a pairs file has the columns a, b and same")
            for row in rows:
                inside = sum(str(cell).count("\n") for cell in row.values())
                line = rows.line_num - inside  # where the row begins, as an editor shows it
                said = str(row["same"]).strip().lower()
                if said not in _SAME:
                    raise InputError(f"{path}, line {line}: same is {shown(row['same'])}; write 1 or 0")
                files = [path.parent / str(row[name] or "").strip() for name in ("a", "b")]
                for file_path in files:
                    if not _is_file(file_path):
                        there = short(str(file_path), 300)
                        raise InputError(
                            f"{path}, line {line}: there is no image {there}; paths are relative to the file"
                        )
                before, where = answers.setdefault(tuple(sorted(map(os.path.normpath, files))), (_SAME[said], line))
                if before != _SAME[said]:
                    raise InputError(
                        f"{path}, line {line}: says {said} of the pair of line {where}, which says otherwise"
                    )
                found.append((files[0], files[1], _SAME[said]))
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


_SAME = {"1": True, "0": False, "true": True, "false": False, "yes": True, "no": False}
