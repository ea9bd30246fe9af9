"""Data sets by name: found in a folder, in the cache or on the network, and checked to be what they should be.

`iris` is scikit-learn's copy, there without any download; `iris_uci` is the archive's, in which two rows differ.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...io.bounded import read_bounded_file, read_file
from ...io.errors import InputError, unknown_name_error
from ..download import FetchError, atomic_write, cache_dir, fetch, mirror_url, sha256_hex
from .table import Column, Table, class_order, encode_levels
from .uci_sets import MAX_UCI_BYTES, TABLE1_SET_NAMES, UCI_SETS, UciSet, UciSource, find_zip_members

__all__ = ["TABLE1_SET_NAMES", "UCI_SETS", "UciSetInfo", "list_uci_sets", "load_uci_set", "uci_set_names"]


def uci_set_names() -> tuple[str, ...]:
    """Every name `load_uci_set` knows."""
    return tuple(sorted([*UCI_SETS, "iris"]))


class UciSetInfo(NamedTuple):
    """What `list_uci_sets` tells about a set."""

    name: str
    rows: int
    columns: int
    classes: int
    is_present: bool
    """Whether it can be loaded without the network."""


def list_uci_sets(data_dir: str | Path | None = None) -> tuple[UciSetInfo, ...]:
    """The sets that `load_uci_set` and `wm.compare` know by name, and which of them need no download.

    >>> [entry[1:] for entry in list_uci_sets() if entry.name == "iris"]
    [(150, 4, 3, True)]
    """
    found = []
    for name in uci_set_names():
        entry = UCI_SETS["iris_uci" if name == "iris" else name]
        classes, columns, rows = entry.shape
        found.append(UciSetInfo(name, rows, columns, classes, name == "iris" or _is_present(entry, data_dir)))
    return tuple(found)


def _is_present(entry: UciSet, data_dir: str | Path | None) -> bool:
    """Whether a set is in a folder, in the cache, or generated."""
    for folder in _uci_folders(data_dir):
        originals = [source.file_names for source in entry.sources]
        if any(all((folder / file).is_file() for file in files) for files in ((entry.file_name,), *originals)):
            return True
    return not entry.sources or _load_from_cache(entry) is not None


def load_uci_set(name: str, data_dir: str | Path | None = None) -> Table:
    """The set as a table; looked for in `data_dir`, `WIDEMARGIN_DATA` and the cache, else downloaded and cleaned."""
    if name == "iris":
        return _sklearn_iris()
    if name not in UCI_SETS:
        raise unknown_name_error("data set", name, uci_set_names())
    entry = UCI_SETS[name]
    text, source = _load_from_folders(entry, data_dir) or _load_from_cache(entry) or _generate_or_download(entry)
    return _parse_uci_table(entry, text, source)


def _uci_folders(data_dir: str | Path | None) -> Iterator[Path]:
    """Folders to look in: each one given, and `uci` in it."""
    for given, whose in ((data_dir, "data_dir"), (os.environ.get("WIDEMARGIN_DATA"), "WIDEMARGIN_DATA")):
        if given:
            folder = Path(given).expanduser()
            if not folder.is_dir():
                raise InputError(f"{whose}: {folder} is not a folder")
            yield from (folder / "uci", folder)


def _load_from_folders(entry: UciSet, data_dir: str | Path | None) -> tuple[str, str] | None:
    """The cleaned table, or originals put there by hand; what is there must be right."""
    for folder in _uci_folders(data_dir):
        path = folder / entry.file_name
        if path.is_file():
            return _check_table_hash(
                entry, read_bounded_file(path, MAX_UCI_BYTES).decode("utf-8", "replace"), str(path)
            ), str(path)
        for source in entry.sources:
            paths = [folder / file for file in source.file_names]
            if all(path.is_file() for path in paths):
                location = ", ".join(map(str, paths))
                originals = [read_bounded_file(path, MAX_UCI_BYTES) for path in paths]
                return _check_table_hash(
                    entry, _clean_originals(entry, source, originals, location), location
                ), location
    return None


def _load_from_cache(entry: UciSet) -> tuple[str, str] | None:
    path = cache_dir() / "uci" / entry.file_name
    try:
        data = read_file(path, MAX_UCI_BYTES)
    except (OSError, InputError):
        return None
    # A damaged file in the cache is nobody's work: it is made again.
    return (data.decode(), str(path)) if sha256_hex(data) == entry.sha256 else None


def _generate_or_download(entry: UciSet) -> tuple[str, str]:
    """The cleaned table from its definition or from the network, kept in the cache."""
    if not entry.sources:
        return _check_table_hash(entry, entry.clean([]), entry.name), "generated from its definition"
    failed: InputError | None = None
    for source in entry.sources:
        try:
            with tempfile.TemporaryDirectory() as folder:
                paths = [
                    fetch(url, Path(folder) / str(k), max_bytes=MAX_UCI_BYTES) for k, url in enumerate(source.urls)
                ]
                originals = [read_bounded_file(path, MAX_UCI_BYTES) for path in paths]
            location = mirror_url(source.urls[0])
            text = _check_table_hash(entry, _clean_originals(entry, source, originals, location), location)
        except InputError as error:
            # A wrong file tells more than a place that does not answer.
            failed = error if failed is None or not isinstance(error, FetchError) else failed
            continue
        with atomic_write(cache_dir() / "uci" / entry.file_name) as stream:
            stream.write(text.encode())
        return text, location
    files = " and ".join(repr(file) for file in entry.sources[0].file_names)
    remedy = f"download it elsewhere and give the folder that holds {files} as data_dir"
    raise InputError(f"data set {entry.name!r}: {failed}; {remedy}")


def _clean_originals(entry: UciSet, source: UciSource, originals: list[bytes], location: str) -> str:
    try:
        return entry.clean(find_zip_members(originals[0], source.members) if source.members else originals)
    except Exception as error:  # whatever a damaged archive or workbook makes its reader raise
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{location}: not the original of {entry.name!r} ({why})") from None


def _check_table_hash(entry: UciSet, text: str, location: str) -> str:
    found = sha256_hex(text.encode())
    if found != entry.sha256:
        raise InputError(f"{location}: not the data set {entry.name!r}: SHA-256 is {found}, expected {entry.sha256}")
    return text


def _parse_uci_table(entry: UciSet, text: str, source: str) -> Table:
    header, *rows = (line.split(",") for line in text.splitlines())
    labels = [row[-1] for row in rows]
    values = np.array([row[:-1] for row in rows]).astype(np.float64)
    columns = tuple(Column(name, values[:, place].copy()) for place, name in enumerate(header[:-1]))
    classes = class_order(labels)
    _check_shape(entry, (len(classes), len(columns), len(rows)))
    return Table(entry.name, columns, encode_levels(labels, classes), classes, (), source)


def _check_shape(entry: UciSet, found: tuple[int, int, int]) -> None:
    if found != entry.shape:
        raise InputError(f"{entry.name}: classes, features and rows are {found}, expected {entry.shape}")


def _sklearn_iris() -> Table:
    from sklearn.datasets import load_iris

    iris = load_iris()
    names = [name.removesuffix(" (cm)").replace(" ", "_") for name in iris.feature_names]
    columns = tuple(Column(name, iris.data[:, place].astype(np.float64)) for place, name in enumerate(names))
    _check_shape(UCI_SETS["iris_uci"], (len(iris.target_names), *reversed(iris.data.shape)))
    classes = tuple(str(name) for name in iris.target_names)
    return Table("iris", columns, iris.target.astype(np.int64), classes, (), "scikit-learn")
