"""`TableEncoder`: raw columns (words, categories, booleans, dates, gaps) to numbers, learnt once, for any later rows.

The rules are those of a file that `compare` reads (`columns`): what is a number, a date or a category is decided by
the rows of `fit`, and so is what tells nothing and is left out. `transform` applies the decisions to new rows:

- columns are found by their names, in any order; others are not looked at, and a missing one is refused;
- a level of a category that `fit` has not seen becomes zeros in all of its columns, and so does a missing value where
  `fit` saw none; where it saw some, missing is a level of its own;
- a missing number is NaN, for which `MarginClassifier` takes the median;
- a word in a column of numbers, or a date written in another way, is refused with its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ...io.errors import InputError, format_value
from .columns import build_columns
from .encode import MAX_ENCODED_COLUMNS, feature_columns
from .grid import Grid
from .load import frame_grid, is_frame
from .numbers import check_decimal
from .read import read_grid
from .readings import UNSEEN, ColumnReading, table_readings
from .table import Column, Table, check_cells, join_names, quote_cell


class EncodedRows(NamedTuple):
    """Rows as numbers, and what was not known of them."""

    x: NDArray[np.float64]
    """[n, F]; NaN where a number is missing."""
    unseen: dict[str, int]
    """Cells of each category whose level was not among those of `fit`."""


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Encodes DataFrames or files as a matrix of numbers, as `wm.compare` and `MarginClassifier` see them.

    Numbers come first, then one column of 0 and 1 for each level of each category. Dates become year, month, weekday,
    hour and days since the earliest, as far as they varied. Nothing is scaled and no gap is filled.

    Parameters
    ----------
    decimal : "," or ".", the decimal sign of columns that can be read both ways, such as one of only "1,234".

    Attributes
    ----------
    readings_ : how each column is read, a tuple of `ColumnReading`.
    feature_names_in_, n_features_in_ : columns of the table of `fit`, those that are left out included.
    is_numeric_ : [F], True for numbers, False for levels of categories.
    notes_ : which columns are left out or read specially, and why.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"size": [1.5, 2.5, None], "colour": ["red", "blue", "red"]})
    >>> encoder = TableEncoder().fit(frame)
    >>> encoder.get_feature_names_out().tolist()
    ['size', 'colour=blue', 'colour=red']
    >>> encoder.transform(pd.DataFrame({"colour": ["red", "green"], "size": [3, 4]})).tolist()
    [[3.0, 0.0, 1.0], [4.0, 0.0, 0.0]]
    """

    def __init__(self, *, decimal: str | None = None) -> None:
        self.decimal = decimal

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Decide of every column of a DataFrame, a file or a matrix how it is read; y is not looked at."""
        check_decimal(self.decimal)
        grid = to_grid(X)
        return self.fit_grid(grid, range(len(grid.line_numbers)))

    def fit_grid(self, grid: Grid, kept_rows: Sequence[int], target: int | None = None) -> Self:
        """`fit` on cells, in the rows to keep and without the column of classes."""
        built = build_columns(grid, target, kept_rows, self.decimal)
        names = [name for place, name in enumerate(grid.column_names) if place != target]
        return self._set_readings(built.readings, names, [*grid.notes, *built.notes])

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """The encoder of a table that was read already."""
        readings = table_readings(table)
        return cls()._set_readings(readings, [reading.name for reading in readings], table.notes)

    @classmethod
    def from_readings(cls, readings: Sequence[ColumnReading], feature_names_in: Sequence[str]) -> Self:
        """The encoder of columns whose reading is known, as a stored model has it."""
        names = [reading.name for reading in readings]
        if not names or len(set(names)) < len(names) or not set(names) <= set(feature_names_in):
            raise ValueError("columns are missing, or two have one name")
        if sum(len(reading.feature_names) + len(reading.levels) for reading in readings) > 2 * MAX_ENCODED_COLUMNS:
            raise ValueError("too many columns after encoding")
        found = cls()._set_readings(readings, feature_names_in, ())
        if len(found.is_numeric_) > MAX_ENCODED_COLUMNS:
            raise ValueError("too many columns after encoding")
        return found

    def _set_readings(
        self, readings: Sequence[ColumnReading], feature_names_in: Sequence[str], notes: Sequence[str]
    ) -> Self:
        self.readings_, self.notes_ = tuple(readings), tuple(notes)
        self.feature_names_in_ = np.array(feature_names_in, dtype=object)
        self.n_features_in_ = len(feature_names_in)
        self._has_missing = {reading.feature_names[0]: reading.has_missing for reading in self.readings_}
        features = list(feature_columns(self._empty_columns(), self._has_missing))
        self._feature_names_out = tuple(name for name, _, _ in features)
        self.is_numeric_ = np.array([is_numeric for _, _, is_numeric in features])
        return self

    def _empty_columns(self) -> list[Column]:
        """The columns of no rows, for their names."""
        return [
            Column(name, np.empty(0), reading.levels if reading.kind == "category" else None)
            for reading in self.readings_
            for name in reading.feature_names
        ]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Names of the columns of the matrix: `size`, `born_year`, `colour=red`."""
        check_is_fitted(self)
        return np.array(self._feature_names_out, dtype=object)

    def transform(self, X: Any) -> NDArray[np.float64]:
        """The matrix [n, F] of the rows of a DataFrame, a file or a matrix."""
        return self.encode(to_grid(X)).x

    def encode(self, grid: Grid) -> EncodedRows:
        """The matrix of the rows of a grid of cells, and how many of them had levels that are not known."""
        check_is_fitted(self)
        self._check_names(grid)
        rows = len(grid.line_numbers)
        check_cells(rows, len(self._feature_names_out), grid.file, " after encoding")
        columns: list[Column] = []
        unseen: dict[str, int] = {}
        for reading in self.readings_:
            cells = grid.columns[grid.column_names.index(reading.name)]
            found = reading.read(cells, grid.line_numbers, grid.file)
            columns += found
            if reading.kind == "category" and (count := int((found[0].values == UNSEEN).sum())):
                unseen[reading.name] = count
        return EncodedRows(self._matrix(columns, rows), unseen)

    def encode_table(self, table: Table) -> NDArray[np.float64]:
        """The matrix of the table that the encoder was made of."""
        return self._matrix(table.columns, len(table))

    def _matrix(self, columns: Sequence[Column], rows: int) -> NDArray[np.float64]:
        x = np.empty((rows, len(self._feature_names_out)))
        for place, (_, values, _) in enumerate(feature_columns(columns, self._has_missing)):
            x[:, place] = values
        return x

    def _check_names(self, grid: Grid) -> None:
        absent = [reading.name for reading in self.readings_ if reading.name not in grid.column_names]
        if not absent:
            return
        near = get_close_matches(absent[0].lower(), {name.lower(): name for name in grid.column_names}, n=1)
        hint = f" (is {quote_cell(near[0])} meant?)" if near else ""
        raise InputError(
            f"{grid.file}: no column {join_names(absent)}{hint}; the model was fitted with "
            f"{'it' if len(absent) == 1 else 'them'}: add {'it' if len(absent) == 1 else 'them'}, empty if unknown"
        )


def needs_encoder(X: Any) -> bool:
    """Whether X is a DataFrame with columns that are no plain numbers."""
    if not is_frame(X):
        return False
    from pandas.api import types

    return not all(map(types.is_numeric_dtype, X.dtypes))


def to_grid(X: Any) -> Grid:
    """The cells of a DataFrame, of a file by its path, or of a matrix."""
    if isinstance(X, Grid):
        return X
    if isinstance(X, str | Path):
        return read_grid(X, keep_words=True)[0]  # a point may be between thousands, as the readings say
    if hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if not is_frame(X):
        import pandas as pd

        try:
            X = pd.DataFrame(np.asarray(X)).infer_objects()
        except (ValueError, TypeError):
            raise InputError(f"X must be a DataFrame, a file or a matrix, got {format_value(X)}") from None
        X.columns = pd.Index([f"c{place}" for place in range(1, X.shape[1] + 1)])
    return frame_grid(X, "X", min_columns=1)
