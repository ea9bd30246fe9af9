"""Which kind a column is, number or category, and which columns tell nothing and are left out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .cells import missing, several, shown
from .grid import Cells, Grid
from .table import Column, codes

MOSTLY = 0.9  # above this share of numbers, a word in a column is taken for a slip
FEW = 10  # with no more different numbers than this, a column of numbers and words is a category
SMALL = 20  # rows up to which all values may well differ by chance
MANY_LEVELS, MANY_SHARE, LONG_TEXT = 50, 0.2, 60

THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
COUNTER = re.compile(
    r"(.*id|idx|index|unnamed.*|__index_level_\d+__|#|no\.?|nr\.?|num|number|row.*|case.*|sample.*)", re.I
)
IDENTITY = re.compile(r"(?i:id)|.*[_ .-](?i:id)|.*[a-z](Id|ID)")

EMPTY, CONSTANT, IDS, TEXT = (
    "no values in it",
    "one value only",
    "a running number or an id, different in nearly every row; numbers with signs or units are words: write them bare",
    "free text, dates, or too many different words",
)


def columns(grid: Grid, target: int, keep: Sequence[int]) -> tuple[tuple[Column, ...], list[str]]:
    """The columns besides the target in the rows to keep, and notes on those that were left out or read specially."""
    found: list[Column] = []
    left_out: dict[str, list[str]] = {}
    special: dict[str, list[str]] = {}
    for place, (name, cells) in enumerate(zip(grid.names, grid.columns, strict=True)):
        if place == target:
            continue
        column, reason = _column(grid, name, cells, keep, special)
        if reason:
            left_out.setdefault(reason, []).append(name)
        else:
            found.append(column)
    reasons = [f"{several(names)} ({reason})" for reason, names in left_out.items()]
    if not found:
        why = f": left out {'; '.join(reasons)}" if reasons else " besides the classes"
        raise InputError(f"{grid.file}: no column to learn from{why}")
    notes = [f"left out {reason}" for reason in reasons]
    notes += [f"{several(names)}: {what}" for what, names in special.items()]
    gaps = {column.name: int(_gaps(column).sum()) for column in found}
    total, where = sum(gaps.values()), [name for name, count in gaps.items() if count]
    if where:
        many = f"{total:,} missing value{'s' if total > 1 else ''} in {several(where)}"
        notes.append(f"{many}: the median stands in, or for a category a level of its own")
    return tuple(found), notes


def _gaps(column: Column) -> NDArray[np.bool_]:
    gaps: NDArray[np.bool_] = np.isnan(column.values) if column.levels is None else column.values < 0
    return gaps


def _column(
    grid: Grid, name: str, cells: Cells, keep: Sequence[int], special: dict[str, list[str]]
) -> tuple[Column, str]:
    """The column, and why it should be left out, if it should."""
    if isinstance(cells, np.ndarray):
        values = cells[np.asarray(keep)].astype(np.float64)
    else:
        words = [cells[row] for row in keep]
        numbers, odd = _numbers(words)
        if odd and all("," in words[place] for place in odd):
            numbers, odd = _with_commas(name, words, numbers, odd, grid.separator, special)
        if odd:
            return _category(grid, name, words, numbers, odd, keep)
        values = np.array(numbers, dtype=np.float64)
    if np.isinf(values).any():
        row = grid.lines[keep[int(np.isinf(values).argmax())]]
        raise InputError(
            f"{grid.file}: row {row}, column {shown(name)}: an infinite number; "
            "leave the field empty if the value is missing"
        )
    return Column(name, values), _why_not_number(name, values, len(grid.lines))


def _numbers(words: Sequence[str]) -> tuple[list[float], list[int]]:
    """Every word as a number, NaN where there is none, and the places of words that are neither."""
    numbers: list[float] = []
    odd: list[int] = []
    for place, word in enumerate(words):
        try:
            value = float(word)
        except ValueError:
            value = np.nan
            if not missing(word):
                odd.append(place)
        else:
            if "_" in word:  # Python's 1_000 is a word here
                value = np.nan
                odd.append(place)
        numbers.append(value)
    return numbers, odd


def _with_commas(
    name: str, words: list[str], numbers: list[float], odd: list[int], separator: str, special: dict[str, list[str]]
) -> tuple[list[float], list[int]]:
    """The column once more with its commas read as thousands or decimal commas, if all of it then is numbers."""
    thousands = separator == "," and all(THOUSANDS.fullmatch(words[place]) for place in odd)
    if not thousands and any("." in word for word in words):
        return numbers, odd
    again, still = _numbers([word.replace(",", "" if thousands else ".") for word in words])
    if still:
        return numbers, odd
    what = "commas between thousands were taken out" if thousands else "decimal commas were read as decimal points"
    special.setdefault(what, []).append(name)
    return again, still


def _why_not_number(name: str, values: NDArray[np.float64], rows_in_file: int) -> str:
    known = values[~np.isnan(values)]
    if not len(known):
        return EMPTY
    if (known == known[0]).all():
        return CONSTANT
    whole = len(known) == len(values) and bool((known == np.floor(known)).all())
    if whole and len(known) > 2 and len(np.unique(known)) == len(known):
        running = known.max() - known.min() < rows_in_file
        if (running and COUNTER.fullmatch(name)) or (len(known) > SMALL and IDENTITY.fullmatch(name)):
            return IDS
    return ""


def _category(
    grid: Grid, name: str, words: list[str], numbers: list[float], odd: list[int], keep: Sequence[int]
) -> tuple[Column, str]:
    known = [word for word in words if not missing(word)]
    share = 1 - len(odd) / len(known)
    if share > MOSTLY and len({value for value in numbers if not np.isnan(value)}) > FEW:
        row, word = grid.lines[keep[odd[0]]], words[odd[0]]
        raise InputError(
            f"{grid.file}: row {row}, column {shown(name)}: {shown(word)} is no number, but {int(100 * share)} % of "
            "the column are; write a number, or leave the field empty if the value is missing"
        )
    levels = tuple(sorted(set(known)))
    column = Column(name, codes(words, levels), levels)
    if len(levels) == 1:
        return column, CONSTANT
    if len(known) > SMALL and len(levels) > 0.95 * len(known):
        return column, IDS
    long = sum(map(len, known)) > LONG_TEXT * len(known)
    if long or (len(levels) > MANY_LEVELS and len(levels) > MANY_SHARE * len(words)):
        return column, TEXT
    return column, ""
