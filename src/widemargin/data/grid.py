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
from .cells import is_missing, parse_number, quote_cell
from .table_memory import MemoryBudget, check_cells
from .text import MAX_ROW_CHARACTERS, EncodedText

Cells = Sequence[str] | NDArray[np.int64] | NDArray[np.float64]

SEPARATORS = ("\t", ";", "|", ",")  # the comma last: where others fit as well, it is the decimal comma
SAMPLE_ROWS, SAMPLE_BYTES = 50, 1 << 22  # rows and bytes looked at to find the separator
_BUFFERED_CELLS = 1 << 16  # cells that are read before they become parts of columns
_MAX_INTERNED_WORDS = 10_000  # different words of a column that are known again, however many rows there are
_BYTES_PER_WORD = 100  # bytes of a dictionary for each


@dataclass
class Grid:
    """A table before its columns have a kind."""

    file: str
    column_names: list[str]
    columns: list[Cells]
    line_numbers: Sequence[int]  # where each row begins
    notes: list[str] = field(default_factory=list)
    separator: str = ","


def parse_grid(text: EncodedText, memory: MemoryBudget) -> Grid:
    """The cells of a table in text, or an error with the row where it stops being one."""
    file, separator = memory.file, _detect_separator(text)
    table = _ColumnBuilder(file, separator, memory)
    for line, cells in _records(text.lines(), separator, file):
        table.add_row(line, cells)
    columns, lines, first = table.finish()
    names = [f"c{place}" for place in range(1, len(columns) + 1)]
    notes = []
    if _is_first_row_data(first):
        notes.append(f"row {lines[0]} looks like data, so the columns were named c1 to c{len(columns)}")
    else:
        names = resolve_column_names(first[0], file)
        del lines[0]
        for column in columns:
            del column[0]
    if not lines:
        raise InputError(f"{file}: a header but no rows")
    while len(names) > 2 and names[-1].startswith("unnamed_") and all(map(is_missing, columns[-1])):
        names.pop()  # a separator too many at the end of every line, as some programs write
        columns.pop()
    return Grid(file, names, list(columns), lines, notes, separator)


