"""What `MarginClassifier.fit` is given, checked and as numbers: X and y, and the weights of rows and classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, column_or_1d, validate_data

from ..data.label_sets import rarest_labels
from ..data.tabular.encoder import TableEncoder, needs_encoder
from ..data.tabular.read import are_codes, is_quantity
from ..data.tabular.table import check_cells
from ..io.errors import InputError, format_value
from .multilabel import read_indicators

_VALIDATION = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan", "accept_sparse": "csr"}


class TrainingData(NamedTuple):
    """Rows and their classes."""

    x: Any
    """Matrix [n, F], dense or sparse."""
    codes: NDArray[np.int64]
    """Class of each row, as its place in `classes`; of rows with several labels the rarest."""
    classes: NDArray[Any]
    encoder: TableEncoder | None
    """What made a matrix of a DataFrame with more than numbers."""
    indicators: NDArray[np.bool_] | None
    """[n, C], if rows have several labels."""
    sample_weight: NDArray[np.float64] | None


def validate_matrix(estimator: BaseEstimator, X: Any, y: Any = None, *, reset: bool = True) -> Any:
    """X, or X and y, as scikit-learn validates them; NaN and sparse matrices are allowed."""
    if y is None:
        return validate_data(estimator, X, reset=reset, **_VALIDATION)
    return validate_data(estimator, X, y, reset=reset, **_VALIDATION)


def read_training_data(
    estimator: BaseEstimator, X: Any, y: Any, sample_weight: Any, *, is_multilabel: bool
) -> TrainingData:
    """Check X, y and weights, and set `n_features_in_` and `feature_names_in_` of the estimator.

    Rows of weight 0 are left out.
    """
    encoder = None
    if needs_encoder(X):
        encoder = TableEncoder().fit(X)
        x: Any = encoder.transform(X)
        estimator.n_features_in_, estimator.feature_names_in_ = encoder.n_features_in_, encoder.feature_names_in_
        if not is_multilabel:
            y = column_or_1d(y, warn=True)
            check_consistent_length(X, y)
    elif is_multilabel:
        x = validate_matrix(estimator, X)
    else:
        x, y = validate_data(estimator, X, y, **_VALIDATION)
    num_rows, num_columns = x.shape
    check_cells(num_rows, num_columns, "X", " (TruncatedSVD makes fewer)" if hasattr(x, "toarray") else "")
    indicators = None
    if is_multilabel:
        classes, indicators = read_indicators(y, num_rows)
        codes = rarest_labels(torch.from_numpy(indicators)).numpy()
    else:
        _check_no_missing_labels(y)
        _check_not_regression_target(y)
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
    weights = None
    if sample_weight is not None:
        weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        rows = np.flatnonzero(weights > 0)
        if len(rows) < len(weights):
            x, codes, weights = x[rows], codes[rows], weights[rows]
            indicators = None if indicators is None else indicators[rows]
    return TrainingData(x, codes, classes, encoder, indicators, weights)


def combine_weights(
    class_weight: Any,
    sample_weight: NDArray[np.float64] | None,
    codes: NDArray[np.int64],
    classes: NDArray[Any],
    is_multilabel: bool,
) -> torch.Tensor | None:
    """Weights of the rows by `sample_weight` and `class_weight`; None if all are equal."""
    if class_weight is None and sample_weight is None:
        return None
    weights = np.ones(len(codes)) if sample_weight is None else sample_weight.copy()
    if class_weight is not None:
        if is_multilabel:
            raise InputError("class_weight needs one label per row; use sample_weight")
        if class_weight != "balanced" and not isinstance(class_weight, Mapping):
            raise InputError(f'class_weight must be "balanced", a dict or None, got {format_value(class_weight)}')
        weights *= compute_sample_weight(class_weight, classes[codes])
    if len(np.unique(codes[weights > 0])) < (1 if is_multilabel else 2):
        raise InputError("fewer than two classes have rows with a weight above 0; at least two are needed")
    return torch.from_numpy(weights)


def _check_no_missing_labels(y: NDArray[Any]) -> None:
    """Refuse None and NaN among labels of other types, which NumPy cannot sort; scikit-learn refuses NaN in numbers."""
    if y.dtype.kind != "O":
        return
    missing = [row for row, label in enumerate(y.tolist()) if label is None or _is_nan(label)]
    if missing:
        raise InputError(f"y has {len(missing)} missing labels, the first in row {missing[0]}; leave these rows out")


def _is_nan(label: Any) -> bool:
    return isinstance(label, float) and math.isnan(label)


def _check_not_regression_target(y: NDArray[Any]) -> None:
    """Refuse whole numbers that look like a quantity; scikit-learn refuses fractional ones."""
    if y.dtype.kind not in "iuf" or (y != np.floor(y)).any():
        return
    different, counts = np.unique(y, return_counts=True)
    values = different.astype(np.float64)
    # Codes of classes that have hardly two rows each, as in a part of a split, occur once by chance.
    few_each = are_codes(values) and 1.5 * len(values) <= len(y) < 4 * len(values)
    if is_quantity(values, counts) and not few_each:
        raise InputError(
            f"y looks like a number to be predicted ({len(values):,} different values in {len(y):,} rows), not "
            "like classes; bin it first, or pass y.astype(str) if these are classes"
        )
