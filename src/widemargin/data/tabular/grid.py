"""A text as a grid of cells: its separator, its header, its rows and columns.

Rows are known by the line of the file they begin in, since that is what an editor shows.

Python's csv checks all rows first, since pandas fills up short ones in silence, takes stray quotes and knows no lines;
what is sound is read by pandas: columns of plain numbers as numbers, exactly as Python reads them, others as words.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from itertools import islice, product
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...io.errors import InputError
from .numbers import looks_like_number
from .table import MISSING_TOKENS, MemoryBudget, check_cells, is_missing, parse_number, quote_cell
from .text import MAX_ROW_CHARACTERS, EncodedText

if TYPE_CHECKING:
    import pandas as pd

Cells = Sequence[str] | NDArray[np.int64] | NDArray[np.float64]

SEPARATORS = ("\t", ";", "|", ",")  # the comma last: where others fit as well, it is the decimal comma
SAMPLE_ROWS, SAMPLE_BYTES = 50, 1 << 22  # rows and bytes looked at to find the separator
_DECLARATION_PATTERN = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
_MAX_DECLARATION_BYTES = 64
_COUNTED_CELLS, _READ_CELLS = 1 << 16, 1 << 22  # cells that are counted, and words that are read, at once
_BYTES_PER_TOKEN = 16  # bytes that pandas takes for a cell while it reads
_NUMBER_TYPES = (np.dtype(np.float64), np.dtype(np.int64))


@dataclass
class Grid:
    """A table before its columns have a kind."""

    file: str
    column_names: list[str]
    columns: list[Cells]
    line_numbers: Sequence[int]  # where each row begins
    notes: list[str] = field(default_factory=list)
    separator: str = ""  # of a table in text
    read_words: Callable[[Sequence[int]], list[list[str]]] | None = None
    """Of a table in text: the words of columns, also of those that are numbers here."""

    def column_words(self, places: Sequence[int]) -> list[Sequence[str]]:
        """Words of some columns; of numbers that are no words in the file there are none."""
        words = {place: cells for place in places if not isinstance(cells := self.columns[place], np.ndarray)}
        others = [place for place in places if place not in words]
        if others and self.read_words is not None:
            words |= zip(others, self.read_words(others), strict=True)
        return [words.get(place, ()) for place in places]


def parse_grid(text: EncodedText, memory: MemoryBudget, *, keep_words: bool = False) -> Grid:
    """The cells of a table in text, or an error with the row where it stops being one.

    Columns of plain numbers become numbers unless `keep_words`.
    """
    file = memory.file
    declared, text = _take_declared_separator(text, file)
    separator = declared or _detect_separator(text)
    rows = _scan_rows(text, separator, 1 if declared else 0, memory)
    lines, width, has_header = rows.line_numbers, len(rows.first[0]), not _is_first_row_data(rows.first)
    names, notes = [f"c{place}" for place in range(1, width + 1)], []
    if has_header:
        names = resolve_column_names(rows.first[0], file)
        del lines[0]
    else:
        notes.append(f"row {lines[0]} looks like data, so the columns were named c1 to c{width}")
    if not lines:
        raise InputError(f"{file}: a header but no rows")
    if rows.has_blank_cells or not separator.isascii():
        reader = _CellReader(_rewrite(text, separator, file), ",", has_header, len(lines), memory)
    else:
        reader = _CellReader(text, separator, has_header, len(lines), memory)
    sample = rows.first[has_header:]
    numeric = [] if keep_words else [k for k in range(width) if all(_is_plain(cells[k]) for cells in sample)]
    columns: dict[int, Cells] = reader.read_numbers(numeric, width)
    others = [place for place in range(width) if place not in columns]
    columns |= zip(others, reader.read_words(others), strict=True)
    while len(names) > 2 and names[-1].startswith("unnamed_") and _is_empty(columns[len(names) - 1]):
        names.pop()  # a separator too many at the end of every line, as some programs write
    cells = [columns[place] for place in range(len(names))]
    return Grid(file, names, cells, lines, notes, separator, reader.read_words)


def _is_plain(word: str) -> bool:
    return parse_number(word) is not None or is_missing(word)


def _is_empty(cells: Cells) -> bool:
    return bool(np.isnan(cells).all()) if isinstance(cells, np.ndarray) else all(map(is_missing, cells))


class _Rows(NamedTuple):
    """Rows that are all as wide as the first."""

    line_numbers: array[int]
    first: list[list[str]]
    """The first of them, without blanks around the words."""
    has_blank_cells: bool
    """Whether a line has a single cell with nothing in it, which is no row; pandas may take it for one."""


def _scan_rows(text: EncodedText, separator: str, lines_before: int, memory: MemoryBudget) -> _Rows:
    """Check all rows, and count the memory that their cells will take."""
    file, lines, first, width, has_blank_cells = memory.file, array("q"), list[list[str]](), 0, False
    block = 1
    for line, cells in _iter_records(text.lines(), separator, file, lines_before):
        if _is_blank(cells):
            has_blank_cells = True
            continue
        if not lines:
            width, block = len(cells), max(1, _COUNTED_CELLS // len(cells))
            if width == 1:
                raise InputError(
                    f"{file}: one column only; features and classes must be separated by commas, semicolons, tabs or |"
                )
        if len(cells) != width:
            has = f"row {line} has {len(cells)} field{'s' if len(cells) > 1 else ''}, the first row {width}"
            raise InputError(f"{file}: {has}; quote fields that hold the separator {separator!r}")
        lines.append(line)
        if len(first) < SAMPLE_ROWS:
            first.append(list(map(str.strip, cells)))
        if len(lines) % block == 0:
            memory.reserve_cells(block, width)
            check_cells(len(lines), width, file)
    if not lines:
        raise InputError(f"{file}: the file is empty")
    memory.reserve_cells(len(lines) % block, width)
    check_cells(len(lines), width, file)
    return _Rows(lines, first, has_blank_cells)


def _is_blank(cells: Sequence[str]) -> bool:
    return len(cells) == 1 and not cells[0].strip()


def _rewrite(text: EncodedText, separator: str, file: str) -> EncodedText:
    """The same rows as plain CSV, for what pandas would read in another way."""
    lines = io.StringIO(newline="")
    rows = (cells for _, cells in _iter_records(text.lines(), separator, file) if not _is_blank(cells))
    csv.writer(lines).writerows(rows)
    return EncodedText(lines.getvalue().encode(), "utf-8")


@dataclass(frozen=True)
class _CellReader:
    """Reads columns of sound rows by pandas."""

    text: EncodedText
    separator: str
    has_header: bool
    num_rows: int
    memory: MemoryBudget

    def read_numbers(self, places: Sequence[int], width: int) -> dict[int, Cells]:
        """Those of some columns that hold plain numbers and gaps alone, NaN where nothing stands."""
        if not places:
            return {}
        held = len(self.text.data) + _BYTES_PER_TOKEN * self.num_rows * width  # by pandas, until it has read all
        self.memory.reserve(held)
        (frame,) = self._read(places, na_values=_missing_spellings(), low_memory=False)
        self.memory.reserve(-held)
        numeric = [(place, column) for place, (_, column) in zip(places, frame.items(), strict=True)]
        return {place: column.to_numpy(np.float64) for place, column in numeric if column.dtype in _NUMBER_TYPES}

    def read_words(self, places: Sequence[int]) -> list[list[str]]:
        """The words of some columns; equal ones that are read at once are one object."""
        columns: list[list[str]] = [[] for _ in places]
        if not places:
            return columns
        block = max(1, _READ_CELLS // len(places))
        for frame in self._read(places, dtype=object, na_filter=False, chunksize=block):
            for words, (_, column) in zip(columns, frame.items(), strict=True):
                cells = list(map(str.strip, column))
                self.memory.reserve(sum(map(getsizeof, set(cells))))
                words.extend(cells)
        return columns

    def _read(self, places: Sequence[int], **options: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
            options["float_precision"] = "round_trip"  # later versions always read numbers exactly
        read = 0
        found = pd.read_csv(
            io.BytesIO(self.text.data),
            sep=self.separator,
            encoding=self.text.encoding,
            header=0 if self.has_header else None,
            index_col=False,
            usecols=list(places),
            skipinitialspace=True,
            keep_default_na=False,
            **options,
        )
        for frame in [found] if isinstance(found, pd.DataFrame) else found:
            read += len(frame)
            yield frame
        if read != self.num_rows:
            counts = f"{self.num_rows:,} rows in Python's csv and {read:,} in pandas"
            raise InputError(f"{self.memory.file}: {counts}; save the table as plain CSV")


@cache
def _missing_spellings() -> list[str]:
    """Every way of writing a missing value in small and capital letters."""
    return ["".join(letters) for word in MISSING_TOKENS for letters in product(*({c, c.upper()} for c in word))]


def _iter_records(
    lines: Iterable[str], separator: str, file: str, lines_before: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Every line that is not empty as cells, with the line it begins in; `lines_before` have been read already."""
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
    first_line = 1 + lines_before
    try:
        for cells in reader:
            if cells:
                yield first_line, cells
            first_line, row_length = reader.line_num + 1 + lines_before, 0
    except csv.Error as error:
        if "field limit" in str(error):
            why = f"a field of more than {csv.field_size_limit():,} characters; is a quote left open?"
        elif "unexpected end" in str(error):
            why = "a quote is opened and never closed; close it, or take it out"
        else:
            why = f"wrong quotes ({error}); write a quote inside a quoted field twice"
        raise InputError(f"{file}: row {first_line}: {why}") from None


