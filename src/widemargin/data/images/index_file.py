"""An index file of images: a CSV or Parquet file with the columns path, label and perhaps split (train, val or test).

A CSV file is separated by commas, semicolons or tabs. Paths are relative to the folder of the file, or absolute and
below it. Where a separator is given, a label is any number of labels, such as `red;round`; where a path stands in
several rows, it has the labels of all of them. Otherwise each image has one label.
The labels of images to test on are among those of training (a closed set), or none of them is (an open set).
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePosixPath

from ...io.bounded import read_bounded_file, read_lines
from ...io.errors import InputError, format_value
from .folder import ImageFolderTree

COLUMNS = ("path", "label", "split")
SPLIT_NAMES = {"": "train", "train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
PARQUET_SUFFIXES = (".parquet", ".pq")
MAX_INDEX_BYTES = 1 << 30
REPEATED_ROWS_SEPARATOR = "\x1f"
"""Joins the labels of a path that stands in several rows: no label of a file that is text holds it."""


def scan_index_file(path: str | Path, label_separator: str | None = None) -> ImageFolderTree:
    """The images that an index file names, by label; missing files are listed in `missing`."""
    path = Path(path).expanduser()
    labels: dict[str, set[str]] = {}
    splits: dict[str, str] = {}
    has_split, repeated_row = False, ""
    is_parquet = path.suffix.lower() in PARQUET_SUFFIXES
    for line, file, label, split in _read_parquet_rows(path) if is_parquet else _read_rows(path):
        where = f"{path}, {'row' if is_parquet else 'line'} {line}"
        if split is not None and SPLIT_NAMES.get(split.strip().lower()) is None:
            raise InputError(f"{where}: split {format_value(split)} must be train, val or test")
        part = SPLIT_NAMES[(split or "").strip().lower()]
        has_split |= bool(split and split.strip())
        words = {label.strip()} if label_separator is None else {word.strip() for word in label.split(label_separator)}
        words.discard("")
        if label_separator is None and not words:
            raise InputError(f"{where}: {file} has no label")
        if splits.setdefault(file, part) != part:
            raise InputError(f"{where}: {file} is in two splits, {splits[file]} and {part}")
        before = labels.setdefault(file, set())
        if before and before != words and not repeated_row:
            repeated_row = (
                f"{where}: {file} is labelled {join_labels(words, ', ')} here and {join_labels(before, ', ')} before"
            )
        before |= words
    if not labels:
        raise InputError(f"{path}: no images in it")
    joiner = label_separator if label_separator is not None else REPEATED_ROWS_SEPARATOR if repeated_row else None
    is_tested = "test" in splits.values()
    train: dict[str, list[Path]] = {}
    test: dict[str, list[Path]] = {}
    missing = []
    for file, words in labels.items():
        if not os.path.isfile(path.parent / file):
            missing.append(file)
            continue
        label = next(iter(words)) if joiner is None else join_labels(words, joiner)
        (test if splits[file] == "test" else train).setdefault(label, []).append(path.parent / file)
    return ImageFolderTree(
        path.parent,
        dict(sorted(train.items())),
        dict(sorted(test.items())) if is_tested else None,
        path,
        path if is_tested else None,
        index_file=path,
        label_separator=joiner,
        has_split=has_split,
        held_out=frozenset(file for file, part in splits.items() if part == "val"),
        missing=tuple(missing),
        repeated_row="" if label_separator is not None else repeated_row,
    )


def join_labels(labels: set[str], separator: str) -> str:
    """The labels of an image as one text; the separator alone where there is none.

    >>> join_labels({"round", "red"}, ";"), join_labels(set(), ";")
    ('red;round', ';')
    """
    return separator.join(sorted(labels)) or separator


def _read_rows(path: Path) -> Iterator[tuple[int, str, str, str | None]]:
    """Number of the line, path, label and split of every row."""
    try:
        lines = (
            line.decode("utf-8-sig" if k == 0 else "utf-8") for k, line in enumerate(read_lines(path, MAX_INDEX_BYTES))
        )
        first = next(lines, "")
        delimiter = next((mark for mark in ",;\t" if mark in first), ",")
        reader = csv.reader(chain([first], lines), strict=True, delimiter=delimiter)
        head = [name.strip().lower() for name in next(reader, [])]
        places = _find_columns(head, path)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(head):
                raise InputError(f"{path}, line {reader.line_num}: {len(cells)} cells, expected {len(head)}")
            file = _normalize_path(cells[places["path"]], path.parent, f"{path}, line {reader.line_num}")
            split = cells[places["split"]] if "split" in places else None
            yield reader.line_num, file, cells[places["label"]], split
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8; save it as UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def _read_parquet_rows(path: Path) -> Iterator[tuple[int, str, str, str | None]]:
    """The same of a Parquet file; whole numbers are read as text."""
    from ..tabular.parquet import read_parquet_grid
    from ..tabular.table import MemoryBudget

    data = read_bounded_file(path, MAX_INDEX_BYTES)
    grid = read_parquet_grid(data, MemoryBudget(str(path), len(data)))
    places = _find_columns([name.strip().lower() for name in grid.column_names], path)
    columns = {name: grid.columns[place] for name, place in places.items()}
    splits = columns.get("split", [None] * len(columns["path"]))
    for row, (file, label, split) in enumerate(zip(columns["path"], columns["label"], splits, strict=True), 1):
        where = f"{path}, row {row}"
        if not isinstance(file, str):
            raise InputError(f"{where}: path is {format_value(file)}, not text")
        yield (
            row,
            _normalize_path(file, path.parent, where),
            _label_text(label, where),
            split if split is None else str(split),
        )


def _label_text(label: object, where: str) -> str:
    if isinstance(label, float):
        if math.isnan(label):  # an empty cell
            return ""
        if not label.is_integer():
            raise InputError(f"{where}: the label {format_value(label)} is neither a string nor a whole number")
        return str(int(label))
    return str(label)


def _find_columns(head: list[str], path: Path) -> dict[str, int]:
    if "path" not in head or "label" not in head:
        raise InputError(
            f"{path}: an index file of images has the columns path, label and optionally split, not "
            f"{format_value(', '.join(head))}"
        )
    return {name: head.index(name) for name in COLUMNS if name in head}


def _normalize_path(text: str, root: Path, where: str) -> str:
    """A path below `root`, the folder of the index file, with `/`; paths of Windows are read too."""
    text = text.strip()
    if "\\" in text and not os.path.lexists(root / text):
        text = text.replace("\\", "/")
    path = PurePosixPath(text)
    if path.is_absolute():  # os.path: a link on the way is not followed
        path = PurePosixPath(os.path.relpath(path, os.path.abspath(root)))
    if not text or path == PurePosixPath("."):
        raise InputError(f"{where}: the path is empty")
    if ".." in path.parts or re.match("[A-Za-z]:/", text):
        raise InputError(
            f"{where}: {format_value(text)} must be a path below the folder of the index file; move the index file to "
            "a folder that contains all images"
        )
    return path.as_posix()