class _ColumnBuilder:
    """Rows that become columns as they come in; equal words are kept once, and what they take is counted."""

    def __init__(self, file: str, separator: str, memory: MemoryBudget) -> None:
        self.file, self.separator, self.memory = file, separator, memory
        self.columns: list[list[str]] = []
        self.line_numbers = array("q")
        self.first_rows: list[list[str]] = []
        self.interned_words: list[dict[str, str] | None] = []
        self.pending_rows: list[list[str]] = []

    def add_row(self, line: int, cells: list[str]) -> None:
        """One more row, as wide as the first."""
        if not self.line_numbers:
            if len(cells) == 1:
                raise InputError(
                    f"{self.file}: one column only; "
                    "features and classes must be separated by commas, semicolons, tabs or |"
                )
            self.columns, self.interned_words = [[] for _ in cells], [{} for _ in cells]
        width = len(self.columns)
        if len(cells) != width:
            has = f"row {line} has {len(cells)} field{'s' if len(cells) > 1 else ''}, the first row {width}"
            raise InputError(f"{self.file}: {has}; quote fields that hold the separator {self.separator!r}")
        self.line_numbers.append(line)
        if len(self.first_rows) < SAMPLE_ROWS:
            self.first_rows.append(cells)
        self.pending_rows.append(cells)
        if len(self.pending_rows) * width >= _BUFFERED_CELLS:
            self._flush()

    def finish(self) -> tuple[list[list[str]], array[int], list[list[str]]]:
        """All columns, the line where each row begins, and the first rows."""
        if not self.line_numbers:
            raise InputError(f"{self.file}: the file is empty")
        self._flush()
        return self.columns, self.line_numbers, self.first_rows

    def _flush(self) -> None:
        """The rows that wait, into their columns."""
        self.memory.reserve_cells(len(self.pending_rows), len(self.columns))
        check_cells(len(self.line_numbers), len(self.columns), self.file)
        for place, cells in enumerate(zip(*self.pending_rows, strict=True)):
            self.columns[place].extend(self._intern_words(place, cells))
        self.pending_rows = []

    def _intern_words(self, column_index: int, cells: Sequence[str]) -> Sequence[str]:
        """Cells of a column, equal words as one object unless most of them differ."""
        words = self.interned_words[column_index]
        if words is None:
            self.memory.reserve(sum(map(getsizeof, cells)))
            return cells
        known = len(words)
        kept = [words.setdefault(cell, cell) for cell in cells]
        new = len(words) - known
        self.memory.reserve(sum(map(getsizeof, islice(reversed(words), new))) + new * _BYTES_PER_WORD)
        if len(words) > max(_MAX_INTERNED_WORDS, len(self.line_numbers) // 2):
            self.memory.reserve(-len(words) * _BYTES_PER_WORD)
            self.interned_words[column_index] = None
        return kept


def _records(lines: Iterable[str], separator: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not blank, with the line it begins in."""
    row_length = 0

    def limit_row_length() -> Iterator[str]:
        nonlocal row_length
        for line in lines:
            row_length += len(line)
            if row_length > MAX_ROW_CHARACTERS:  # before anything of it becomes cells
                raise InputError(
                    f"{file}: row {first_line}: more than {MAX_ROW_CHARACTERS:,} characters; is a quote left open?"
                )
            yield line

    reader = csv.reader(limit_row_length(), delimiter=separator, skipinitialspace=True, strict=True)
    first_line = 1
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if len(stripped) > 1 or (stripped and stripped[0]):
                yield first_line, stripped
            first_line, row_length = reader.line_num + 1, 0
    except csv.Error as error:
        if "field limit" in str(error):
            why = f"a field of more than {csv.field_size_limit():,} characters; is a quote left open?"
        elif "unexpected end" in str(error):
            why = "a quote is opened and never closed; close it, or take it out"
        else:
            why = f"wrong quotes ({error}); write a quote inside a quoted field twice"
        raise InputError(f"{file}: row {first_line}: {why}") from None


def _detect_separator(text: EncodedText) -> str:
    """The separator that gives most of the first rows as many fields as the very first."""
    best, choice = 0.0, ","
    start = StringIO(text.decode_start(SAMPLE_BYTES), newline="")
    for separator in SEPARATORS:
        widths = []
        start.seek(0)
        try:
            for _, cells in islice(_records(start, separator, ""), SAMPLE_ROWS):
                widths.append(len(cells))
        except InputError:
            pass  # said again, with the row, once the separator is known
        if len(text.data) > SAMPLE_BYTES and 1 < len(widths) < SAMPLE_ROWS:
            widths.pop()  # cut off in the middle
        if widths and widths[0] > 1:
            same = sum(width == widths[0] for width in widths) / len(widths)
            if same > best:
                best, choice = same, separator
    return choice


def resolve_column_names(cells: Sequence[str], file: str) -> list[str]:
    """Names of columns, each different; those without one are named by their place."""
    names = [name or f"unnamed_{place}" for place, name in enumerate(cells, 1)]
    first: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if name in first:
            places = f"columns {first[name]} and {place}"
            raise InputError(f"{file}: {places} are both named {quote_cell(name)}; rename one in the header")
        first[name] = place
    return names


def _is_first_row_data(rows: list[list[str]]) -> bool:
    """Whether the first row is no header: numbers where the others have numbers, and not mere column numbers.

    A header may hold numbers too (years, or the 0, 1, 2 … of a table without names), so words among
    them need a sign of data: a decimal point or the same number twice.
    """
    first = rows[0]
    numeric = [parse_number(cell) is not None for cell in first]
    if not any(numeric) or first in ([str(i + start) for i in range(len(first))] for start in (0, 1)):
        return False
    if all(numeric):
        return True
    numbers = [cell for cell, is_number in zip(first, numeric, strict=True) if is_number]
    if len(set(numbers)) == len(numbers) and not any("." in cell for cell in numbers):
        return False
    following = list(zip(*islice(rows, 1, SAMPLE_ROWS), strict=True))
    return bool(following) and all(
        is_missing(cell) or is_number == all(is_missing(other) or parse_number(other) is not None for other in below)
        for cell, is_number, below in zip(first, numeric, following, strict=True)
    )
