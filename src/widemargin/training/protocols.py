"""How embeddings of a run are judged beyond its own classes: verification, retrieval, knn, fewshot, openset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..angle import direction
from ..data.identities import split_identities
from ..data.images import Images
from ..errors import InputError, short, shown
from ..metrics.fewshot import few_shot, knn_accuracy
from ..metrics.openset import open_set
from ..metrics.retrieval import retrieve
from ..metrics.verification import Verification, folds_of, needed, supported, threshold_at, verify
from .unseen import sampled_pairs


@dataclass(frozen=True)
class Settings:
    """What the protocols can be told."""

    pairs: int = 6000
    batch: int = 1024
    k: int = 5
    ways: int = 5
    shots: int = 1
    episodes: int = 1000
    seed: int = 0
    faiss: bool = False


@dataclass(frozen=True)
class Judged:
    """Figures, as lines for people and as facts for a file; pair scores where there are pairs."""

    lines: list[str]
    facts: dict[str, Any]
    verification: Verification | None = None
    scores: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None


def verification(x: Tensor, y: Tensor, settings: Settings) -> Judged:
    """Pairs drawn at random, as many same as different."""
    first, second, same = sampled_pairs(y, settings.seed, settings.pairs)
    return verification_of(x, first, second, same)


def verification_of(x: Tensor, first: Tensor, second: Tensor, same: Tensor) -> Judged:
    """Pairs of rows of `x`; in ten folds by turns, as far as there are so many."""
    unit = direction(x.float())[0]
    scores = (unit[first] * unit[second]).sum(1).double().numpy()
    kinds = same.numpy()
    found = verify(scores, kinds, folds_of(kinds))
    lines = [
        f"{found.same:,} same and {found.different:,} different pairs",
        f"AUC {100 * found.auc.value:.2f} % ({100 * found.auc.low:.2f} to {100 * found.auc.high:.2f})",
        f"EER {100 * found.eer.value:.2f} % ({100 * found.eer.low:.2f} to {100 * found.eer.high:.2f})",
    ]
    for far, tar in found.tar.items():
        if tar is None:
            lines.append(f"TAR at FAR {far:g}: not from so few pairs, {needed(far):,} different ones are needed")
        else:
            lines.append(f"TAR at FAR {far:g}: {100 * tar.value:.2f} % ({100 * tar.low:.2f} to {100 * tar.high:.2f})")
    if found.accuracy is not None:
        lines.append(f"ten folds, threshold from the others: {found.accuracy:.2f} % ± {found.accuracy_error:.2f} right")
    facts = {
        "same": found.same,
        "different": found.different,
        "auc": asdict(found.auc),
        "eer": asdict(found.eer),
        "tar": {f"{far:g}": None if tar is None else asdict(tar) for far, tar in found.tar.items()},
        "thresholds": {f"{far:g}": threshold_at(scores, kinds, far) for far in found.tar if supported(kinds, far)},
        "accuracy": found.accuracy,
        "accuracy_error": found.accuracy_error,
    }
    return Judged(lines, facts, found, (scores, kinds))


def retrieval(x: Tensor, y: Tensor, settings: Settings) -> Judged:
    """Every image looks for the others of its class among all."""
    found = retrieve(x, y, batch=settings.batch, faiss=settings.faiss)
    recall = ", ".join(f"recall@{k} {value:.2f} %" for k, value in found.recall.items())
    lines = [
        f"{found.queries:,} queries: {recall}",
        f"R-precision {found.r_precision:.2f} %, MAP@R {found.map_at_r:.2f} %",
    ]
    if found.without_match:
        lines.append(f"{found.without_match:,} images are the only ones of their class and were left out")
    return Judged(lines, {**asdict(found), "recall": {str(k): value for k, value in found.recall.items()}})


def knn(x: Tensor, y: Tensor, settings: Settings) -> Judged:
    """The k nearest other images vote."""
    value = knn_accuracy(x, y, k=settings.k, batch=settings.batch)
    return Judged([f"{settings.k} nearest neighbours name {value:.2f} % rightly"], {"k": settings.k, "accuracy": value})


def fewshot(x: Tensor, y: Tensor, settings: Settings) -> Judged:
    """Classes known from a handful of images."""
    ways, shots, episodes = settings.ways, settings.shots, settings.episodes
    found = few_shot(x, y, ways=ways, shots=shots, episodes=episodes, seed=settings.seed)
    line = f"{ways} ways, {shots} shot{'s' if shots > 1 else ''}: {found.accuracy:.2f} % ± {found.error:.2f}"
    return Judged([f"{line} over {episodes:,} episodes"], {"ways": ways, "shots": shots, **asdict(found)})


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
    lines = [f"{found.known:,} known and {found.unknown:,} unknown images: AUROC {100 * found.auroc:.2f} %"]
    lines.append(f"named rightly if none may be refused: {found.rank1:.2f} %")
    for far, value in found.dir.items():
        said = "too few unknown images to say" if value is None else f"{value:.2f} %"
        lines.append(f"found and named rightly at {100 * far:g} % false alarms: {said}")
    return Judged(lines, {**asdict(found), "dir": {f"{far:g}": value for far, value in found.dir.items()}})


def calibrated_threshold(x: Tensor, y: Tensor, far: float, seed: int, pairs: int = 20_000) -> float:
    """The cosine that so large a share of different pairs passes."""
    first, second, same = sampled_pairs(y, seed, pairs)
    if not supported(same.numpy(), far):
        raise InputError(f"a false alarm rate of {far:g} cannot be read off {pairs:,} pairs; give --threshold")
    unit = direction(x.float())[0]
    return threshold_at((unit[first] * unit[second]).sum(1).double().numpy(), same.numpy(), far)


PROTOCOLS: dict[str, Callable[[Tensor, Tensor, Settings], Judged]] = {
    "verification": verification,
    "retrieval": retrieval,
    "knn": knn,
    "fewshot": fewshot,
    "openset": openset,
}


def read_pairs(path: str | Path) -> list[tuple[Path, Path, bool]]:
    """Pairs of image files from a CSV with columns a, b, same; paths are relative to the file."""
    import csv

    path = Path(path)
    found = []
    line = 1
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
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
