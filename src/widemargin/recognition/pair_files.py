"""Lists of pairs to verify with: a CSV, LFW's `pairs.txt`, and the `.bin` files of insightface (`lfw.bin`).

`pairs.txt` begins with the numbers of folds and of pairs of each kind per fold. A pair of one person is a line of a
name and two numbers, a pair of two people one of two names with a number each; `NAME n` is `NAME/NAME_000n.jpg`. A
`.bin` file is a pickle of a list of encoded images, two for each pair, and a list of booleans; its folds are ten equal
parts of the pairs in their order. The accuracy of a fold is that at the threshold which is best on the others
(Huang et al., Labeled Faces in the Wild, 2007).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.images.decode import IMAGE_SUFFIXES, ImageFile
from ..data.images.packed import FileSlice
from ..io.bounded import read_bounded_file, read_stream
from ..io.errors import InputError, shorten, spell_option
from ..io.pickled_lists import ByteSpan, read_pickled_lists
from ..metrics.roc import NUM_FOLDS, fold_accuracies
from . import protocols
from .protocols import ProtocolResult

MAX_BIN_BYTES = 2 << 30
_LFW_FOLDERS = ("", "lfw", "lfw_funneled", "lfw-deepfunneled", "lfw_home/lfw_funneled", "images")


@dataclass(frozen=True, eq=False)
class PairList:
    """Images, each once, and pairs of them by their places [M]."""

    name: str
    images: Sequence[ImageFile]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    same: NDArray[np.bool_]
    identities: Sequence[str] | None = None
    """What may be the identity of each image, such as its folder."""
    folds: NDArray[np.int64] | None = None
    """The fold of each pair, where the list has folds."""


def read_pair_list(path: str | Path, image_dir: str | Path | None = None) -> PairList:
    """The pairs of a file; `image_dir` is the folder that the names of a `pairs.txt` are looked for in."""
    path = Path(path)
    if path.suffix == ".bin":
        return read_bin_pairs(path)
    if path.suffix == ".txt":
        return read_lfw_pairs(path, image_dir)
    given = protocols.read_pairs(path)
    same = np.array([same for *_, same in given])
    files = _Numbering()
    first = np.array([files.number(a) for a, _, _ in given])
    second = np.array([files.number(b) for _, b, _ in given])
    return PairList(path.name, files.items, first, second, same, [str(file.parent) for file in files.items])


class _Numbering:
    """Numbers things by the order in which they are first seen."""

    def __init__(self) -> None:
        self.places: dict[Any, int] = {}

    def number(self, item: Any) -> int:
        """The place of a thing."""
        return self.places.setdefault(item, len(self.places))

    @property
    def items(self) -> list[Any]:
        """All of them in their order."""
        return list(self.places)


# ---------------------------------------------------------------- LFW's pairs.txt


def read_lfw_pairs(path: Path, image_dir: str | Path | None = None) -> PairList:
    """Pairs of people in LFW's layout, in folds where its first line names several."""
    lines = _read_text_lines(path)
    head = lines[0].split() if lines else []
    if not 1 <= len(head) <= 2 or not all(word.isdecimal() and 0 < int(word) <= 10**7 for word in head):
        raise InputError(f"{path}, line 1: expected the number of folds and the number of pairs per fold")
    num_folds, count = (1, int(head[0])) if len(head) == 1 else (int(head[0]), int(head[1]))
    rows = [(number, line.split("\t") if "\t" in line else line.split()) for number, line in enumerate(lines[1:], 2)]
    if len(rows) != 2 * num_folds * count:
        raise InputError(f"{path}: {len(rows):,} pairs, but its first line says {num_folds:,} folds of 2 × {count:,}")
    files, parts = _Numbering(), []
    for place, (number, words) in enumerate(rows):
        is_same = place % (2 * count) < count
        where = f"{path}, line {number}"
        if len(words) != (3 if is_same else 4):
            wanted = "a name and two numbers" if is_same else "two names with a number each"
            raise InputError(f"{where}: {wanted} are expected here, got {shorten(' '.join(words))!r}")
        a, b = ((words[0], words[1]), (words[0], words[2])) if is_same else ((words[0], words[1]), (words[2], words[3]))
        pair = [files.number((_check_person(name, where), _check_number(digits, where))) for name, digits in (a, b)]
        if not is_same and a[0] == b[0]:
            raise InputError(f"{where}: expected two different people, got {shorten(a[0])!r} twice")
        parts.append((*pair, is_same, place // (2 * count)))
    people: list[tuple[str, int]] = files.items
    first, second, same, folds = (np.array(column) for column in zip(*parts, strict=True))
    found = PairList(path.name, list(_find_people(path, people, image_dir)), first, second, same.astype(bool))
    return replace(found, identities=[name for name, _ in people], folds=folds if num_folds > 1 else None)


def _read_text_lines(path: Path) -> list[str]:
    try:
        text = read_stream(path, protocols.MAX_PAIRS_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text in UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def _check_person(name: str, where: str) -> str:
    if name in ("", ".", "..") or "/" in name or os.sep in name or "\0" in name:
        raise InputError(f"{where}: {shorten(name)!r} is not a valid name of a person")
    return name


def _check_number(digits: str, where: str) -> int:
    if not digits.isdecimal() or len(digits) > 9:
        raise InputError(f"{where}: {shorten(digits)!r} is not the number of an image")
    return int(digits)


def _find_people(path: Path, people: Sequence[tuple[str, int]], image_dir: str | Path | None) -> Iterator[Path]:
    """The file of each person's image, below the first folder that has the first of them."""
    roots = [Path(image_dir).expanduser()] if image_dir is not None else [path.parent]
    candidates = [root / below for root in roots for below in _LFW_FOLDERS]
    stems = [f"{name}/{name}_{number:04d}" for name, number in people]
    for root in candidates:
        for suffix in (".jpg", ".png", *IMAGE_SUFFIXES):
            if (root / f"{stems[0]}{suffix}").is_file():
                for stem in stems:
                    file = root / f"{stem}{suffix}"
                    if not file.is_file():
                        raise InputError(f"{path}: image {file} not found")
                    yield file
                return
    raise InputError(
        f"{path}: image {roots[0] / stems[0]}.jpg not found; pass the folder with one folder per person as "
        f"{spell_option('data_dir')}"
    )


# ---------------------------------------------------------------- insightface's .bin


def read_bin_pairs(path: Path) -> PairList:
    """Pairs of a pickle (list of encoded images, list of booleans), in ten folds; equal images are one."""
    data = read_bounded_file(path, MAX_BIN_BYTES)
    value = read_pickled_lists(data, str(path))
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(isinstance(part, list) for part in value):
        raise InputError(f"{path}: not a .bin file of pairs (a list of images and a list of booleans)")
    images, same = value
    if not images or len(images) != 2 * len(same):
        raise InputError(f"{path}: {len(images):,} images for {len(same):,} pairs; two for each are expected")
    if not all(isinstance(image, ByteSpan) for image in images):
        raise InputError(f"{path}: its first list must contain only encoded images (bytes)")
    if not all(isinstance(kind, bool) or (isinstance(kind, int) and kind in (0, 1)) for kind in same):
        raise InputError(f"{path}: its second list must contain only booleans")
    numbering = _Numbering()
    slices: list[FileSlice] = []
    places = np.empty(len(images), np.int64)
    for row, (offset, size) in enumerate(images):
        digest = hashlib.sha256(data[offset : offset + size]).digest()
        places[row] = numbering.number(digest)
        if places[row] == len(slices):
            slices.append(FileSlice(path, offset, size, f"image {row}"))
    folds = np.arange(len(same)) * NUM_FOLDS // len(same) if len(same) >= NUM_FOLDS else None
    return PairList(path.name, slices, places[0::2], places[1::2], np.array(same, dtype=bool), folds=folds)


# ---------------------------------------------------------------- verification


def verify_pair_list(x: Tensor, pairs: PairList) -> ProtocolResult:
    """Figures of the pairs from embeddings [N, D] of their images; in folds where the list has some."""
    first, second, same = (torch.from_numpy(part) for part in (pairs.first, pairs.second, pairs.same))
    result = protocols.evaluate_listed_pairs(x, first, second, same, pairs.identities)
    if pairs.folds is None:
        return result
    scores = protocols.pair_cosines(x, pairs.first, pairs.second)
    right = 100.0 * fold_accuracies(scores, pairs.same, pairs.folds)
    mean, std = float(right.mean()), float(right.std())
    line = f"{len(right)} folds of the list, threshold from the others: {mean:.2f} % ± {std:.2f} right"
    facts = {"fold_accuracy": mean, "fold_accuracy_std": std, "fold_accuracies": right.tolist()}
    return replace(result, lines=[line, *result.lines], metrics={**facts, **result.metrics})
