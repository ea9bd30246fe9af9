"""Images inside larger files: a part of a file as an image, and sets of images that are packed into a few files.

`read_packed_set` recognises RecordIO files (`recordio`), tar shards (`shards`) and data sets that the library
`datasets` saved (`arrow`). Nothing is unpacked: a reader finds out where each image lies and what its label is, and an
image is read from there when it is needed. The places are kept as arrays, about 30 bytes an image, so that a set of ten
million images fits into memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
from numpy.typing import NDArray

from ...io.bounded import NotAFileError, open_regular
from ...io.errors import InputError, shorten

MAX_SLICE_BYTES = 1 << 29  # bytes of an image, as of one that is a file of its own
_MAX_EXPANDED_NAMES = 100_000  # files that one pattern with braces may name

Span = tuple[int, int]
"""Offset and size in a file."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """An image stored inside a larger file: its offset, size and name there."""

    file: Path
    offset: int
    size: int
    name: str
    more_spans: tuple[Span, ...] = ()
    """Where the image goes on, if it is in pieces."""
    joiner: bytes = b""
    """What belongs between the pieces."""

    def __str__(self) -> str:
        return f"{self.file}, {shorten(self.name, 200)}"

    def read(self) -> bytes:
        """The bytes of the image."""
        with open_packed_file(self.file) as file:
            spans = ((self.offset, self.size), *self.more_spans)
            return self.joiner.join([read_span(file, self.file, *span) for span in spans])


def open_packed_file(path: Path) -> BinaryIO:
    """Open a packed file for reading; InputError if it is missing or not a regular file."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except NotAFileError as error:
        raise InputError(str(error)) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_span(file: BinaryIO, path: Path, offset: int, size: int) -> bytes:
    """Read `size` bytes at `offset`, safe with threads; InputError if the file ends before."""
    if not 0 <= size <= MAX_SLICE_BYTES or offset < 0:
        raise InputError(f"{path}: {size:,} bytes at {offset:,} are not an image; the file is damaged")
    try:
        data = os.pread(file.fileno(), size, offset)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(data) < size:
        raise InputError(f"{path}: ends within the {size:,} bytes at {offset:,}; it was cut off, copy it again")
    return data


@dataclass(frozen=True, eq=False)
class PackedFiles(Sequence[FileSlice]):
    """Images inside a few files: offsets and sizes as arrays; indexing returns a `FileSlice`."""

    files: tuple[Path, ...]
    file_index: NDArray[np.int32]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    names: NDArray[np.generic]
    """Numbers or words that tell the images of a file apart."""
    noun: str = ""
    """What the numbers count, such as "record "."""
    joiner: bytes = b""
    more_spans: dict[tuple[int, int], tuple[Span, ...]] = field(default_factory=dict)
    """By file and offset of an image that is in pieces: where it goes on."""

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, row: int) -> FileSlice: ...
    @overload
    def __getitem__(self, row: slice) -> PackedFiles: ...
    def __getitem__(self, row: int | slice) -> FileSlice | PackedFiles:
        if isinstance(row, slice):
            return self.take(np.arange(len(self))[row])
        number, offset = int(self.file_index[row]), int(self.offsets[row])
        spans = self.more_spans.get((number, offset), ())
        name = f"{self.noun}{self.names[row]}"
        return FileSlice(self.files[number], offset, int(self.sizes[row]), name, spans, self.joiner if spans else b"")

    def take(self, rows: NDArray[np.int64]) -> PackedFiles:
        """These images, in this order."""
        return replace(
            self,
            file_index=self.file_index[rows],
            offsets=self.offsets[rows],
            sizes=self.sizes[rows],
            names=self.names[rows],
        )

    def __add__(self, other: PackedFiles) -> PackedFiles:
        shift = len(self.files)
        more = self.more_spans | {(number + shift, at): spans for (number, at), spans in other.more_spans.items()}
        return replace(
            self,
            files=self.files + other.files,
            file_index=np.concatenate((self.file_index, other.file_index + np.int32(shift))),
            offsets=np.concatenate((self.offsets, other.offsets)),
            sizes=np.concatenate((self.sizes, other.sizes)),
            names=np.concatenate((self.names, other.names)),
            more_spans=more,
        )


