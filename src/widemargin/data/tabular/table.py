"""A table as numbers and codes: what every file and data set becomes before anything learns from it.

Nothing here scales, imputes or encodes: those need statistics, and statistics belong to the training
part of a split alone. What a single cell means (a number, a word or nothing) and how cells are quoted in messages is
here too, and so is the bound on the memory that a table may take while it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...io.bounded import size_text
from ...io.errors import InputError
from ...io.resources import available_memory

if TYPE_CHECKING:
    from .readings import ColumnReading

MISSING_TOKENS = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "-"})
_MAX_MISSING_LENGTH = max(map(len, MISSING_TOKENS))
LABEL_MISSING_TOKENS = MISSING_TOKENS - {"none"}  # "none" is a fair name for a class, as in "none, mild, severe"


def is_missing(word: str, tokens: frozenset[str] = MISSING_TOKENS) -> bool:
    """Whether a cell holds no value.

    >>> [is_missing(word) for word in ("", " N/A ", "?", "0", "no")]
    [True, True, True, False, False]
    """
    bare = word.strip()
    return len(bare) <= _MAX_MISSING_LENGTH and bare.lower() in tokens  # a long word is not copied to be compared


def find_missing(words: Iterable[str], tokens: frozenset[str] = MISSING_TOKENS) -> set[str]:
    """The different words among the cells of a column that hold no value; faster than to ask for every cell.

    >>> sorted(find_missing(["1", "NA", "", "NA", "x"]))
    ['', 'NA']
    """
    return {word for word in set(words) if is_missing(word, tokens)}


def parse_number(word: str) -> float | None:
    """The number a cell holds; None for a word. Python's `1_000` is a word here.

    >>> parse_number(" -1.5e3 "), parse_number("1_000"), parse_number("x1")
    (-1500.0, None, None)
    """
    if "_" in word:
        return None
    try:
        return float(word)
    except ValueError:
        return None


def quote_cell(text: str, max_length: int = 40) -> str:
    """A cell or name in quotes, on one line and not too long.

    >>> print(quote_cell("one\\ntwo"), quote_cell("x" * 99))
    'one\\ntwo' 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'
    """
    found = repr(text if len(text) <= max_length else text[: max_length - 1] + "…")
    return found if len(found) <= 2 * max_length else f"{found[: 2 * max_length - 2]}…{found[-1]}"


def join_names(names: Iterable[str], max_names: int = 5) -> str:
    """A list of names that stays short.

    >>> print(join_names("abc"), "|", join_names("abcdefgh", max_names=3))
    'a', 'b', 'c' | 'a', 'b', 'c' and 5 more
    """
    all_of_them = list(names)
    rest = f" and {len(all_of_them) - max_names:,} more" if len(all_of_them) > max_names else ""
    return ", ".join(map(quote_cell, all_of_them[:max_names])) + rest


@dataclass(frozen=True, eq=False)
class Column:
    """One feature: numbers (`levels` is None, NaN where missing) or categories (codes, −1 where missing)."""

    name: str
    values: NDArray[np.float64] | NDArray[np.int64]
    levels: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class Table:
    """Features and classes of one data set; `notes` say in a sentence each what was left out or handled."""

    name: str
    columns: tuple[Column, ...]
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    source: str = ""
    readings: tuple[ColumnReading, ...] = ()
    """How the columns of the file were read; empty for a set whose columns are plain numbers and words."""
    target: str = ""
    """The name of the column of classes, where it has one."""
    read_options: tuple[str, ...] = ()
    """Options of the command line that the file was read with, beside the target."""

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of everything a model sees of the table; its name and source are no part of it."""
        digest = hashlib.sha256()
        digest.update(repr(self.class_names).encode())
        digest.update(self.y.tobytes())
        for column in self.columns:
            digest.update(repr((column.name, column.levels)).encode())
            digest.update(np.ascontiguousarray(column.values).tobytes())
        return digest.hexdigest()[:16]

    @property
    def largest_class(self) -> tuple[str, float]:
        """The class with the most rows, and its share of them."""
        counts = np.bincount(self.y, minlength=len(self.class_names))
        return self.class_names[int(counts.argmax())], float(counts.max() / counts.sum())

    @property
    def smallest_class(self) -> tuple[str, int]:
        """The class with the fewest rows, of those that have any, and how many they are."""
        classes, counts = np.unique(self.y, return_counts=True)
        return self.class_names[classes[counts.argmin()]], int(counts.min())


def class_order(names: Iterable[str]) -> tuple[str, ...]:
    """Different names in their order: as numbers if all of them are, else by the alphabet.

    >>> class_order(["10", "9", "-1", "9"]), class_order(["b", "10", "a"])
    (('-1', '9', '10'), ('10', 'a', 'b'))
    """
    different = sorted(set(names))
    values = [parse_number(name) for name in different]
    if any(value is None for value in values):
        return tuple(different)
    return tuple(name for _, name in sorted(zip(values, different, strict=True), key=lambda pair: pair[0] or 0.0))


def encode_levels(words: Sequence[str], levels: tuple[str, ...]) -> NDArray[np.int64]:
    """The place of each word among the levels; −1 for words that are not among them."""
    place = {level: code for code, level in enumerate(levels)}
    return np.array([place.get(word, -1) for word in words], dtype=np.int64)


MIN_MEMORY_BUDGET, MAX_MEMORY_BUDGET = 512 << 20, 8 << 30  # bytes that any table may take, and that none may exceed
MEMORY_PER_FILE_BYTE = 64  # the size of the file on disk, between these two
MAX_CELLS = 1 << 27  # rows × columns; one gibibyte as numbers

BYTES_PER_CELL = 16  # bytes: a reference to the word, or the number itself; and the number that the table keeps
BYTES_PER_ROW = 128  # bytes: where the row began, whether it is kept, its label, and one column in the making


class MemoryBudget:
    """Counts the memory that a table takes as its cells come in, and refuses it in one line when that is too much.

    A packed file can hold far more cells than its size suggests: a gzip file up to three hundred times as much text, a
    Parquet file any number of equal values in a few bytes. So the memory is bounded by the size of the file as it lies
    on disk. Text that is not packed needs at most 40 times its size, which is below the bound for every file up to
    128 MiB.
    """

    def __init__(self, file: str, stored_bytes: int) -> None:
        self.file, self.used = file, 0
        self.limit = min(max(MIN_MEMORY_BUDGET, MEMORY_PER_FILE_BYTE * stored_bytes), MAX_MEMORY_BUDGET)
        self.limit_reason = f"the bound for a file of {stored_bytes:,} bytes"
        there = available_memory()
        if there is not None and there < self.limit:
            self.limit, self.limit_reason = there, "all that is available now"

    def reserve(self, size: int) -> None:
        """So many bytes more."""
        self.used += size
        if self.used > self.limit:
            limit = size_text(self.limit >> 20 << 20)
            raise InputError(
                f"{self.file}: takes more than {limit} of memory as a table ({self.limit_reason}); "
                "take a sample of its rows"
            )

    def reserve_cells(self, rows: int, columns: int) -> None:
        """So many more rows of so many columns."""
        self.reserve(rows * (BYTES_PER_ROW + columns * BYTES_PER_CELL))


def check_cells(rows: int, columns: int, file: str, what: str = "") -> None:
    """Refuse a table of more cells than are taken."""
    if rows * max(1, columns) > MAX_CELLS:
        raise InputError(
            f"{file}: {rows:,} rows of {columns:,} columns{what}, more than {MAX_CELLS:,} cells; "
            "take a sample of its rows"
        )
