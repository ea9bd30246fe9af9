"""A table as one matrix, numbers first, and each model's own scaling of it, from its training part alone.

Numbers are centred, scaled and decorrelated, missing ones replaced by the median; categories become
one column per level, missing ones a level of their own. A column that does not vary in a training part,
or a level that does not occur there, is switched off for that model: nothing was learned about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...io.errors import InputError
from .table import Column, Table, check_cells

# More columns than that are a mistake in the file sooner than a table, and each is a row of weights per model.
MAX_ENCODED_COLUMNS = 50_000
# Correlations of more numbers than that are mostly noise in tables of ordinary length, and a matrix per model.
MAX_DECORRELATED_COLUMNS = 128
# Share of the identity in the correlations: keeps what hardly varies from being blown up.
SHRINKAGE = 0.1
# Less than that share of a column's reach, or of its mean, is lost in single precision: such a column does not vary.
MIN_STD_TO_RANGE, MIN_STD_TO_MEAN = 1e-15, 1e-7


# Columns of less weight than that are left out of the projection of a wide table.
MIN_RELEVANCE = 1e-3


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
    for name, values, is_numeric in feature_columns(table.columns):
        x[:, len(names)] = _rescale_for_float32(values.astype(np.float64)) if is_numeric else values
        names.append(name)
        numeric.append(is_numeric)
    x = x if len(names) == width else np.ascontiguousarray(x[:, : len(names)])
    return EncodedTable(x, np.array(numeric), tuple(names))


def feature_columns(
    columns: Sequence[Column], has_missing: Mapping[str, bool] | None = None
) -> Iterator[tuple[str, NDArray[Any], bool]]:
    """Name, values and whether they are numbers of every column of the matrix: numbers, then one column per level.

    `has_missing` says of which categories a missing value is a level; by default those with missing values.
    """
    for column in sorted(columns, key=lambda column: column.levels is not None):
        if column.levels is None:
            yield column.name, column.values, True
            continue
        missing = (column.values == -1).any() if has_missing is None else has_missing[column.name]
        for code in (*range(len(column.levels)), *([-1] if missing else [])):
            name = f"{column.name}={'missing' if code < 0 else column.levels[code]}"
            yield name, column.values == code, False


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


def projection(
    encoded: EncodedTable,
    y: NDArray[np.int64],
    num_classes: int,
    train_rows: Sequence[NDArray[np.int64]],
    scales: Scaling,
    screening: float,
    max_components: int,
) -> NDArray[np.float64]:
    """Matrices [K, F, P] for wide tables: columns weighted by their relevance, then principal components.

    Args:
        screening: exponent of the weights `column_relevance`; 0 leaves the columns as they are.
        max_components: P at most; there are never more than training rows or columns. The scores of all components
            together have variance F, as standardised columns have.
    """
    matrices = []
    for k, part in enumerate(train_rows):
        x = encoded.x[part]
        if scales.fill is not None:
            x = np.where(np.isnan(x), scales.fill[k], x)
        x = x * scales.scale[k] + scales.shift[k]
        weights = column_relevance(x, y[part], num_classes) ** screening if screening else np.ones(x.shape[1])
        matters = weights > MIN_RELEVANCE  # most columns of a screened table do not, and cost most of the time
        axes = _principal_axes(x[:, matters] * weights[matters], max_components)
        matrix = np.zeros((x.shape[1], axes.shape[1]))
        matrix[matters] = weights[matters, None] * axes
        matrices.append(matrix)
    width = max(matrix.shape[1] for matrix in matrices)
    return np.stack([np.pad(matrix, ((0, 0), (0, width - matrix.shape[1]))) for matrix in matrices])


def _principal_axes(x: NDArray[np.float64], max_components: int) -> NDArray[np.float64]:
    """Axes [F, P] of the largest variance, scaled so that the scores have variance 1 on average."""
    rows, columns = x.shape
    count = min(max_components, rows, columns)
    if rows < columns:
        values, vectors = np.linalg.eigh(x @ x.T)
        axes = x.T @ vectors[:, ::-1][:, :count]
        axes /= np.maximum(np.linalg.norm(axes, axis=0), np.finfo(np.float64).tiny)
    else:
        values, vectors = np.linalg.eigh(x.T @ x)
        axes = vectors[:, ::-1][:, :count]
    values = np.maximum(values[::-1][:count], 0.0)
    # Beyond the rank of the matrix, which is centred, axes are what rounding left of them.
    axes = np.where(values > max(x.shape) * np.finfo(np.float64).eps * values[:1], axes, 0.0)
    variance = float(values.sum()) / (rows * count)
    scaled: NDArray[np.float64] = axes / np.sqrt(variance) if variance > 0 else axes
    return scaled


def column_relevance(x: NDArray[np.float64], y: NDArray[np.int64], num_classes: int) -> NDArray[np.float64]:
    """Weights [F] from 0 to 1: the probability that a column's mean differs between classes.

    One minus the local false discovery rate of the columns' F-tests (B. Efron et al., JASA 96, 2001), with Grenander's
    estimate of the density of p-values (K. Strimmer, BMC Bioinformatics 9, 2008). Where few columns differ, the many
    others get weights near 0; where most do, all weights are near 1.

    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(200) % 2
    >>> x = rng.standard_normal((200, 500)) + np.where(np.arange(500) < 5, 1.0, 0.0) * y[:, None]
    >>> weights = column_relevance(x, y, 2)
    >>> bool(weights[:5].min() > 0.9), bool(weights[5:].mean() < 0.1)
    (True, True)
    """
    from scipy.special import fdtrc
    from sklearn.isotonic import isotonic_regression

    rows, columns = x.shape
    counts = np.bincount(y, minlength=num_classes)
    present = counts > 0
    groups = int(present.sum())
    if groups < 2 or rows <= groups:
        return np.ones(columns)
    one_hot = np.zeros((num_classes, rows))
    one_hot[y, np.arange(rows)] = 1.0
    mean = x.mean(axis=0)
    class_means = (one_hot @ x)[present] / counts[present, None]
    between = (counts[present, None] * (class_means - mean) ** 2).sum(axis=0)
    within = np.maximum(((x - mean) ** 2).sum(axis=0) - between, 0.0)
    varies = between + within > 0
    ratio = np.zeros(columns)
    tiny = np.finfo(np.float64).tiny
    with np.errstate(over="ignore"):  # no variance within the classes: infinite
        ratio[varies] = (between[varies] / (groups - 1)) / np.maximum(within[varies] / (rows - groups), tiny)
    p = fdtrc(groups - 1, rows - groups, ratio)
    unrelated = min(1.0, 2.0 * float((p > 0.5).mean()) + 1.0 / columns)  # J. D. Storey, JRSS B 64, 2002
    order = np.argsort(p, kind="stable")
    gaps = np.maximum(np.diff(p[order], prepend=0.0), 1e-12)
    density = isotonic_regression(1.0 / (columns * gaps), sample_weight=gaps, increasing=False)
    relevance = np.empty(columns)
    relevance[order] = np.maximum(0.0, 1.0 - unrelated / density)
    if not relevance.any():  # nothing stands out: no reason to prefer any column
        return np.ones(columns)
    return relevance


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
