"""Targets of several labels per row: 0 and 1 [n, C], dense or sparse, or a list of label sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..io.errors import InputError, format_value


def is_multilabel_target(y: Any) -> bool:
    """Whether `y` gives each row any number of labels: two dimensions with several columns, or label sets."""
    shape = getattr(y, "shape", None)
    if shape is not None:
        return len(shape) == 2 and shape[1] > 1
    if not isinstance(y, list | tuple) or not y:
        return False
    if any(isinstance(row, set | frozenset) for row in y):
        return True
    return all(isinstance(row, list | tuple | np.ndarray) for row in y) and not all(len(row) == 1 for row in y)


def read_indicators(
    y: Any, num_rows: int | None, classes: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The classes and which of them each row has, booleans [n, C]; `classes` are those of `fit`.

    >>> classes, found = read_indicators([{"a"}, {"b", "a"}, set()], 3)
    >>> classes.tolist(), found.astype(int).tolist()
    (['a', 'b'], [[1, 0], [1, 1], [0, 0]])
    """
    if hasattr(y, "to_numpy"):
        y = y.to_numpy()
    elif hasattr(y, "toarray"):
        y = y.toarray()
    if _are_label_sets(y):
        classes, found = _encode_sets(y, classes)
    else:
        try:
            values = np.asarray(y)
        except ValueError:
            values = np.empty(0)
        if values.ndim != 2 or values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
            raise InputError("several labels per row are 0 and 1 for each class, [n, C], or a list of sets of labels")
        found, given = values.astype(np.bool_), classes
        classes = np.arange(values.shape[1]) if given is None else given
        if len(classes) != values.shape[1]:
            raise InputError(f"y has {values.shape[1]} columns, but {len(classes)} labels in fit")
    if num_rows is not None and len(found) != num_rows:
        raise InputError(f"X has {num_rows} rows, y has {len(found)}")
    if num_rows is not None and len(classes) < 2:
        raise InputError(f"y has {len(classes)} label; at least two are needed")
    return classes, found


def _are_label_sets(y: Any) -> bool:
    """Whether rows are collections of labels, not of 0 and 1."""
    if isinstance(y, np.ndarray) and y.ndim == 2:
        return False
    rows = list(y)
    if any(isinstance(row, set | frozenset) for row in rows):
        return True
    return len({len(row) for row in rows}) > 1 or any(isinstance(part, str) for row in rows for part in row)


def _encode_sets(y: Any, classes: NDArray[Any] | None) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    rows = [set(row) for row in y]
    if classes is None:
        try:
            classes = np.array(sorted(set().union(*rows)))
        except TypeError:
            raise InputError("labels have several types; use one type") from None
    place = {label: k for k, label in enumerate(classes.tolist())}
    found = np.zeros((len(rows), len(classes)), np.bool_)
    for k, row in enumerate(rows):
        for label in row:
            if label not in place:
                raise InputError(f"row {k} of y: the label {format_value(label)} was not among those of fit")
            found[k, place[label]] = True
    return classes, found
