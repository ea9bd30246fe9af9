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

from ..errors import InputError
from .table import Table
from .table_memory import check_cells

# More columns than that are a mistake in the file sooner than a table, and each is a row of weights per model.
WIDEST = 50_000
# Correlations of more numbers than that are mostly noise in tables of ordinary length, and a matrix per model.
DECORRELATED = 128
# Share of the identity in the correlations: keeps what hardly varies from being blown up.
SHRINKAGE = 0.1
# Less than that share of a column's reach, or of its mean, is lost in single precision: such a column does not vary.
SMALLEST_SHARE, SMALLEST_OF_MEAN = 1e-15, 1e-7


class Encoded(NamedTuple):
    """A matrix of all rows; NaN where a number is missing."""

    x: NDArray[np.float64]
    """[n, F]"""
    numeric: NDArray[np.bool_]
    """[F]: numbers, and not the levels of a category."""
    names: tuple[str, ...]


class Scaling(NamedTuple):
    """What K models make of the matrix: `x · scale + shift`, after `fill` stood in for what is missing."""

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]
    fill: NDArray[np.float64] | None


def encode(table: Table) -> Encoded:
    """The matrix [n, F] of a table."""
    width = check_width(table)
    x = np.empty((len(table), width))
    names: list[str] = []
    numeric: list[bool] = []
    for column in sorted(table.columns, key=lambda column: column.levels is not None):
        if column.levels is None:
            x[:, len(names)] = _conditioned(column.values.astype(np.float64))
            names.append(column.name)
            numeric.append(True)
            continue
        codes = [*range(len(column.levels)), *([-1] if (column.values < 0).any() else [])]
        for code in codes:
            x[:, len(names)] = column.values == code
            names.append(f"{column.name}={'missing' if code < 0 else column.levels[code]}")
            numeric.append(False)
    x = x if len(names) == width else np.ascontiguousarray(x[:, : len(names)])
    return Encoded(x, np.array(numeric), tuple(names))


def check_width(table: Table) -> int:
    """How many columns the matrix has at most, if that is no mistake."""
    width = sum(1 if column.levels is None else len(column.levels) + 1 for column in table.columns)
    if width > WIDEST:
        raise InputError(f"{table.source or table.name}: {width} columns after encoding; {WIDEST} are the limit")
    check_cells(len(table), width, table.source or table.name, " after encoding")
    return width


def scaling(encoded: Encoded, parts: Sequence[NDArray[np.int64]]) -> Scaling:
    """Shift, scale and fill [K, F] from the training part of each of K models."""
    gaps = bool(np.isnan(encoded.x).any())
    rows = [_scaling_of(encoded, encoded.x[part], gaps) for part in parts]
    shift, scale, fill = (np.stack(found) for found in zip(*rows, strict=True))
    return Scaling(shift, scale, fill if gaps else None)


def decorrelation(encoded: Encoded, parts: Sequence[NDArray[np.int64]], scales: Scaling) -> NDArray[np.float64] | None:
    """Matrices [K, P, P] that make the P scaled numbers of each training part uncorrelated; None where that is no use.

    The symmetric root of the inverse of the shrunk correlations (ZCA): each column stays itself as far as possible.
    Levels of categories, which come after the numbers, are left alone.
    """
    numbers = int(encoded.numeric.sum())
    if not 2 <= numbers <= DECORRELATED:
        return None
    turns = np.empty((len(parts), numbers, numbers))
    for k, part in enumerate(parts):
        x = encoded.x[part, :numbers]
        if scales.fill is not None:
            x = np.where(np.isnan(x), scales.fill[k, :numbers], x)
        x = x * scales.scale[k, :numbers] + scales.shift[k, :numbers]
        correlation = (1.0 - SHRINKAGE) * (x.T @ x) / len(part) + SHRINKAGE * np.eye(numbers)
        values, vectors = np.linalg.eigh(correlation)
        turns[k] = (vectors / np.sqrt(values)) @ vectors.T
    return turns


def _scaling_of(encoded: Encoded, x: NDArray[np.float64], gaps: bool) -> tuple[NDArray[np.float64], ...]:
    fill = np.zeros(x.shape[1])
    if gaps:
        known = ~np.isnan(x).all(axis=0)
        fill[known] = np.nanmedian(x[:, known], axis=0)
        x = np.where(np.isnan(x), fill, x)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    varies = deviation > np.maximum(SMALLEST_SHARE, SMALLEST_OF_MEAN * np.abs(mean))
    scale = np.where(varies, 1.0 / np.where(varies, deviation, 1.0), 0.0)
    occurs = np.where(x.any(axis=0), 1.0, 0.0)
    scale = np.where(encoded.numeric, scale, occurs)
    return np.where(encoded.numeric, -mean * scale, 0.0), scale, fill


def _conditioned(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers near 0 of size at most 1, so that fp32 keeps their digits; a model's own scaling undoes it."""
    if np.nanmax(np.abs(values)) > 1e300:  # differences and squares of these overflow
        values = values * 1e-100
    middle = np.nanmedian(values)
    size = np.nanmax(np.abs(values - middle))
    return (values - middle) / size if size > 0 else values - middle
