"""A table as one matrix, numbers first, and each model's own scaling of it, from its training part alone.

Numbers are centred, scaled and decorrelated, missing ones replaced by the median; categories become
one column per level, missing ones a level of their own. A column that does not vary in a training part,
or a level that does not occur there, is switched off for that model: nothing was learned about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...io.errors import InputError
from .table import Table, check_cells

# More columns than that are a mistake in the file sooner than a table, and each is a row of weights per model.
MAX_ENCODED_COLUMNS = 50_000
# Correlations of more numbers than that are mostly noise in tables of ordinary length, and a matrix per model.
MAX_DECORRELATED_COLUMNS = 128
# Share of the identity in the correlations: keeps what hardly varies from being blown up.
SHRINKAGE = 0.1
# Less than that share of a column's reach, or of its mean, is lost in single precision: such a column does not vary.
MIN_STD_TO_RANGE, MIN_STD_TO_MEAN = 1e-15, 1e-7


class EncodedTable(NamedTuple):
    """A matrix of all rows; NaN where a number is missing."""

    x: NDArray[np.float64]
    """[n, F]"""
    is_numeric: NDArray[np.bool_]
    """[F]: numbers, and not the levels of a category."""
    feature_names: tuple[str, ...]


class Scaling(NamedTuple):
    """What K models make of the matrix: `x · scale + shift`, after `fill` stood in for what is missing."""

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]
    fill: NDArray[np.float64] | None


def encode(table: Table) -> EncodedTable:
    """The matrix [n, F] of a table."""
    width = check_width(table)
    x = np.empty((len(table), width))
    names: list[str] = []
    numeric: list[bool] = []
    for column in sorted(table.columns, key=lambda column: column.levels is not None):
        if column.levels is None:
            x[:, len(names)] = _rescale_for_float32(column.values.astype(np.float64))
            names.append(column.name)
            numeric.append(True)
            continue
        codes = [*range(len(column.levels)), *([-1] if (column.values < 0).any() else [])]
        for code in codes:
            x[:, len(names)] = column.values == code
            names.append(f"{column.name}={'missing' if code < 0 else column.levels[code]}")
            numeric.append(False)
    x = x if len(names) == width else np.ascontiguousarray(x[:, : len(names)])
    return EncodedTable(x, np.array(numeric), tuple(names))


def check_width(table: Table) -> int:
    """How many columns the matrix has at most, if that is no mistake."""
    width = sum(1 if column.levels is None else len(column.levels) + 1 for column in table.columns)
    if width > MAX_ENCODED_COLUMNS:
        raise InputError(
            f"{table.source or table.name}: {width} columns after encoding; {MAX_ENCODED_COLUMNS} are the limit"
        )
    check_cells(len(table), width, table.source or table.name, " after encoding")
    return width


def scaling(encoded: EncodedTable, train_rows: Sequence[NDArray[np.int64]]) -> Scaling:
    """Shift, scale and fill [K, F] from the training part of each of K models."""
    has_missing = bool(np.isnan(encoded.x).any())
    rows = [_compute_part_scaling(encoded, encoded.x[part], has_missing) for part in train_rows]
    shift, scale, fill = (np.stack(found) for found in zip(*rows, strict=True))
    return Scaling(shift, scale, fill if has_missing else None)


def decorrelation(
    encoded: EncodedTable, train_rows: Sequence[NDArray[np.int64]], scales: Scaling
) -> NDArray[np.float64] | None:
    """Matrices [K, P, P] that make the P scaled numbers of each training part uncorrelated; None where that is no use.

    The symmetric root of the inverse of the shrunk correlations (ZCA): each column stays itself as far as possible.
    Levels of categories, which come after the numbers, are left alone.
    """
    numbers = int(encoded.is_numeric.sum())
    if not 2 <= numbers <= MAX_DECORRELATED_COLUMNS:
        return None
    whitening = np.empty((len(train_rows), numbers, numbers))
    for k, part in enumerate(train_rows):
        x = encoded.x[part, :numbers]
        if scales.fill is not None:
            x = np.where(np.isnan(x), scales.fill[k, :numbers], x)
        x = x * scales.scale[k, :numbers] + scales.shift[k, :numbers]
        correlation = (1.0 - SHRINKAGE) * (x.T @ x) / len(part) + SHRINKAGE * np.eye(numbers)
        values, vectors = np.linalg.eigh(correlation)
        whitening[k] = (vectors / np.sqrt(values)) @ vectors.T
    return whitening


def _compute_part_scaling(
    encoded: EncodedTable, x: NDArray[np.float64], has_missing: bool
) -> tuple[NDArray[np.float64], ...]:
    fill = np.zeros(x.shape[1])
    if has_missing:
        known = ~np.isnan(x).all(axis=0)
        fill[known] = np.nanmedian(x[:, known], axis=0)
        x = np.where(np.isnan(x), fill, x)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    varies = deviation > np.maximum(MIN_STD_TO_RANGE, MIN_STD_TO_MEAN * np.abs(mean))
    scale = np.where(varies, 1.0 / np.where(varies, deviation, 1.0), 0.0)
    occurs = np.where(x.any(axis=0), 1.0, 0.0)
    scale = np.where(encoded.is_numeric, scale, occurs)
    return np.where(encoded.is_numeric, -mean * scale, 0.0), scale, fill


def _rescale_for_float32(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers near 0 of size at most 1, so that fp32 keeps their digits; a model's own scaling undoes it."""
    if np.nanmax(np.abs(values)) > 1e300:  # differences and squares of these overflow
        values = values * 1e-100
    middle = np.nanmedian(values)
    size = np.nanmax(np.abs(values - middle))
    return (values - middle) / size if size > 0 else values - middle
