"""The manifest of a run on a folder of images: which file belongs to which part, with its size and hash.

It is drawn once, when the run begins (see `splits`), and kept as `manifest.csv` in the run folder. From then on it
decides: files that are added later belong to no part, and no file moves from one part to another.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...io.bounded import read_lines
from ...io.errors import InputError, format_value

MANIFEST_NAME = "manifest.csv"
MANIFEST_COLUMNS = ("path", "class", "part", "size", "sha256")
PARTS = ("train", "val", "unused", "test", "excluded", "unreadable", "removed_train", "removed_test")
TRAIN, VAL, UNUSED, TEST, EXCLUDED, UNREADABLE, REMOVED_TRAIN, REMOVED_TEST = PARTS
"""Trained on; chooses `best`; left over by `--train-fraction`, or added when the run had ended; tested on; never used,
because the same content is in another part or class; no image that can be read, and skipped (`--on-bad-image skip`);
content that was trained on (or chosen by) and is no longer in the folder, remembered so that it is never tested on when
it comes back under another name; likewise content that was tested on, so that it is never trained on."""
REMOVED_PARTS = (REMOVED_TRAIN, REMOVED_TEST)  # contents without a file: their paths may hold something else now
MAX_MANIFEST_BYTES = 1 << 30  # bytes; seven million images
_SIZE_PATTERN, _SHA256_PATTERN = re.compile("[0-9]{1,18}"), re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One image: its path below the folder (with `/`), class, part, and content."""

    path: str
    label: str
    part: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All images of a run. The order of rows is the order in which images of a part are read."""

    rows: tuple[ManifestRow, ...]

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Every class, sorted."""
        return tuple(sorted({row.label for row in self.rows}))

    @cached_property
    def train_class_names(self) -> tuple[str, ...]:
        """The classes that training sees; the others are unseen and only tested on or chosen by."""
        return tuple(sorted({row.label for row in self.rows if row.part in (TRAIN, UNUSED, REMOVED_TRAIN)}))

    def unseen_class_names(self, *parts: str) -> tuple[str, ...]:
        """The classes of some parts that training does not see."""
        return tuple(sorted({row.label for row in self.rows_in(*parts)} - set(self.train_class_names)))

    def rows_in(self, *parts: str) -> list[ManifestRow]:
        """The rows of some parts."""
        return [row for row in self.rows if row.part in parts]

    def counts(self) -> dict[str, int]:
        """How many images each part has; parts without any are left out."""
        found = Counter(row.part for row in self.rows)
        return {part: found[part] for part in PARTS if found[part]}

    def digest(self) -> str:
        """SHA-256 of what decides the course of training: the images trained on and chosen by, in their order."""
        hashed = hashlib.sha256()
        for row in self.rows_in(TRAIN, VAL):
            hashed.update(repr((row.path, row.label, row.part, row.sha256)).encode())
        return hashed.hexdigest()

    def to_csv(self) -> Iterator[bytes]:
        """The file, in pieces; names that are no UTF-8 are written as the bytes they are."""
        buffer = io.StringIO(newline="")
        # Words are quoted always: a carriage return in a name would end its line otherwise.
        writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        total = 0
        for fields in _manifest_csv_rows(self.rows):
            writer.writerow(fields)
            piece = buffer.getvalue().encode("utf-8", "surrogateescape")
            buffer.seek(0)
            buffer.truncate()
            total += len(piece)
            if total > MAX_MANIFEST_BYTES:
                raise InputError(
                    f"{len(self.rows):,} images make a {MANIFEST_NAME} "
                    f"of more than {MAX_MANIFEST_BYTES >> 20} MiB, the limit"
                )
            yield piece

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest in a file; one line for anything that is none."""
        try:
            lines = (line.decode("utf-8", "surrogateescape") for line in read_lines(path, MAX_MANIFEST_BYTES))
            return cls(tuple(_parse_manifest_rows(csv.reader(lines, strict=True), path)))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def _manifest_csv_rows(rows: Iterable[ManifestRow]) -> Iterator[tuple[str | int, ...]]:
    yield MANIFEST_COLUMNS
    for row in rows:
        yield row.path, row.label, row.part, row.size, row.sha256


def _parse_manifest_rows(reader: Iterator[list[str]], path: Path) -> Iterator[ManifestRow]:
    """Rows of a file, each checked."""

    def error_at_line(why: str) -> InputError:
        line = getattr(reader, "line_num", 0)
        return InputError(f"{path}, line {line}: {why}; it was edited or damaged, restore the original")

    names: set[str] = set()
    try:
        head = next(reader, [])
        if tuple(head) != MANIFEST_COLUMNS:
            raise error_at_line(
                f"the columns of a manifest are {', '.join(MANIFEST_COLUMNS)}, not {format_value(', '.join(head))}"
            )
        for cells in reader:
            if len(cells) != len(MANIFEST_COLUMNS):
                raise error_at_line(f"{len(cells)} cells, not {len(MANIFEST_COLUMNS)}")
            name, label, part, size, digest = cells
            if part not in PARTS:
                raise error_at_line(f"part {format_value(part)} is none of {', '.join(PARTS)}")
            if not name or not label or not _SIZE_PATTERN.fullmatch(size) or not _SHA256_PATTERN.fullmatch(digest):
                raise error_at_line("path and class must not be empty, size is a whole number, sha256 has 64 digits")
            if part not in REMOVED_PARTS:
                if name in names:
                    raise error_at_line(f"{format_value(name)} stands in it twice")
                names.add(name)
            yield ManifestRow(name, label, part, int(size), digest)
    except csv.Error as error:
        raise error_at_line(f"not CSV ({error})") from None
    if not names:
        raise error_at_line("no images in it")