def _take_declared_separator(text: EncodedText, file: str) -> tuple[str, EncodedText]:
    """The separator that a first line such as `sep=;` names, as Excel writes it, and the text without that line.

    Empty and the text as it is without such a line.
    """
    first = next(iter(StringIO(text.decode_start(_MAX_DECLARATION_BYTES), newline="")), "")
    match = _DECLARATION_PATTERN.fullmatch(first.rstrip("\r\n"))
    if match is None:
        return "", text
    if match[1].isalnum() or match[1] in "\"'.-+ ":
        raise InputError(f"{file}: row 1: {quote_cell(match[1])} cannot separate fields; write sep=, or sep=;")
    return match[1], EncodedText(text.data[len(first.encode(text.encoding)) :], text.encoding)


def _detect_separator(text: EncodedText) -> str:
    """The separator that gives most of the first rows as many fields as the very first."""
    best, choice = 0.0, ","
    start = StringIO(text.decode_start(SAMPLE_BYTES), newline="")
    for separator in SEPARATORS:
        widths: list[int] = []
        start.seek(0)
        try:
            records = (cells for _, cells in _iter_records(start, separator, "") if not _is_blank(cells))
            widths.extend(map(len, islice(records, SAMPLE_ROWS)))
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
    them need a sign of data: a decimal sign or the same number twice.
    """
    first = rows[0]
    numeric = [looks_like_number(cell) for cell in first]
    if not any(numeric) or first in ([str(i + start) for i in range(len(first))] for start in (0, 1)):
        return False
    if all(numeric):
        return True
    numbers = [cell for cell, is_number in zip(first, numeric, strict=True) if is_number]
    if len(set(numbers)) == len(numbers) and not any({".", ","} & set(cell) for cell in numbers):
        return False
    following = list(zip(*islice(rows, 1, SAMPLE_ROWS), strict=True))
    return bool(following) and all(
        is_missing(cell) or is_number == all(is_missing(other) or looks_like_number(other) for other in below)
        for cell, is_number, below in zip(first, numeric, following, strict=True)
    )
