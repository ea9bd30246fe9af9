"""RecordIO files of MXNet, as insightface distributes its faces: `train.rec`, `train.idx` and `property`.

A record is a header of eight bytes, the magic number and a word whose upper three bits say whether it is whole (0) or
the first, a middle or the last piece of one (1, 2, 3) and whose other bits are its length; then its bytes, filled up to
a multiple of four. Where the bytes of an image hold the magic number, the writer cuts them there and leaves it out.
The bytes begin with `IRHeader`: flag, label, id and id2; with a flag above 0 so many labels as floats follow, of which
the first is the class. Record 0 of insightface's files holds no image but two such labels: one beyond the number of
the last image, and one beyond that of the last identity; records in between are ranges of images, not needed here.

Reference: dmlc-core's recordio.h, and image_recordio.h of MXNet.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...io.bounded import read_bounded_file
from ...io.errors import InputError, shorten
from .packed import (
    MAX_SLICE_BYTES,
    PackedFiles,
    PackedPart,
    PackedSet,
    Span,
    open_packed_file,
    read_span,
)
from .packed_labels import number_classes

MAGIC = 0xCED7230A
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_RECORD = struct.Struct("<II")
_IMAGE = struct.Struct("<IfQQ")
_MAX_LABELS = 1024  # of one image
_MAX_INDEX_BYTES = 2 << 30
_MAX_PIECES = 1 << 16  # of one image
_MAX_CLASS = 1 << 31


class _Record(NamedTuple):
    """Spans of a record's bytes, and the offset of the next record."""

    spans: tuple[Span, ...]
    end: int


class _ImageRecord(NamedTuple):
    """Labels of a record, and the spans of its image."""

    labels: tuple[float, ...]
    spans: tuple[Span, ...]


def read_recordio_set(root: Path) -> PackedSet:
    """The images of `train.rec` in a folder, or of a file, with their classes; files `*.bin` beside it are pairs."""
    path = root / "train.rec" if root.is_dir() else root
    part = read_recordio(path)
    notes = []
    expected = _read_property(path.parent / "property") if path.name == "train.rec" else None
    if expected is not None and expected != len(part.class_names):
        notes.append(f"property says {expected:,} classes, the records are of {len(part.class_names):,}")
    pairs = tuple(sorted(path.parent.glob("*.bin"))) if path.name == "train.rec" else ()
    return PackedSet(root, "recordio", part, pair_files=pairs, notes=tuple(notes))


def read_recordio(path: Path) -> PackedPart:
    """The images of a RecordIO file, by its index where there is one."""
    with open_packed_file(path) as file:
        return _read_images(file, path)


def _read_images(file: BinaryIO, path: Path) -> PackedPart:
    size = os.fstat(file.fileno()).st_size
    index = path.with_suffix(".idx")
    numbers, places = _read_index(index, size) if index.exists() else _scan_records(file, path, size)
    if not len(numbers):
        raise InputError(f"{path}: no records in it")
    first = int(np.flatnonzero(numbers == 0)[0]) if (numbers == 0).any() else None
    if first is not None:
        head = _read_image_record(file, path, int(places[first]), size, 0)
        if len(head.labels) > 1 and not sum(length for _, length in head.spans):
            last = _whole_number(head.labels[0], path, 0)
            keep = (numbers >= 1) & (numbers < last)
            numbers, places = numbers[keep], places[keep]
            if not len(numbers):
                raise InputError(
                    f"{path}: record 0 says that images are the records below {last:,}, but there are none"
                )
    offsets, sizes = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
    labels = np.empty(len(places), np.int64)
    more: dict[tuple[int, int], tuple[Span, ...]] = {}
    for row, (number, place) in enumerate(zip(numbers.tolist(), places.tolist(), strict=True)):
        found = _read_image_record(file, path, place, size, number)
        offsets[row], sizes[row] = found.spans[0]
        if len(found.spans) > 1:
            more[0, found.spans[0][0]] = found.spans[1:]
        labels[row] = _whole_number(found.labels[0], path, number)
    y, names = number_classes(labels)
    file_index = np.zeros(len(places), np.int32)
    images = PackedFiles((path,), file_index, offsets, sizes, numbers, "record ", _MAGIC_BYTES, more)
    return PackedPart(images, y, names)


