"""Files of a gallery: vectors in segments, written atomically, read by memory mapping.

    gallery.json              kind, model fingerprint, calibration, list of segments: the only file that is replaced
    segment-000001.f32        unit vectors, float32, row by row
    segment-000001.json       identity and picture of each row
    pictures/                 a small JPEG of each enrolled image, named by the SHA-256 of its source
    model/                    the model, as `widemargin export --hub` writes it

A write makes new files first and then replaces `gallery.json` (rename), so that a process that is killed leaves the
gallery as it was before or as it is after. Files that `gallery.json` does not list are leftovers: readers ignore
them and the next writer deletes them. Removing an entry rewrites its segment and deletes the old one.
Writers exclude each other by a lock on the folder; a reader keeps the state it opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io import bounded
from ..io.errors import InputError, format_value
from ..io.locks import write_chunks_atomic, write_text_atomic

GALLERY_FILE = "gallery.json"
PICTURES_FOLDER, MODEL_FOLDER = "pictures", "model"
FORMAT_VERSION = 1
MAX_SEGMENTS = 10_000
_MAX_DIMENSION = 1 << 16
_MAX_IDENTITY_LENGTH = 300
_BLOCK_ROWS = 16_384
_COPY_ROWS = 65_536  # rows copied at a time when segments are merged
SEGMENT_ROWS = 131_072
SEGMENT_TEXT_BYTES = 32 << 20  # of the entries of a segment: less than `bounded.read_json` reads


class Entry(NamedTuple):
    """One enrolled image: its identity, where it came from, and the name of its picture (empty if none is kept)."""

    identity: str
    source: str = ""
    picture: str = ""


@dataclass(frozen=True)
class Segment:
    """A block of vectors on disk, with the entry of each row."""

    name: str
    rows: int


@dataclass(frozen=True)
class GalleryState:
    """Contents of `gallery.json`."""

    fingerprint: str
    """Of the model whose embeddings these are."""
    embedding_dim: int
    reduce: str
    """How images of an identity make one score: `best` (nearest image) or `mean` (mean of unit vectors)."""
    segments: tuple[Segment, ...] = ()
    next_segment: int = 1
    calibration: dict[str, Any] | None = None

    @property
    def num_entries(self) -> int:
        """Number of enrolled images."""
        return sum(segment.rows for segment in self.segments)


def read_state(folder: Path) -> GalleryState:
    """Read and check `gallery.json`; an InputError for anything that was not written by this class."""
    path = folder / GALLERY_FILE
    try:
        raw = bounded.read_json(path)
    except FileNotFoundError:
        raise InputError(
            f"{path}: not found; create a gallery with `widemargin gallery create` or widemargin.Gallery.create"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    try:
        if raw["kind"] != "gallery" or raw["format"] != FORMAT_VERSION:
            raise InputError(f"{path}: kind {format_value(raw['kind'])}, format {format_value(raw['format'])} unknown")
        segments = tuple(_parse_segment(part) for part in raw["segments"][: MAX_SEGMENTS + 1])
        state = GalleryState(
            raw["fingerprint"],
            raw["embedding_dim"],
            raw["reduce"],
            segments,
            raw["next_segment"],
            raw["calibration"],
        )
        numbers = (state.embedding_dim, state.next_segment)
        if not all(type(value) is int and value > 0 for value in numbers) or state.embedding_dim > _MAX_DIMENSION:
            raise ValueError("a number is out of range")
        if not isinstance(state.fingerprint, str):
            raise ValueError("the fingerprint is not a text")
        if state.reduce not in ("best", "mean") or len(segments) > MAX_SEGMENTS:
            raise ValueError(f"reduce is {format_value(state.reduce)}")
        if len({part.name for part in segments}) < len(segments):
            raise ValueError("a segment is listed twice")
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}); restore a copy of it") from None
    return state


def read_version(folder: Path) -> tuple[int, int] | None:
    """What changes with every change of a gallery: inode and time of `gallery.json`; None where there is none."""
    with suppress(OSError):
        about = (folder / GALLERY_FILE).stat()
        return about.st_ino, about.st_mtime_ns
    return None


def write_state(folder: Path, state: GalleryState) -> None:
    """Replace `gallery.json`; from here on the new state is the gallery."""
    if len(state.segments) > MAX_SEGMENTS:
        raise InputError(f"{folder}: more than {MAX_SEGMENTS:,} segments, the limit; make a second gallery")
    text = json.dumps({"kind": "gallery", "format": FORMAT_VERSION, **asdict(state)}, indent=1, ensure_ascii=False)
    write_text_atomic(folder / GALLERY_FILE, text)
    _sync_path(folder)


def _parse_segment(raw: Any) -> Segment:
    name, rows = raw["name"], raw["rows"]
    is_plain = isinstance(name, str) and name.startswith("segment-") and name[8:].isdigit() and len(name) < 40
    if not is_plain or type(rows) is not int or rows < 1:
        raise ValueError(f"segment {format_value(name)}")
    return Segment(name, rows)


def map_vectors(folder: Path, segment: Segment, embedding_dim: int) -> NDArray[np.float32]:
    """The vectors of a segment [rows, D], memory-mapped; copy-on-write, because torch takes no read-only arrays."""
    path = folder / f"{segment.name}.f32"
    expected = segment.rows * embedding_dim * 4
    try:
        size = os.lstat(path).st_size
        if path.is_symlink() or size != expected:
            raise InputError(f"{path}: {size:,} bytes instead of {expected:,}; damaged, restore a copy of it")
        return np.memmap(path, np.float32, "c", shape=(segment.rows, embedding_dim))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); restore a copy of it") from None


def read_entries(folder: Path, segment: Segment) -> list[Entry]:
    """The entries of a segment, one per row."""
    path = folder / f"{segment.name}.json"
    try:
        raw = bounded.read_json(path)
        names, places = raw["identities"], raw["identity"]
        columns = [names, places, raw["source"], raw["picture"]]
        if not all(isinstance(column, list) for column in columns) or any(
            len(column) != segment.rows for column in columns[1:]
        ):
            raise ValueError(f"not {segment.rows:,} rows")
        if not all(isinstance(name, str) for name in names):
            raise ValueError("an identity is not a text")
        entries = [
            Entry(names[place], source, picture)
            for place, source, picture in zip(places, columns[2], columns[3], strict=True)
            if type(place) is int and place >= 0 and isinstance(source, str) and is_picture_name(picture)
        ]
        if len(entries) != segment.rows:
            raise ValueError("a row is malformed")
    except FileNotFoundError:
        raise InputError(f"{path}: missing; the gallery is damaged, restore a copy of it") from None
    except (KeyError, TypeError, ValueError, IndexError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged ({error}); restore a copy of it") from None
    return entries


def is_picture_name(name: Any) -> bool:
    """True if this is a file name that we write: hexadecimal digits and a suffix, no path."""
    if not isinstance(name, str):
        return False
    stem, dot, suffix = name.partition(".")
    return not name or (dot == "." and suffix == "jpg" and len(stem) == 64 and set(stem) <= set("0123456789abcdef"))


def check_identity(identity: Any) -> str:
    """An identity's name if it can be one; else an InputError."""
    is_name = isinstance(identity, str) and bool(identity.strip()) and len(identity) <= _MAX_IDENTITY_LENGTH
    if not is_name or (not identity.isascii() and any("\ud800" <= character <= "\udfff" for character in identity)):
        raise InputError(
            f"an identity is a name of 1 to {_MAX_IDENTITY_LENGTH} characters in UTF-8, got {format_value(identity)}"
        )
    return str(identity)


