"""Text as a grid of cells: the separator is found, the header checked, every row as wide as the header.

Rows are known by the line of the file they begin in, since that is what an editor shows.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice
from sys import getsizeof

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .cells import missing, number, shown
from .table_memory import TableMemory, check_cells
from .text import LONGEST_ROW, Text

Cells = Sequence[str] | NDArray[np.int64] | NDArray[np.float64]

SEPARATORS = ("\t", ";", "|", ",")  # the comma last: where others fit as well, it is the decimal comma
SAMPLE, SAMPLE_TEXT = 50, 1 << 22  # rows and bytes looked at to find the separator
_AT_ONCE = 1 << 16  # cells that are read before they become parts of columns
_FEW_WORDS = 10_000  # different words of a column that are known again, however many rows there are
_PER_WORD = 100  # bytes of a dictionary for each


@dataclass
class Grid:
    """A table before its columns have a kind."""

    file: str
    names: list[str]
    columns: list[Cells]
    lines: Sequence[int]  # where each row begins
    notes: list[str] = field(default_factory=list)
    separator: str = ","


def grid(text: Text, memory: TableMemory) -> Grid:
    """The cells of a table in text, or an error with the row where it stops being one."""
    file, separator = memory.file, _separator(text)
    table = _Columns(file, separator, memory)
    for line, cells in _records(text.lines(), separator, file):
        table.add(line, cells)
    columns, lines, first = table.finished()
    names = [f"c{place}" for place in range(1, len(columns) + 1)]
    notes = []
    if _is_data(first):
        notes.append(f"row {lines[0]} looks like data, so the columns were named c1 to c{len(columns)}")
    else:
        names = checked_names(first[0], file)
        del lines[0]
        for column in columns:
            del column[0]
    if not lines:
        raise InputError(f"{file}: a header but no rows")
    while len(names) > 2 and names[-1].startswith("unnamed_") and all(map(missing, columns[-1])):
        names.pop()  # a separator too many at the end of every line, as some programs write
        columns.pop()
    return Grid(file, names, list(columns), lines, notes, separator)


class _Columns:
    """Rows that become columns as they come in; equal words are kept once, and what they take is counted."""

    def __init__(self, file: str, separator: str, memory: TableMemory) -> None:
        self.file, self.separator, self.memory = file, separator, memory
        self.columns: list[list[str]] = []
        self.lines = array("q")
        self.first: list[list[str]] = []
        self.words: list[dict[str, str] | None] = []
        self.waiting: list[list[str]] = []

    def add(self, line: int, cells: list[str]) -> None:
        """One more row, as wide as the first."""
        if not self.lines:
            if len(cells) == 1:
                raise InputError(
                    f"{self.file}: one column only; "
                    "features and classes must be separated by commas, semicolons, tabs or |"
                )
            self.columns, self.words = [[] for _ in cells], [{} for _ in cells]
        width = len(self.columns)
        if len(cells) != width:
            has = f"row {line} has {len(cells)} field{'s' if len(cells) > 1 else ''}, the first row {width}"
            raise InputError(f"{self.file}: {has}; quote fields that hold the separator {self.separator!r}")
        self.lines.append(line)
        if len(self.first) < SAMPLE:
            self.first.append(cells)
        self.waiting.append(cells)
        if len(self.waiting) * width >= _AT_ONCE:
            self._sort_in()

    def finished(self) -> tuple[list[list[str]], array[int], list[list[str]]]:
        """All columns, the line where each row begins, and the first rows."""
        if not self.lines:
            raise InputError(f"{self.file}: the file is empty")
        self._sort_in()
        return self.columns, self.lines, self.first

    def _sort_in(self) -> None:
        """The rows that wait, into their columns."""
        self.memory.take_cells(len(self.waiting), len(self.columns))
        check_cells(len(self.lines), len(self.columns), self.file)
        for place, cells in enumerate(zip(*self.waiting, strict=True)):
            self.columns[place].extend(self._kept(place, cells))
        self.waiting = []

    def _kept(self, place: int, cells: Sequence[str]) -> Sequence[str]:
        """Cells of a column, equal words as one object unless most of them differ."""
        words = self.words[place]
        if words is None:
            self.memory.take(sum(map(getsizeof, cells)))
            return cells
        known = len(words)
        kept = [words.setdefault(cell, cell) for cell in cells]
        new = len(words) - known
        self.memory.take(sum(map(getsizeof, islice(reversed(words), new))) + new * _PER_WORD)
        if len(words) > max(_FEW_WORDS, len(self.lines) // 2):
            self.memory.take(-len(words) * _PER_WORD)
            self.words[place] = None
        return kept


def _records(lines: Iterable[str], separator: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not blank, with the line it begins in."""
    pulled = 0

    def counted() -> Iterator[str]:
        nonlocal pulled
        for line in lines:
            pulled += len(line)
            if pulled > LONGEST_ROW:  # before anything of it becomes cells
                raise InputError(f"{file}: row {begins}: more than {LONGEST_ROW:,} characters; is a quote left open?")
            yield line

    reader = csv.reader(counted(), delimiter=separator, skipinitialspace=True, strict=True)
    begins = 1
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if len(stripped) > 1 or (stripped and stripped[0]):
                yield begins, stripped
            begins, pulled = reader.line_num + 1, 0
    except csv.Error as error:
        if "field limit" in str(error):
            why = f"a field of more than {csv.field_size_limit():,} characters; is a quote left open?"
        elif "unexpected end" in str(error):
            why = "a quote is opened and never closed; close it, or take it out"
        else:
            why = f"wrong quotes ({error}); write a quote inside a quoted field twice"
        raise InputError(f"{file}: row {begins}: {why}") from None


