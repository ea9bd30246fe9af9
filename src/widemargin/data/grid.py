"""Text as a grid of cells: the separator is found, the header checked, every row as wide as the header.

Rows are known by the line of the file they begin in, since that is what an editor shows.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .cells import missing, number, shown

Cells = Sequence[str] | NDArray[np.int64] | NDArray[np.float64]

SEPARATORS = ("\t", ";", "|", ",")  # the comma last: where others fit as well, it is the decimal comma
SAMPLE, SAMPLE_TEXT = 50, 1 << 22  # rows and characters looked at to find the separator


@dataclass
class Grid:
    """A table before its columns have a kind."""

    file: str
    names: list[str]
    columns: list[Cells]
    lines: list[int]  # where each row begins
    notes: list[str] = field(default_factory=list)
    separator: str = ","


def grid(text: str, file: str) -> Grid:
    """The cells of a table in text, or an error with the row where it stops being one."""
    separator = _separator(text)
    records = list(_records(text, separator, file))
    if not records:
        raise InputError(f"{file}: the file is empty")
    rows = [cells for _, cells in records]
    width = len(rows[0])
    if width == 1:
        raise InputError(
            f"{file}: one column only; features and classes must be separated by commas, semicolons, tabs or |"
        )
    for line, cells in records:
        if len(cells) != width:
            where = f"{file}: row {line} has {len(cells)} field{'s' if len(cells) > 1 else ''}, the first row {width}"
            raise InputError(f"{where}; quote fields that hold the separator {separator!r}")
    notes = []
    if _is_data(rows):
        names = [f"c{place}" for place in range(1, width + 1)]
        notes.append(f"row {records[0][0]} looks like data, so the columns were named c1 to c{width}")
    else:
        names = checked_names(rows[0], file)
        del rows[0], records[0]
    if not rows:
        raise InputError(f"{file}: a header but no rows")
    columns: list[Cells] = list(zip(*rows, strict=True))
    while len(names) > 2 and names[-1].startswith("unnamed_") and all(map(missing, columns[-1])):
        names.pop()  # a separator too many at the end of every line, as some programs write
        columns.pop()
    return Grid(file, names, columns, [line for line, _ in records], notes, separator)


def _records(text: str, separator: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not blank, with the line it begins in."""
    reader = csv.reader(StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    begins = 1
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if len(stripped) > 1 or (stripped and stripped[0]):
                yield begins, stripped
            begins = reader.line_num + 1
    except csv.Error as error:
        if "field limit" in str(error):
            why = f"a field of more than {csv.field_size_limit():,} characters; is a quote left open?"
        elif "unexpected end" in str(error):
            why = "a quote is opened and never closed; close it, or take it out"
        else:
            why = f"wrong quotes ({error}); write a quote inside a quoted field twice"
        raise InputError(f"{file}: row {begins}: {why}") from None


def _separator(text: str) -> str:
    """The separator that gives most of the first rows as many fields as the very first."""
    best, choice = 0.0, ","
    for separator in SEPARATORS:
        widths = []
        try:
            for _, cells in islice(_records(text[:SAMPLE_TEXT], separator, ""), SAMPLE):
                widths.append(len(cells))
        except InputError:
            pass  # said again, with the row, once the separator is known
        if len(text) > SAMPLE_TEXT and 1 < len(widths) < SAMPLE:
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