@dataclass(frozen=True, eq=False)
class PackedPart:
    """Images of one part of a set, with the number of each one's class among `class_names`.

    Where images have any number of labels, `y` is booleans [N, C].
    """

    images: PackedFiles
    y: NDArray[np.int64] | NDArray[np.bool_]
    class_names: tuple[str, ...]
    has_declared_labels: bool = False
    """Whether the file itself lists all labels that an image may have, also those that none has."""


@dataclass(frozen=True, eq=False)
class PackedSet:
    """A set of images in a few files; what is tested on and chosen by is None where nothing says."""

    root: Path
    kind: str
    """`recordio`, `tar` or `arrow`."""
    train: PackedPart
    test: PackedPart | None = None
    val: PackedPart | None = None
    pair_files: tuple[Path, ...] = ()
    """Files of pairs (`lfw.bin`) that lie beside the images, to verify with."""
    notes: tuple[str, ...] = ()


def expand_braces(pattern: str) -> list[str]:
    """The names that a pattern with braces stands for, as a shell would write them.

    >>> expand_braces("train-{008..010}.tar"), expand_braces("{a,b}.tar")
    (['train-008.tar', 'train-009.tar', 'train-010.tar'], ['a.tar', 'b.tar'])
    """
    pieces = re.split(r"\{([^{}]*)\}", pattern)
    choices: list[list[str]] = []
    count = 1
    for place, piece in enumerate(pieces):
        choices.append(list(_brace_words(piece)) if place % 2 else [piece])
        count *= len(choices[-1])
        if count > _MAX_EXPANDED_NAMES:
            raise InputError(f"{shorten(pattern)} names more than {_MAX_EXPANDED_NAMES:,} files")
    return ["".join(words) for words in product(*choices)]


def _brace_words(text: str) -> Iterable[str]:
    ends = re.fullmatch(r"([0-9]{1,12})\.\.([0-9]{1,12})", text)
    if ends is None:
        return text.split(",") if "," in text else ["{" + text + "}"]
    first, last = int(ends[1]), int(ends[2])
    if abs(last - first) >= _MAX_EXPANDED_NAMES:
        raise InputError(f"{{{text}}} names more than {_MAX_EXPANDED_NAMES:,} files")
    width = len(ends[1]) if ends[1].startswith("0") or len(ends[1]) == len(ends[2]) else 0
    step = 1 if last >= first else -1
    return (f"{number:0{width}d}" for number in range(first, last + step, step))


def is_packed_set(root: Path) -> bool:
    """Whether a path names a packed set; only names are looked at."""
    return any(True for _ in packed_kinds(root))


def packed_kinds(root: Path) -> Iterator[str]:
    """The formats that a path may have: of a file by its suffix, of a folder by the files directly in it."""
    if not root.is_dir():
        if root.suffix == ".rec":
            yield "recordio"
        elif root.suffix == ".tar":
            yield "tar"
        return
    if (root / "train.rec").is_file():
        yield "recordio"
    if any((root / name).is_file() for name in ("dataset_dict.json", "state.json")):
        yield "arrow"
    if tar_parts(root):
        yield "tar"


def tar_parts(root: Path) -> dict[str, list[Path]]:
    """The tar files of a folder by part: those of train/, test/ and val/, or by how their names begin, else train."""
    found: dict[str, list[Path]] = {}
    names = {"test": "test", "val": "val", "valid": "val", "validation": "val", "train": "train"}
    for folder, part in ((root, None), *((root / name, part) for name, part in names.items())):
        if not folder.is_dir():
            continue
        for name in sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".tar")):
            begins = re.match("[a-z]*", name.lower())
            of = part or names.get(begins[0] if begins else "", "train")
            found.setdefault(of, []).append(folder / name)
    return found if "train" in found else {}
