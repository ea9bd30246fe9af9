"""How each column of a table was read, as a value that can be stored and applied to new rows.

A table decides for every column as a whole what it is: numbers with a decimal sign, dates with an order of day and
month and a first day, or a category with its levels. New rows, of which there may be one, must be read in the same way.
A cell that cannot be read so is refused with its row; a level that was not there is none of the known ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...io.errors import InputError, format_value
from .dates import DAY_FIRST, FIXED, MONTH_FIRST, read_new_dates, read_new_times
from .grid import Cells
from .numbers import DECIMAL_SIGNS, read_new_number
from .table import Column, Table, is_missing, quote_cell

KINDS = ("number", "date", "time", "category")
UNSEEN = -2
"""Code of a level that is not among those of the training rows; −1 is a missing value."""
_DATE_ENDINGS = ("_year", "_month", "_weekday", "_hour", "_days")
_TRUTH_WORDS = {"true", "false"}


@dataclass(frozen=True)
class ColumnReading:
    """How the cells of one column become features."""

    name: str
    kind: str
    """One of `KINDS`."""
    feature_names: tuple[str, ...] = ()
    """The columns that come of it; of a date one for each of `parts`."""
    decimal: str = "."
    """Decimal sign of numbers."""
    marks: tuple[str, ...] = ()
    """Currency and percent signs that may stand at numbers."""
    parts: tuple[str, ...] = ()
    """Parts of dates that varied, by what is added to the name."""
    day_sign: str = ""
    day_order: str = ""
    start: tuple[float, float] = (0.0, 0.0)
    """First day and time that `_days` of dates is counted from, in days since 1970."""
    levels: tuple[str, ...] = ()
    """Of a category, in the order of their codes."""
    has_missing: bool = False
    """Whether values of a category were missing, which is then a level of its own."""

    def read(self, cells: Cells, where: Sequence[int] | None, file: str) -> list[Column]:
        """The features of new cells; `where` are the numbers of their rows, for messages."""
        if self.kind == "category":
            return [Column(self.feature_names[0], self._codes(_to_words(cells)), self.levels)]
        if isinstance(cells, np.ndarray):
            if self.kind != "number":
                raise InputError(f"{self._place(file)} contains numbers, but {self.kind}s in training")
            values = cells.astype(np.float64)
            self._check_finite(values, where, file)
            return [Column(self.feature_names[0], values)]
        if self.kind == "number":
            values = self._numbers(cells, where, file)
            self._check_finite(values, where, file)
            return [Column(self.feature_names[0], values)]
        found = (
            read_new_times(cells)
            if self.kind == "time"
            else read_new_dates(cells, self.day_sign, self.day_order, self.start)
        )
        if found.unread:
            row = found.unread[0]
            raise self._unread_error(cells[row], row, where, file)
        return [
            Column(name, found.parts[part]) for name, part in zip(self.feature_names, self.parts or ("",), strict=True)
        ]

    def _numbers(self, cells: Sequence[str], where: Sequence[int] | None, file: str) -> NDArray[np.float64]:
        values = np.empty(len(cells))
        plain = self.decimal == "."
        for row, word in enumerate(cells):
            try:
                if not plain or "_" in word:
                    raise ValueError
                values[row] = float(word)
            except ValueError:
                number = math.nan if is_missing(word) else read_new_number(word, self.decimal, self.marks)
                if number is None:
                    raise self._unread_error(word, row, where, file) from None
                values[row] = number
        return values

    def _codes(self, words: Sequence[str]) -> NDArray[np.int64]:
        place = {level: code for code, level in enumerate(self.levels)}
        if {level.lower() for level in self.levels} <= _TRUTH_WORDS:  # True in a DataFrame, true in a file
            place |= {form(level): code for level, code in list(place.items()) for form in (str.lower, str.title)}
        return np.array(
            [place[word] if word in place else -1 if is_missing(word) else UNSEEN for word in words], dtype=np.int64
        )

    def _check_finite(self, values: NDArray[np.float64], where: Sequence[int] | None, file: str) -> None:
        if np.isinf(values).any():
            row = int(np.isinf(values).argmax())
            said = "an infinite number; leave the field empty if the value is missing"
            raise InputError(f"{self._place(file, row, where)}: {said}")

    def _unread_error(self, word: str, row: int, where: Sequence[int] | None, file: str) -> InputError:
        as_before = f"decimal sign {self.decimal}" if self.kind == "number" else f"written as before: {self._style()}"
        return InputError(
            f"{self._place(file, row, where)}: {quote_cell(word)} is not a {self.kind} as in training ({as_before}); "
            "leave the field empty if the value is missing"
        )

    def _style(self) -> str:
        if self.kind == "time":
            return "18:30"
        return f"{self.day_order}, {self.day_sign} between" if self.day_order else "2024-12-31"

    def _place(self, file: str, row: int | None = None, where: Sequence[int] | None = None) -> str:
        number = None if row is None else row if where is None else where[row]
        return f"{file}: " + ("" if number is None else f"row {number}, ") + f"column {quote_cell(self.name)}"

    # ---------------------------------------------------------------- JSON

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, for JSON."""
        return {name: value for name, value in asdict(self).items() if value != getattr(type(self), name, None)}

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """What `to_dict` gave; a ValueError for anything else."""
        known = {spec.name for spec in fields(cls)}
        if not isinstance(values, Mapping) or not {"name", "kind", "feature_names"} <= set(values) <= known:
            raise ValueError(f"no column: {format_value(values)}")
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        found = cls(**plain)
        words = (*found.feature_names, *found.marks, *found.parts, *found.levels, found.name, found.day_sign)
        is_valid = (
            found.kind in KINDS
            and all(isinstance(word, str) for word in words)
            and all(
                isinstance(group, tuple)
                for group in (found.feature_names, found.marks, found.parts, found.levels, found.start)
            )
            and found.decimal in DECIMAL_SIGNS
            and found.day_order in (DAY_FIRST, MONTH_FIRST, FIXED)
            and len(found.feature_names) == (len(found.parts) if found.kind == "date" else 1)
            and set(found.parts) <= set(_DATE_ENDINGS)
            and len(set(found.levels)) == len(found.levels)
            and (found.kind != "category" or len(found.levels) > 0)
            and isinstance(found.has_missing, bool)
            and len(found.start) == 2
            and all(isinstance(day, int | float) and abs(day) < 1e9 for day in found.start)
        )
        if not is_valid:
            raise ValueError(f"no column: {format_value(values)}")
        return found


def _to_words(cells: Cells) -> Sequence[str]:
    """Cells as words; whole numbers of a binary file without a decimal point."""
    return [format_cell(value) for value in cells.tolist()] if isinstance(cells, np.ndarray) else cells


def format_cell(value: int | float) -> str:
    """A number of a binary file as a text file has it; nothing for NaN.

    >>> format_cell(3.0), format_cell(2.5), format_cell(float("nan"))
    ('3', '2.5', '')
    """
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else str(int(value)) if value.is_integer() else str(value)


def table_readings(table: Table) -> tuple[ColumnReading, ...]:
    """How the columns of a table were read; those of a data set by name are plain numbers and words."""
    if table.readings:
        return table.readings
    return tuple(
        ColumnReading(column.name, "number", (column.name,))
        if column.levels is None
        else ColumnReading(
            column.name,
            "category",
            (column.name,),
            levels=column.levels,
            has_missing=bool((column.values < 0).any()),
        )
        for column in table.columns
    )
