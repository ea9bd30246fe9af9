"""Which kind a column is, number or category, and which columns tell nothing and are left out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .cells import is_missing, join_names, quote_cell
from .grid import Cells, Grid
from .table import Column, encode_levels

MIN_NUMERIC_FRACTION = 0.9  # above this share of numbers, a word in a column is taken for a slip
MAX_CATEGORY_NUMBERS = 10  # with no more different numbers than this, a column of numbers and words is a category
SMALL_TABLE_ROWS = 20  # rows up to which all values may well differ by chance
MANY_LEVELS, MANY_LEVELS_FRACTION, FREE_TEXT_LENGTH = 50, 0.2, 60

THOUSANDS_PATTERN = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
COUNTER_NAME_PATTERN = re.compile(
    r"(.*id|idx|index|unnamed.*|__index_level_\d+__|#|no\.?|nr\.?|num|number|row.*|case.*|sample.*)", re.I
)
ID_NAME_PATTERN = re.compile(r"(?i:id)|.*[_ .-](?i:id)|.*[a-z](Id|ID)")

REASON_EMPTY, REASON_CONSTANT, REASON_ID, REASON_TEXT = (
    "no values in it",
    "one value only",
    "a running number or an id, different in nearly every row; numbers with signs or units are words: write them bare",
    "free text, dates, or too many different words",
)


def build_columns(grid: Grid, target: int, kept_rows: Sequence[int]) -> tuple[tuple[Column, ...], list[str]]:
    """The columns besides the target in the rows to keep, and notes on those that were left out or read specially."""
    found: list[Column] = []
    left_out: dict[str, list[str]] = {}
    reading_notes: dict[str, list[str]] = {}
    for place, (name, cells) in enumerate(zip(grid.column_names, grid.columns, strict=True)):
        if place == target:
            continue
        column, reason = _build_column(grid, name, cells, kept_rows, reading_notes)
        if reason:
            left_out.setdefault(reason, []).append(name)
        else:
            found.append(column)
    reasons = [f"{join_names(names)} ({reason})" for reason, names in left_out.items()]
    if not found:
        why = f": left out {'; '.join(reasons)}" if reasons else " besides the classes"
        raise InputError(f"{grid.file}: no column to learn from{why}")
    notes = [f"left out {reason}" for reason in reasons]
    notes += [f"{join_names(names)}: {what}" for what, names in reading_notes.items()]
    gaps = {column.name: int(_missing_mask(column).sum()) for column in found}
    total, where = sum(gaps.values()), [name for name, count in gaps.items() if count]
    if where:
        many = f"{total:,} missing value{'s' if total > 1 else ''} in {join_names(where)}"
        notes.append(f"{many}: the median stands in, or for a category a level of its own")
    return tuple(found), notes


def _missing_mask(column: Column) -> NDArray[np.bool_]:
    gaps: NDArray[np.bool_] = np.isnan(column.values) if column.levels is None else column.values < 0
    return gaps


def _build_column(
    grid: Grid, name: str, cells: Cells, kept_rows: Sequence[int], reading_notes: dict[str, list[str]]
) -> tuple[Column, str]:
    """The column, and why it should be left out, if it should."""
    if isinstance(cells, np.ndarray):
        values = cells[np.asarray(kept_rows)].astype(np.float64)
    else:
        words = [cells[row] for row in kept_rows]
        numbers, non_numeric = _parse_numbers(words)
        if non_numeric and all("," in words[place] for place in non_numeric):
            numbers, non_numeric = _parse_numbers_with_commas(
                name, words, numbers, non_numeric, grid.separator, reading_notes
            )
        if non_numeric:
            return _build_category(grid, name, words, numbers, non_numeric, kept_rows)
        values = np.array(numbers, dtype=np.float64)
    if np.isinf(values).any():
        row = grid.line_numbers[kept_rows[int(np.isinf(values).argmax())]]
        raise InputError(
            f"{grid.file}: row {row}, column {quote_cell(name)}: an infinite number; "
            "leave the field empty if the value is missing"
        )
    return Column(name, values), _number_drop_reason(name, values, len(grid.line_numbers))


def _parse_numbers(words: Sequence[str]) -> tuple[list[float], list[int]]:
    """Every word as a number, NaN where there is none, and the places of words that are neither."""
    numbers: list[float] = []
    non_numeric: list[int] = []
    for place, word in enumerate(words):
        try:
            value = float(word)
        except ValueError:
            value = np.nan
            if not is_missing(word):
                non_numeric.append(place)
        else:
            if "_" in word:  # Python's 1_000 is a word here
                value = np.nan
                non_numeric.append(place)
        numbers.append(value)
    return numbers, non_numeric


def _parse_numbers_with_commas(
    name: str,
    words: list[str],
    numbers: list[float],
    non_numeric: list[int],
    separator: str,
    reading_notes: dict[str, list[str]],
) -> tuple[list[float], list[int]]:
    """The column once more with its commas read as thousands or decimal commas, if all of it then is numbers."""
    thousands = separator == "," and all(THOUSANDS_PATTERN.fullmatch(words[place]) for place in non_numeric)
    if not thousands and any("." in word for word in words):
        return numbers, non_numeric
    again, still = _parse_numbers([word.replace(",", "" if thousands else ".") for word in words])
    if still:
        return numbers, non_numeric
    what = "commas between thousands were taken out" if thousands else "decimal commas were read as decimal points"
    reading_notes.setdefault(what, []).append(name)
    return again, still


def _number_drop_reason(name: str, values: NDArray[np.float64], rows_in_file: int) -> str:
    known = values[~np.isnan(values)]
    if not len(known):
        return REASON_EMPTY
    if (known == known[0]).all():
        return REASON_CONSTANT
    whole = len(known) == len(values) and bool((known == np.floor(known)).all())
    if whole and len(known) > 2 and len(np.unique(known)) == len(known):
        running = known.max() - known.min() < rows_in_file
        if (running and COUNTER_NAME_PATTERN.fullmatch(name)) or (
            len(known) > SMALL_TABLE_ROWS and ID_NAME_PATTERN.fullmatch(name)
        ):
            return REASON_ID
    return ""


def _build_category(
    grid: Grid, name: str, words: list[str], numbers: list[float], non_numeric: list[int], kept_rows: Sequence[int]
) -> tuple[Column, str]:
    known = [word for word in words if not is_missing(word)]
    share = 1 - len(non_numeric) / len(known)
    if share > MIN_NUMERIC_FRACTION and len({value for value in numbers if not np.isnan(value)}) > MAX_CATEGORY_NUMBERS:
        row, word = grid.line_numbers[kept_rows[non_numeric[0]]], words[non_numeric[0]]
        raise InputError(
            f"{grid.file}: row {row}, column {quote_cell(name)}: {quote_cell(word)} is no number, but {int(100 * share)} % of "
            "the column are; write a number, or leave the field empty if the value is missing"
        )
    levels = tuple(sorted(set(known)))
    column = Column(name, encode_levels(words, levels), levels)
    if len(levels) == 1:
        return column, REASON_CONSTANT
    if len(known) > SMALL_TABLE_ROWS and len(levels) > 0.95 * len(known):
        return column, REASON_ID
    long = sum(map(len, known)) > FREE_TEXT_LENGTH * len(known)
    if long or (len(levels) > MANY_LEVELS and len(levels) > MANY_LEVELS_FRACTION * len(words)):
        return column, REASON_TEXT
    return column, ""