def _whole_number(label: float, path: Path, number: int) -> int:
    if not (0 <= label < _MAX_CLASS and label == int(label)):
        raise InputError(f"{path}, record {number}: its label {label!r} is not a class number")
    return int(label)


def _read_image_record(file: BinaryIO, path: Path, place: int, size: int, number: int) -> _ImageRecord:
    where = f"{path}, record {number}"
    record = _read_record(file, path, place, size, where)
    offset, length = record.spans[0]
    if length < _IMAGE.size:
        raise InputError(f"{where}: {length} bytes, too few for the header of an image")
    flag, label, _, _ = _IMAGE.unpack(read_span(file, path, offset, _IMAGE.size))
    before = _IMAGE.size
    labels = (label,)
    if flag:
        if flag > _MAX_LABELS or length < before + 4 * flag:
            raise InputError(f"{where}: claims {flag:,} labels in {length:,} bytes; it is damaged")
        labels = struct.unpack(f"<{flag}f", read_span(file, path, offset + before, 4 * flag))
        before += 4 * flag
    return _ImageRecord(labels, ((offset + before, length - before), *record.spans[1:]))


def _read_record(file: BinaryIO, path: Path, place: int, size: int, where: str) -> _Record:
    """Where the bytes of a record lie; one that is in pieces has several spans."""
    spans: list[Span] = []
    total = 0
    while True:
        if not 0 <= place <= size - _RECORD.size:
            raise InputError(f"{where}: at byte {place:,} of a file of {size:,}; the index or the file is damaged")
        magic, word = _RECORD.unpack(read_span(file, path, place, _RECORD.size))
        piece, length = word >> 29, word & ((1 << 29) - 1)
        if magic != MAGIC:
            raise InputError(f"{where}: no record begins at byte {place:,}; does the index belong to this file?")
        total += length
        end = place + _RECORD.size + length
        if total > MAX_SLICE_BYTES or end > size or len(spans) >= _MAX_PIECES:
            raise InputError(f"{where}: claims {total:,} bytes, more than there are; it is damaged or truncated")
        if (piece in (0, 1)) == bool(spans) or piece > 3:
            raise InputError(f"{where}: its pieces are out of order; it is damaged")
        spans.append((place + _RECORD.size, length))
        place = end + -length % 4
        if piece in (0, 3):
            return _Record(tuple(spans), place)


def _scan_records(file: BinaryIO, path: Path, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers and places of all records of a file without an index."""

    def places() -> Iterator[int]:
        place = number = 0
        while place < size:
            yield place
            place = _read_record(file, path, place, size, f"{path}, record {number}").end
            number += 1

    found = np.fromiter(places(), np.int64)
    return np.arange(len(found), dtype=np.int64), found


def _read_index(path: Path, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers and places of the records, from lines of a number, a tab and a byte."""
    data = read_bounded_file(path, _MAX_INDEX_BYTES)
    try:
        found = np.array(data.split(), dtype=np.int64)
    except (ValueError, OverflowError):
        raise InputError(f"{path}: an index has two whole numbers in each line, a record and its byte") from None
    if len(found) % 2:
        raise InputError(f"{path}: an index has two whole numbers in each line; the last line is incomplete")
    numbers, places = found[0::2], found[1::2]
    if len(np.unique(numbers)) < len(numbers):
        raise InputError(f"{path}: contains a record twice")
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < size:
        raise InputError(
            f"{path}: names byte {int(places.max()):,} of a file of {size:,} bytes; it belongs to another file"
        )
    order = np.argsort(numbers, kind="stable")
    return numbers[order], places[order]


def _read_property(path: Path) -> int | None:
    """The number of classes in insightface's file `property`, such as `85742,112,112`; None without it."""
    if not path.is_file():
        return None
    text = read_bounded_file(path, 1 << 12).decode("utf-8", "replace").strip()
    words = text.split(",")
    if len(words) != 3 or not all(word.strip().isdecimal() and len(word) < 12 for word in words):
        raise InputError(f"{path}: {shorten(text)!r} is not a number of classes, a height and a width")
    return int(words[0])
