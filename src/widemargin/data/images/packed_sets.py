"""The images of a packed set, by the reader that its path needs."""

from __future__ import annotations

from pathlib import Path

from ...io.errors import InputError
from .arrow import read_arrow_set
from .packed import PackedSet, packed_kinds
from .recordio import read_recordio_set
from .shards import read_tar_set


def read_packed_set(root: Path) -> PackedSet:
    """The images of a packed set, and where they lie."""
    kind = next(packed_kinds(root), None)
    if kind is None:
        raise InputError(f"{root}: no RecordIO file, no tar shards and no saved data set in it")
    if kind == "recordio":
        return read_recordio_set(root)
    if kind == "tar":
        return read_tar_set(root)
    return read_arrow_set(root)
