"""Your own table: CSV, TSV or Parquet → `Table`, with one line for whatever cannot be learnt from.

Rules, each with a note when it changes something. Missing is an empty field, ?, NA, N/A, NaN, null, None or -.
A column is a number if all its values are, with or without thousands, currency and percent signs (`numbers`); dates and
times become numbers too (`dates`); all else is a category. Left out: columns with no or one value, running numbers and
ids, free text; rows without a label; classes with a single row. Refused: numbers that a decimal comma and a decimal
point make different ones of (`decimal` decides), infinite numbers, a stray word among numbers or dates, a number to be
predicted as target, rows of another width than the header, and tables that would fill the memory (see
`table.MemoryBudget`). Remarked, without any change: duplicate rows, and columns that predict the class by themselves
(`remarks`).

A table is a file, a pipe such as `<(zcat table.csv.gz)`, standard input (`-`) or an https address (see `source`). A
first line `sep=;`, as Excel writes it, names the separator; else it is found in the first rows.

Two steps follow the reading of cells: `read_labels` finds the column of classes and the rows to keep, `build_columns`
decides of every other column whether it is numbers, dates or a category, or tells nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...io.errors import InputError, spell_option
from . import parquet
from .columns import build_columns
from .grid import Cells, Grid, parse_grid
from .numbers import check_decimal, parse_formatted
from .readings import format_cell
from .remarks import find_remarks
from .source import read_source
from .table import (
    LABEL_MISSING_TOKENS,
    MemoryBudget,
    Table,
    class_order,
    encode_levels,
    find_missing,
    join_names,
    quote_cell,
)
from .text import PARQUET_MAGIC, decode_table_text

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
    column_index = grid.column_names.index(resolve_target(grid.file, grid.column_names, target))
    column = f"{grid.file}: column {quote_cell(grid.column_names[column_index])}"
    remedy = f"; choose the column of classes with {spell_option('target')}" if target is None else ""
    words = grid.column_words([column_index])[0] or _to_label_words(grid.columns[column_index])
    missing = find_missing(words, LABEL_MISSING_TOKENS)
    kept_rows = [row for row, word in enumerate(words) if word not in missing]
    if not kept_rows:
        raise InputError(f"{column} has no label in any row{remedy}")
    notes = []
    if len(kept_rows) < len(words):
        without = next(row for row, word in enumerate(words) if word in missing)
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


def resolve_target(file: str, column_names: Sequence[str], target: str | None) -> str:
    """The name of the column of classes: the last one by default, and an error with the nearest if it is not there."""
    if target is None:
        return column_names[-1]
    wanted = target.strip()
    if wanted in column_names:
        return wanted
    lowered = {name.lower(): name for name in column_names}
    near = get_close_matches(wanted.lower(), lowered, n=1, cutoff=0.5)
    hint = f"; did you mean {quote_cell(lowered[near[0]])}?" if near else ""
    raise InputError(
        f"{file}: no column {quote_cell(target)}{hint} (its columns: {join_names(column_names, max_names=12)})"
    )


def _to_label_words(cells: Cells) -> Sequence[str]:
    """Labels as words; whole numbers of a binary file without a decimal point."""
    if not isinstance(cells, np.ndarray):
        return cells
    return [format_cell(value) for value in cells.tolist()]


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
    known = {
        name: next(iter(number.values.values())) for name in sizes if (number := parse_formatted(name)) is not None
    }
    if len(known) <= 0.9 * len(sizes):  # words among them: codes
        return
    values = np.array(list(known.values()))
    counts = np.array([sizes[name] for name in known])
    if is_quantity(values, counts):
        raise InputError(
            f"{column} looks like a number to be predicted ({len(sizes):,} different values in {rows:,} rows); "
            f"widemargin classifies: choose another {spell_option('target')}, or bin it first (if these are classes, "
            "use "
            f"{spell_option('target_is_class', True)})"
        )


def _check_classes(column: str, sizes: Counter[str], rows: int, remedy: str) -> None:
    """Refuse ids."""
    if len(sizes) > max(1, rows * 2 / 3):
        raise InputError(
            f"{column} has {len(sizes):,} different labels in {rows:,} rows, so they are not classes{remedy}"
        )


def read_table(
    path: str | Path, target: str | None = None, *, target_is_class: bool = False, decimal: str | None = None
) -> Table:
    """Read a table; `target` is the column of classes, by default the last one.

    A target of numbers that look like a quantity (a price, an age) is refused unless `target_is_class`. `decimal`, ","
    or ".", is the decimal sign of columns that can be read both ways, such as one of nothing but `1,234`.
    """
    check_decimal(decimal)
    grid, name = read_grid(path, keep_words=decimal == ",")
    table = build_table(grid, name, target, target_is_class, decimal)
    options = (*(("--target-is-class",) if target_is_class else ()), *(("--decimal", decimal) if decimal else ()))
    return replace(table, source=grid.file, read_options=options)


def read_grid(path: str | Path, keep_words: bool = False) -> tuple[Grid, str]:
    """Return the cells of a file and the name of the table; with `keep_words`, numbers in text stay words."""
    source = read_source(path)
    memory = MemoryBudget(source.file, source.stored_bytes)
    memory.reserve(len(source.data))
    if source.data.startswith(PARQUET_MAGIC):
        return parquet.read_parquet_grid(source.data, memory), source.table_name
    text, notes = decode_table_text(source.data, source.file)
    grid = parse_grid(text, memory, keep_words=keep_words)
    return replace(grid, notes=[*notes, *grid.notes]), source.table_name


def build_table(grid: Grid, name: str, target: str | None, target_is_class: bool, decimal: str | None = None) -> Table:
    """The table of a grid of cells: its classes, its columns, and notes on all that was left out or read specially."""
    target_labels = read_labels(grid, target, target_is_class)
    columns = build_columns(grid, target_labels.column_index, target_labels.kept_rows, decimal)
    remarks = find_remarks(columns.features, target_labels.y)
    notes = (*grid.notes, *target_labels.notes, *columns.notes, *remarks)
    return Table(
        name,
        columns.features,
        target_labels.y,
        target_labels.class_names,
        notes,
        readings=columns.readings,
        target=grid.column_names[target_labels.column_index],
    )