def can_grow(folder: Path, segment: Segment) -> bool:
    """True if a segment is small enough to be merged with new rows."""
    with suppress(OSError):
        text_bytes = (folder / f"{segment.name}.json").stat().st_size
        return segment.rows <= SEGMENT_ROWS // 2 and text_bytes <= SEGMENT_TEXT_BYTES // 4
    return False


def _max_text_bytes(entry: Entry) -> int:
    """Upper bound on the bytes of an entry in JSON: a character takes up to two, or six if it is not plain."""
    text = entry.identity + entry.source
    return (2 if text.isascii() and text.isprintable() else 6) * len(text) + 100


def _split_rows(entries: Sequence[Entry]) -> Iterator[slice]:
    """Rows of each segment to write, within the bounds of a segment."""
    start, size = 0, 0
    for row, entry in enumerate(entries):
        added = _max_text_bytes(entry)
        if row - start == SEGMENT_ROWS or (size + added > SEGMENT_TEXT_BYTES and row > start):
            yield slice(start, row)
            start, size = row, 0
        size += added
    if entries:
        yield slice(start, len(entries))


def write_segments(
    folder: Path, first_number: int, parts: Sequence[NDArray[np.float32]], entries: Sequence[Entry]
) -> list[Segment]:
    """Write vectors, part after part, and their entries as segments numbered from `first_number`.

    They are not in use until `write_state`.
    """
    segments = []
    for number, rows in enumerate(_split_rows(entries), first_number):
        segment = Segment(f"segment-{number:06d}", rows.stop - rows.start)
        write_chunks_atomic(folder / f"{segment.name}.f32", _iter_bytes(parts, rows))
        text = bounded.dumps_one_line_per_key(_entry_columns(entries[rows]), ensure_ascii=False)
        write_text_atomic(folder / f"{segment.name}.json", text)
        segments.append(segment)
    return segments


