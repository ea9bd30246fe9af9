"""Columns of cells as features: what is a number, a date or a category, and what tells nothing and is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...io.errors import InputError
from .dates import DateReading, read_dates
from .grid import Grid
from .numbers import NumberReading, ambiguous_number_error, find_thousands_points, read_numbers
from .readings import ColumnReading
from .table import Column, encode_levels, find_missing, join_names, quote_cell

MIN_NUMERIC_FRACTION = 0.9  # above this share of numbers, a word in a column is taken for a slip
MAX_CATEGORY_NUMBERS = 10  # with no more different numbers than this, a column of numbers and words is a category
SMALL_TABLE_ROWS = 20  # rows up to which all values may well differ by chance
MANY_LEVELS, MANY_LEVELS_FRACTION, FREE_TEXT_LENGTH = 50, 0.2, 60

COUNTER_NAME_PATTERN = re.compile(
    r"(.*id|idx|index|unnamed.*|__index_level_\d+__|#|no\.?|nr\.?|num|number|row.*|case.*|sample.*)", re.I
)
ID_NAME_PATTERN = re.compile(r"(?i:id)|.*[_ .-](?i:id)|.*[a-z](Id|ID)")

REASON_EMPTY, REASON_CONSTANT, REASON_ID, REASON_TEXT = (
    "no values in it",
    "one value only",
    "a running number or an id, different in nearly every row; numbers with units are words: write them bare",
    "free text, or too many different words",
)


@dataclass
class _ColumnReader:
    """Decides of one column after the other what it is, and collects notes on what was read specially."""

    grid: Grid
    target: int | None
    kept_rows: Sequence[int]
    decimal: str | None
    notes: dict[str, list[str]] = field(default_factory=dict)
    """The columns to which each note applies."""
    plain_places: list[int] = field(default_factory=list)
    """Columns of plain numbers."""
    comma_column: str = ""
    """A column that shows decimal commas."""
    readings: dict[str, ColumnReading] = field(default_factory=dict)
    """How each column was read."""

    def __post_init__(self) -> None:
        self.taken_names = set(self.grid.column_names)

    def read(self, place: int) -> tuple[list[Column], str]:
        """What becomes of a column: features, or none and the reason."""
        name, cells = self.grid.column_names[place], self.grid.columns[place]
        if isinstance(cells, np.ndarray):
            self.plain_places.append(place)
            return self._build_numbers(name, cells[np.asarray(self.kept_rows)].astype(np.float64))
        words = self._kept_words(cells)
        where = f"{self.grid.file}: column {quote_cell(name)}"
        reading = read_numbers(words, where, decimal=self.decimal, separator=self.grid.separator)
        if not reading.unread:
            self._add_note(name, "; ".join(reading.notes))
            if reading.shown_decimal == "," and not self.comma_column:
                self.comma_column = name
            elif not reading.notes:
                self.plain_places.append(place)
            return self._build_numbers(name, np.array(reading.values, dtype=np.float64), reading.decimal, reading.marks)
        dates = None if reading.problem else read_dates(words, self._other_columns(place))
        if dates is not None and not dates.unread:
            return self._build_dates(name, dates)
        self._check_slips(name, words, reading, dates)
        return self._build_category(name, words, reading.problem)

    def check_thousands_points(self) -> None:
        """Refuse a column of nothing but `1.234` beside one with decimal commas: the point may be between thousands."""
        if self.decimal is None and self.comma_column:
            for place, words in zip(self.plain_places, self.grid.column_words(self.plain_places), strict=True):
                example = find_thousands_points(self._kept_words(words))
                if example:
                    where = f"{self.grid.file}: column {quote_cell(self.grid.column_names[place])}"
                    why = f", for column {quote_cell(self.comma_column)} has decimal commas"
                    raise ambiguous_number_error(where, example, why)

    def _kept_words(self, words: Sequence[str]) -> Sequence[str]:
        return words if len(words) in (0, len(self.kept_rows)) else [words[row] for row in self.kept_rows]

    def _other_columns(self, place: int) -> Iterator[Sequence[str]]:
        for other, cells in enumerate(self.grid.columns):
            if other not in (place, self.target) and not isinstance(cells, np.ndarray):
                yield self._kept_words(cells)

    def _add_note(self, name: str, note: str) -> None:
        if note:
            self.notes.setdefault(note, []).append(name)

    def _build_numbers(
        self, name: str, values: NDArray[np.float64], decimal: str = ".", marks: tuple[str, ...] = ()
    ) -> tuple[list[Column], str]:
        if np.isinf(values).any():
            raise InputError(
                f"{self._place(name, int(np.isinf(values).argmax()))}: an infinite number; "
                "leave the field empty if the value is missing"
            )
        self.readings[name] = ColumnReading(name, "number", (name,), decimal, marks)
        return [Column(name, values)], _number_drop_reason(name, values, len(self.grid.line_numbers))

    def _build_dates(self, name: str, dates: DateReading) -> tuple[list[Column], str]:
        columns = []
        self.taken_names.remove(name)
        for ending, values in dates.parts.items():
            free = name + ending
            while free in self.taken_names:
                free += "_"
            self.taken_names.add(free)
            columns.append(Column(free, values))
        self.readings[name] = ColumnReading(
            name,
            "time" if dates.is_time else "date",
            tuple(column.name for column in columns),
            parts=() if dates.is_time else tuple(dates.parts),
            day_sign=dates.sign,
            day_order=dates.order,
            start=dates.start,
        )
        first = columns[0].values
        known = first[~np.isnan(first)]
        if (known == known[0]).all():
            return columns, REASON_CONSTANT
        self._add_note(name, dates.note)
        return columns, ""

    def _place(self, name: str, row: int) -> str:
        return f"{self.grid.file}: row {self.grid.line_numbers[self.kept_rows[row]]}, column {quote_cell(name)}"

    def _check_slips(self, name: str, words: Sequence[str], reading: NumberReading, dates: DateReading | None) -> None:
        """Refuse a word among numbers or dates."""
        missing = find_missing(words)
        known = sum(word not in missing for word in words)
        different = {value for value in set(reading.values) if not np.isnan(value)}
        found = [("number", reading.unread, len(different))]
        if dates is not None:
            found.append(("date", dates.unread, len(set(words))))
        for what, unread, count in found:
            share = 1 - len(unread) / known
            if share > MIN_NUMERIC_FRACTION and count > MAX_CATEGORY_NUMBERS:
                raise InputError(
                    f"{self._place(name, unread[0])}: {quote_cell(words[unread[0]])} is not a {what}, "
                    f"but {int(100 * share)} % of the column are; "
                    f"write a {what}, or leave the field empty if the value is missing"
                )

    def _build_category(self, name: str, words: Sequence[str], problem: str) -> tuple[list[Column], str]:
        missing = find_missing(words)
        known = [word for word in words if word not in missing]
        levels = tuple(sorted(set(known)))
        columns = [Column(name, encode_levels(words, levels), levels)]
        self.readings[name] = ColumnReading(
            name, "category", (name,), levels=levels, has_missing=len(known) < len(words)
        )
        if len(levels) == 1:
            return columns, REASON_CONSTANT
        if len(known) > SMALL_TABLE_ROWS and len(levels) > 0.95 * len(known):
            return columns, problem or REASON_ID
        long = sum(map(len, known)) > FREE_TEXT_LENGTH * len(known)
        if long or (len(levels) > MANY_LEVELS and len(levels) > MANY_LEVELS_FRACTION * len(words)):
            return columns, problem or REASON_TEXT
        if problem:
            self._add_note(name, f"read as words ({problem})")
        return columns, ""


class BuiltColumns(NamedTuple):
    """The features of a table, how they were read, and notes on columns that were left out or read specially."""

    features: tuple[Column, ...]
    readings: tuple[ColumnReading, ...]
    notes: list[str]


def build_columns(grid: Grid, target: int | None, kept_rows: Sequence[int], decimal: str | None = None) -> BuiltColumns:
    """The columns besides the target, if there is one, in the rows to keep."""
    reader = _ColumnReader(grid, target, kept_rows, decimal)
    found: list[Column] = []
    readings: list[ColumnReading] = []
    left_out: dict[str, list[str]] = {}
    for place, name in enumerate(grid.column_names):
        if place == target:
            continue
        columns, reason = reader.read(place)
        if reason:
            left_out.setdefault(reason, []).append(name)
        else:
            found += columns
            readings.append(reader.readings[name])
    reader.check_thousands_points()
    reasons = [f"{join_names(names)} ({reason})" for reason, names in left_out.items()]
    if not found:
        why = f": left out {'; '.join(reasons)}" if reasons else "" if target is None else " besides the classes"
        raise InputError(f"{grid.file}: no column to learn from{why}")
    notes = [f"left out {reason}" for reason in reasons]
    notes += [f"{join_names(names)}: {what}" for what, names in reader.notes.items()]
    gaps = {column.name: int(_missing_mask(column).sum()) for column in found}
    total, where = sum(gaps.values()), [name for name, count in gaps.items() if count]
    if where:
        many = f"{total:,} missing value{'s' if total > 1 else ''} in {join_names(where)}"
        notes.append(f"{many}: the median stands in, or for a category a level of its own")
    return BuiltColumns(tuple(found), tuple(readings), notes)


def _missing_mask(column: Column) -> NDArray[np.bool_]:
    gaps: NDArray[np.bool_] = np.isnan(column.values) if column.levels is None else column.values < 0
    return gaps


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
