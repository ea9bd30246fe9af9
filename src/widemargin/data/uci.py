"""Data sets by name: found in a folder, in the cache or on the network, and checked to be what they should be.

`iris` is scikit-learn's copy, there without any download; `iris_uci` is the archive's, in which two rows differ.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..bounded_files import read_file
from ..errors import InputError, unknown
from .bounded import file_bytes
from .fetch import FetchError, cache_dir, digest, fetch, mirrored, written
from .table import Column, Table, class_order, codes
from .uci_catalogue import SETS, TABLE1, UciSet
from .uci_clean import LARGEST, members
from .uci_sources import Source

__all__ = ["SETS", "TABLE1", "load_set", "set_names"]


def set_names() -> tuple[str, ...]:
    """Every name `load_set` knows."""
    return tuple(sorted([*SETS, "iris"]))


def load_set(name: str, data_dir: str | Path | None = None) -> Table:
    """The set as a table; looked for in `data_dir`, `WIDEMARGIN_DATA` and the cache, else downloaded and cleaned."""
    if name == "iris":
        return _sklearn_iris()
    if name not in SETS:
        raise unknown("data set", name, set_names())
    entry = SETS[name]
    text, source = _from_folders(entry, data_dir) or _from_cache(entry) or _made(entry)
    return _table(entry, text, source)


def _folders(data_dir: str | Path | None) -> Iterator[Path]:
    """Folders to look in: each one given, and `uci` in it."""
    for given, whose in ((data_dir, "--data-dir"), (os.environ.get("WIDEMARGIN_DATA"), "WIDEMARGIN_DATA")):
        if given:
            folder = Path(given).expanduser()
            if not folder.is_dir():
                raise InputError(f"{whose}: {folder} is no folder")
            yield from (folder / "uci", folder)


def _from_folders(entry: UciSet, data_dir: str | Path | None) -> tuple[str, str] | None:
    """The cleaned table, or originals put there by hand; what is there must be right."""
    for folder in _folders(data_dir):
        path = folder / entry.file
        if path.is_file():
            return _right(entry, file_bytes(path, LARGEST).decode("utf-8", "replace"), str(path)), str(path)
        for source in entry.sources:
            paths = [folder / file for file in source.files]
            if all(path.is_file() for path in paths):
                place = ", ".join(map(str, paths))
                originals = [file_bytes(path, LARGEST) for path in paths]
                return _right(entry, _clean(entry, source, originals, place), place), place
    return None


def _from_cache(entry: UciSet) -> tuple[str, str] | None:
    path = cache_dir() / "uci" / entry.file
    try:
        data = read_file(path, LARGEST)
    except (OSError, InputError):
        return None
    # A damaged file in the cache is nobody's work: it is made again.
    return (data.decode(), str(path)) if digest(data) == entry.sha256 else None


def _made(entry: UciSet) -> tuple[str, str]:
    """The cleaned table from its definition or from the network, kept in the cache."""
    if not entry.sources:
        return _right(entry, entry.clean([]), entry.name), "generated from its definition"
    failed: InputError | None = None
    for source in entry.sources:
        try:
            with tempfile.TemporaryDirectory() as folder:
                paths = [fetch(url, Path(folder) / str(k), limit=LARGEST) for k, url in enumerate(source.urls)]
                originals = [file_bytes(path, LARGEST) for path in paths]
            place = mirrored(source.urls[0])
            text = _right(entry, _clean(entry, source, originals, place), place)
        except InputError as error:
            # A wrong file tells more than a place that does not answer.
            failed = error if failed is None or not isinstance(error, FetchError) else failed
            continue
        with written(cache_dir() / "uci" / entry.file) as stream:
            stream.write(text.encode())
        return text, place
    files = " and ".join(repr(file) for file in entry.sources[0].files)
    remedy = f"download it elsewhere and give the folder that holds {files} with --data-dir"
    raise InputError(f"data set {entry.name!r}: {failed}; {remedy}")


def _clean(entry: UciSet, source: Source, originals: list[bytes], place: str) -> str:
    try:
        return entry.clean(members(originals[0], source.members) if source.members else originals)
    except Exception as error:  # whatever a damaged archive or workbook makes its reader raise
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{place}: not the original of {entry.name!r} ({why})") from None


def _right(entry: UciSet, text: str, place: str) -> str:
    found = digest(text.encode())
    if found != entry.sha256:
        raise InputError(f"{place}: not the data set {entry.name!r}: SHA-256 is {found}, expected {entry.sha256}")
    return text


def _table(entry: UciSet, text: str, source: str) -> Table:
    header, *rows = (line.split(",") for line in text.splitlines())
    labels = [row[-1] for row in rows]
    values = np.array([row[:-1] for row in rows]).astype(np.float64)
    columns = tuple(Column(name, values[:, place].copy()) for place, name in enumerate(header[:-1]))
    classes = class_order(labels)
    _check_shape(entry, (len(classes), len(columns), len(rows)))
    return Table(entry.name, columns, codes(labels, classes), classes, (), source)


def _check_shape(entry: UciSet, found: tuple[int, int, int]) -> None:
    if found != entry.shape:
        raise InputError(f"{entry.name}: classes, features and rows are {found}, but Table II has {entry.shape}")


def _sklearn_iris() -> Table:
    from sklearn.datasets import load_iris

    iris = load_iris()
    names = [name.removesuffix(" (cm)").replace(" ", "_") for name in iris.feature_names]
    columns = tuple(Column(name, iris.data[:, place].astype(np.float64)) for place, name in enumerate(names))
    _check_shape(SETS["iris_uci"], (len(iris.target_names), *reversed(iris.data.shape)))
    classes = tuple(str(name) for name in iris.target_names)
    return Table("iris", columns, iris.target.astype(np.int64), classes, (), "scikit-learn")