def _entry_columns(entries: Sequence[Entry]) -> dict[str, list[Any]]:
    names = sorted({entry.identity for entry in entries})
    place = {identity: k for k, identity in enumerate(names)}
    return {
        "identities": names,
        "identity": [place[entry.identity] for entry in entries],
        "source": [entry.source for entry in entries],
        "picture": [entry.picture for entry in entries],
    }


def _iter_bytes(parts: Sequence[NDArray[np.float32]], rows: slice) -> Iterator[memoryview]:
    """The bytes of some rows of all parts together."""
    for part, begin in zip(parts, accumulate((len(part) for part in parts), initial=0), strict=False):
        first, last = max(0, rows.start - begin), min(len(part), rows.stop - begin)
        for start in range(first, last, _COPY_ROWS):
            yield np.ascontiguousarray(part[start : min(start + _COPY_ROWS, last)], dtype=np.float32).data.cast("B")


@dataclass
class PictureWriter:
    """Writes small pictures while images are enrolled.

    A picture counts only when an entry of `gallery.json` refers to it, and others are deleted as leftovers. So all of
    them are made durable together (`sync`), which is much faster than one by one.
    """

    folder: Path
    created: list[Path] = field(default_factory=list)

    def write(self, name: str, data: bytes) -> None:
        """Write a picture; an existing file of that name has the same content."""
        place = self.folder / PICTURES_FOLDER
        if not self.created:
            if place.is_symlink():
                raise InputError(f"{place}: a symbolic link, which is not followed")
            place.mkdir(exist_ok=True)
        path = place / name
        with suppress(FileExistsError), path.open("xb") as file:
            self.created.append(path)
            file.write(data)

    def sync(self) -> None:
        """Make the pictures durable."""
        for path in self.created:
            _sync_path(path)
        if self.created:
            _sync_path(self.folder / PICTURES_FOLDER)


class EntryCache:
    """Entries by segment. Segments never change, so that only new ones are read when a gallery is read again."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Any, ...], list[Entry]] = {}

    def read(self, folder: Path, segments: Sequence[Segment]) -> list[Entry]:
        """Entries of all segments, one after the other."""
        found: dict[tuple[Any, ...], list[Entry]] = {}
        for segment in segments:
            with suppress(OSError):
                about = (folder / f"{segment.name}.json").stat()
                key = (segment, about.st_ino, about.st_mtime_ns, about.st_size)
                found[key] = self._entries.get(key) or read_entries(folder, segment)
                continue
            read_entries(folder, segment)  # says what is wrong
        self._entries = found
        return list(chain.from_iterable(found.values()))


def delete_leftovers(folder: Path, state: GalleryState, pictures: set[str] | None = None) -> list[str]:
    """Delete segment files that the state does not list, and pictures beyond `pictures`; return their names."""
    used = {f"{segment.name}{suffix}" for segment in state.segments for suffix in (".f32", ".json")}
    stale = [path for path in folder.glob("segment-*") if path.name not in used]
    picture_folder = folder / PICTURES_FOLDER
    if pictures is not None and picture_folder.is_dir() and not picture_folder.is_symlink():
        stale += [path for path in picture_folder.iterdir() if path.name not in pictures]
    for path in stale:
        path.unlink(missing_ok=True)
    if stale:
        _sync_path(folder)
    return [path.name for path in stale]


def _sync_path(path: Path) -> None:
    """Make a file, or the renames in a folder, durable, where the system can."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def iter_vector_blocks(parts: Sequence[NDArray[np.float32]]) -> Iterator[tuple[int, Tensor]]:
    """Blocks of vectors over all segments with the number of their first row; a block is mapped, not copied."""
    start = 0
    for part in parts:
        for row in range(0, len(part), _BLOCK_ROWS):
            yield start + row, torch.from_numpy(np.asarray(part[row : row + _BLOCK_ROWS]))
        start += len(part)
