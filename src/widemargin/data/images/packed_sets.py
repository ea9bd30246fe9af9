"""Packed sets: which reader a path needs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...io.errors import InputError
from .arrow import read_arrow_set
from .packed import PackedSet
from .recordio import read_recordio_set
from .shards import read_tar_set


def is_packed_set(root: Path) -> bool:
    """Whether a path names a packed set; only names are looked at."""
    return any(True for _ in _packed_kinds(root))


def read_packed_set(root: Path) -> PackedSet:
    """The images of a packed set, and where they lie."""
    kind = next(_packed_kinds(root), None)
    if kind is None:
        raise InputError(f"{root}: no RecordIO file, no tar shards and no saved data set in it")
    if kind == "recordio":
        return read_recordio_set(root)
    if kind == "tar":
        return read_tar_set(root)
    return read_arrow_set(root)


def _packed_kinds(root: Path) -> Iterator[str]:
    """The kinds that a path may be of: a file by how it ends, a folder by what lies directly in it."""
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
