"""The images of a packed set, by the reader that its path needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...io.errors import InputError, spell_option
from .arrow import read_arrow_set
from .packed import PackedSet, packed_kinds
from .packed_labels import align_label_sets
from .recordio import read_recordio_set
from .shards import read_tar_set


def read_packed_set(root: Path, label_separator: str | None = None) -> PackedSet:
    """The images of a packed set, and where they lie.

    With `label_separator` a label that is a text is any number of labels, such as `red;round`.
    """
    kind = next(packed_kinds(root), None)
    if kind is None:
        raise InputError(f"{root}: contains no RecordIO file, tar shards or saved Hugging Face dataset")
    if kind == "recordio":
        if label_separator is not None:
            raise InputError(f"{spell_option('label_separator')} splits text; the labels of {root} are numbers")
        return read_recordio_set(root)
    read = read_tar_set if kind == "tar" else read_arrow_set
    found = read(root, label_separator)
    parts = {name: part for name in ("train", "test", "val") if (part := getattr(found, name)) is not None}
    aligned: dict[str, Any] = dict(zip(parts, align_label_sets(list(parts.values()), str(root)), strict=True))
    return replace(found, **aligned)