def _separator(text: Text) -> str:
    """The separator that gives most of the first rows as many fields as the very first."""
    best, choice = 0.0, ","
    start = StringIO(text.start(SAMPLE_TEXT), newline="")
    for separator in SEPARATORS:
        widths = []
        start.seek(0)
        try:
            for _, cells in islice(_records(start, separator, ""), SAMPLE):
                widths.append(len(cells))
        except InputError:
            pass  # said again, with the row, once the separator is known
        if len(text.data) > SAMPLE_TEXT and 1 < len(widths) < SAMPLE:
            widths.pop()  # cut off in the middle
        if widths and widths[0] > 1:
            same = sum(width == widths[0] for width in widths) / len(widths)
            if same > best:
                best, choice = same, separator
    return choice


def checked_names(cells: Sequence[str], file: str) -> list[str]:
    """Names of columns, each different; those without one are named by their place."""
    names = [name or f"unnamed_{place}" for place, name in enumerate(cells, 1)]
    first: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if name in first:
            places = f"columns {first[name]} and {place}"
            raise InputError(f"{file}: {places} are both named {shown(name)}; rename one in the header")
        first[name] = place
    return names


def _is_data(rows: list[list[str]]) -> bool:
    """Whether the first row is no header: numbers where the others have numbers, and not mere column numbers.

    A header may hold numbers too (years, or the 0, 1, 2 … of a table without names), so words among
    them need a sign of data: a decimal point or the same number twice.
    """
    first = rows[0]
    numeric = [number(cell) is not None for cell in first]
    if not any(numeric) or first in ([str(i + start) for i in range(len(first))] for start in (0, 1)):
        return False
    if all(numeric):
        return True
    numbers = [cell for cell, is_number in zip(first, numeric, strict=True) if is_number]
    if len(set(numbers)) == len(numbers) and not any("." in cell for cell in numbers):
        return False
    following = list(zip(*islice(rows, 1, SAMPLE), strict=True))
    return bool(following) and all(
        missing(cell) or is_number == all(missing(other) or number(other) is not None for other in below)
        for cell, is_number, below in zip(first, numeric, following, strict=True)
    )
