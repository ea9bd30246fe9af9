"""Your own table: CSV, TSV or Parquet → `Table`, with one line for whatever cannot be learnt from.

Rules, each with a note when it changes something. Missing is an empty field, ?, NA, N/A, NaN, null, None or -.
A column is a number if all its values are, else a category. Left out: columns with no or one value, running numbers
and ids, free text; rows without a label; classes with a single row. Refused: infinite numbers, a stray word among
numbers, a number to be predicted as target, rows of another width than the header, and tables that would fill the
memory (see `table.MemoryBudget`). A file may also be a pipe, such as `<(zcat table.csv.gz)`, that sends something
every 30 seconds.

Two steps follow the reading of cells: `read_labels` finds the column of classes and the rows to keep, `build_columns`
decides of every other column whether it is a number or a category, or tells nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...io.errors import InputError
from . import parquet
from .table import (
    LABEL_MISSING_TOKENS,
    Column,
    MemoryBudget,
    Table,
    class_order,
    encode_levels,
    is_missing,
    join_names,
    parse_number,
    quote_cell,
)
from .text import PARQUET_MAGIC, Cells, Grid, decode_table_text, parse_grid, printable_path, read_table_bytes

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
            f"{grid.file}: row {row}, column {quote_cell(name)}: {quote_cell(word)} is no number, "
            f"but {int(100 * share)} % of the column are; "
            "write a number, or leave the field empty if the value is missing"
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


# ---------------------------------------------------------------- the column of classes

FEW_VALUES = 20
"""Up to so many different numbers may be classes, whatever they are."""
MANY_FRACTIONS = 100
"""More different numbers than this with fractions among them are no classes, however many rows there are."""
DENSE_VALUES = 30
"""More whole numbers than this in a row, counted neither from 0 nor from 1, are ages, years or temperatures."""


@dataclass(frozen=True, eq=False)
class TargetLabels:
    """Classes of the rows to keep."""

    column_index: int
    kept_rows: list[int]
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    notes: list[str]


def read_labels(grid: Grid, target: str | None, is_class: bool = False) -> TargetLabels:
    """Find the target and its classes; an error if what it holds is no classes.

    `is_class`: its numbers are classes, even if they look like a quantity.
    """
    column_index = len(grid.column_names) - 1 if target is None else _target_index(grid, target)
    column = f"{grid.file}: column {quote_cell(grid.column_names[column_index])}"
    remedy = "; name the column of classes: target" if target is None else ""
    words = _to_label_words(grid.columns[column_index])
    kept_rows = [row for row, word in enumerate(words) if not is_missing(word, LABEL_MISSING_TOKENS)]
    if not kept_rows:
        raise InputError(f"{column} has no label in any row{remedy}")
    notes = []
    if len(kept_rows) < len(words):
        without = next(row for row, word in enumerate(words) if is_missing(word, LABEL_MISSING_TOKENS))
        count = len(words) - len(kept_rows)
        rows = f"{count:,} rows without a label (the first is row" if count > 1 else "a row without a label (row"
        notes.append(f"left out {rows} {grid.line_numbers[without]})")
    sizes = Counter(words[row] for row in kept_rows)
    if not is_class:
        _check_not_quantity(column, sizes, len(kept_rows))
    _check_classes(column, sizes, len(kept_rows), remedy)
    single = [name for name, size in sizes.items() if size == 1]
    if single:
        kept_rows = [row for row in kept_rows if sizes[words[row]] > 1]
        what = f"the {len(single)} classes" if len(single) > 1 else "the class"
        notes.append(f"left out {what} with a single row: {join_names(single)}")
    classes = class_order(words[row] for row in kept_rows)
    if len(classes) < 2:
        only = f"only the class {join_names(classes)}" if classes else "no class"
        more = " with two rows or more" if single else ""
        raise InputError(f"{column} has {only}{more}; at least two classes are needed{remedy}")
    return TargetLabels(
        column_index, kept_rows, encode_levels([words[row] for row in kept_rows], classes), classes, notes
    )


def _target_index(grid: Grid, target: str) -> int:
    wanted = target.strip()
    if wanted in grid.column_names:
        return grid.column_names.index(wanted)
    lowered = {name.lower(): name for name in grid.column_names}
    near = get_close_matches(wanted.lower(), lowered, n=1, cutoff=0.5)
    hint = f"; did you mean {quote_cell(lowered[near[0]])}?" if near else ""
    raise InputError(
        f"{grid.file}: no column {quote_cell(target)}{hint} "
        f"(its columns: {join_names(grid.column_names, max_names=12)})"
    )


def _to_label_words(cells: Cells) -> Sequence[str]:
    """Labels as words; whole numbers of a binary file without a decimal point."""
    if not isinstance(cells, np.ndarray):
        return cells
    return [_format_label(value) for value in cells.tolist()]


def _format_label(value: int | float) -> str:
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else str(int(value)) if value.is_integer() else str(value)


def looks_continuous(values: NDArray[np.float64], counts: NDArray[np.int64]) -> bool:
    """Whether numbers are spread like a quantity to be predicted, and not like codes of classes.

    `values` are the different numbers, `counts` how many rows have each. More than 20 of them are a quantity if they
    are more than 5 % of the rows and either some have fractions or a tenth of them occur only once: classes with
    two rows or more are never taken for one, however many there are. With fractions, more than 100 are one anyway.

    >>> ages, letters = np.arange(18.0, 78.0), np.arange(26.0)
    >>> looks_continuous(ages, np.r_[np.ones(9, int), np.full(51, 6)]), looks_continuous(letters, np.full(26, 2))
    (True, False)
    """
    different, rows = len(values), int(counts.sum())
    if different <= FEW_VALUES:
        return False
    many = different > 0.05 * rows
    if (values != np.floor(values)).any():
        return many or different > MANY_FRACTIONS
    return many and bool((counts == 1).sum() >= 0.1 * different)


def is_quantity(values: NDArray[np.float64], counts: NDArray[np.int64]) -> bool:
    """Whether different numbers are a quantity to be predicted: spread like one, or a long run of whole numbers.

    >>> ages, letters = np.arange(18.0, 91.0), np.arange(26.0)
    >>> is_quantity(ages, np.full(73, 14)), is_quantity(letters, np.full(26, 14))
    (True, False)
    """
    dense = len(values) > DENSE_VALUES and _is_dense_range(values) and not are_codes(values)
    return dense or looks_continuous(values, counts)


def are_codes(values: NDArray[np.float64]) -> bool:
    """Whether different whole numbers are counted from 0 or 1 with few gaps, as an encoder of labels numbers them."""
    return bool(values.min() in (0, 1)) and _is_dense_range(values)


def _is_dense_range(values: NDArray[np.float64]) -> bool:
    whole = bool((values == np.floor(values)).all())
    return whole and len(values) > 0.8 * (values.max() - values.min() + 1)


def _check_not_quantity(column: str, sizes: Counter[str], rows: int) -> None:
    """Refuse a number that is to be predicted, such as a price or a temperature."""
    known = {name: value for name in sizes if (value := parse_number(name)) is not None}
    if len(known) <= 0.9 * len(sizes):  # words among them: codes
        return
    values = np.array(list(known.values()))
    counts = np.array([sizes[name] for name in known])
    if is_quantity(values, counts):
        raise InputError(
            f"{column} looks like a number to be predicted ({len(sizes):,} different values in {rows:,} rows); "
            "widemargin classifies: choose another target, or bin it first (target_is_class if these are classes)"
        )


def _check_classes(column: str, sizes: Counter[str], rows: int, remedy: str) -> None:
    """Refuse ids."""
    if len(sizes) > max(1, rows * 2 / 3):
        raise InputError(
            f"{column} has {len(sizes):,} different labels in {rows:,} rows, so these are no classes{remedy}"
        )


def read_table(path: str | Path, target: str | None = None, *, target_is_class: bool = False) -> Table:
    """Read a table; `target` is the column of classes, by default the last one.

    A target of numbers that look like a quantity (a price, an age) is refused unless `target_is_class`.
    """
    place = Path(path).expanduser()
    data, stored = read_table_bytes(place, _known_set_names)
    memory = MemoryBudget(printable_path(path), stored)
    memory.reserve(len(data))
    file = memory.file
    notes: list[str] = []
    if data.startswith(PARQUET_MAGIC):
        grid = parquet.read_parquet_grid(data, memory)
    else:
        text, notes = decode_table_text(data, file)
        grid = parse_grid(text, memory)
    name = place.name.removesuffix(".gz")
    table = build_table(grid, Path(name).stem or name, target, target_is_class)
    return replace(table, notes=(*notes, *table.notes), source=file)


def build_table(grid: Grid, name: str, target: str | None, target_is_class: bool) -> Table:
    """The table of a grid of cells: its classes, its columns, and notes on all that was left out or read specially."""
    target_labels = read_labels(grid, target, target_is_class)
    features, column_notes = build_columns(grid, target_labels.column_index, target_labels.kept_rows)
    notes = (*grid.notes, *target_labels.notes, *column_notes)
    return Table(name, features, target_labels.y, target_labels.class_names, notes)


def _known_set_names() -> tuple[str, ...]:
    from .uci import uci_set_names

    return uci_set_names()
