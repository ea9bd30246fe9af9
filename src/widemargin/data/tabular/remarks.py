"""Remarks on a table that change nothing: columns that predict the class by themselves, and duplicate rows.

A column that gives the class away is often one that was written after the class was known, such as a code of the
outcome; a comparison on it compares nothing. Whether it is one, the table cannot tell: only who made it.

A rule is learnt on one half of the rows and checked on the other, copies of rows left out. For a category it is the
class that most rows of a level have, for numbers that of the nearest number. All columns are tried on 4,000 rows, and
those that pass on up to 40,000, so that a table of 200,000 rows and 100 columns takes about a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .table import Column, join_names

MIN_ROWS = 200
"""Rows from which a rule can be checked: with fewer, numbers that differ between classes predict them by chance."""
MIN_ROWS_COPY, MIN_CLASS_ROWS_COPY = 50, 5
"""Rows of the table and of each class from which a column with one value for each class is remarked."""
MAX_ERROR = 0.001
MAX_ERROR_TO_BASELINE = 0.05
"""Errors of a rule at most, as a share of those that guessing the largest class makes."""
_MAX_ROWS = 40_000
_PROBE_ROWS, _MAX_PROBE_ERROR = 4000, 0.02


def find_remarks(columns: Sequence[Column], y: NDArray[np.int64]) -> list[str]:
    """Notes on columns that predict the class by themselves and on duplicate rows."""
    notes = []
    duplicates = find_duplicates(columns, y)
    leaks = find_leaks(columns, y, duplicates.is_copy)
    if leaks:
        one = len(leaks) == 1
        verb, question = ("predicts the class by itself", "is it") if one else ("each predict the class", "are they")
        notes.append(
            f"{join_names(leaks)} {verb}, in at least 99.9 % of the rows that were not used to find the rule; "
            f"{question} known before the class is?"
        )
    copies, contradicting = int(duplicates.is_copy.sum()), int(duplicates.is_contradicted.sum())
    if copies:
        rows = f"{copies:,} rows are copies" if copies > 1 else "a row is a copy"
        other = f" ({contradicting:,} rows are equal to one of another class)" if contradicting else ""
        notes.append(
            f"{rows} of an earlier row in all columns but the class{other}; "
            "copies can be in the training and the test part of a fold at once"
        )
    return notes


# ---------------------------------------------------------------- columns that predict the class


def find_leaks(columns: Sequence[Column], y: NDArray[np.int64], is_copy: NDArray[np.bool_] | None = None) -> list[str]:
    """Names of the columns from each of which alone the class follows; `is_copy` marks rows that are not looked at.

    Where fewer than 200 rows are left, only columns with one value for each class are found.

    >>> y = np.arange(400) % 2
    >>> find_leaks([Column("outcome", y * 3.0), Column("x", np.arange(400.0) % 7)], y)
    ['outcome']
    """
    rows = np.arange(len(y)) if is_copy is None else np.flatnonzero(~is_copy)
    if len(rows) < MIN_ROWS:
        sizes = np.bincount(y)
        enough = len(y) >= MIN_ROWS_COPY and bool(sizes[sizes > 0].min() >= MIN_CLASS_ROWS_COPY)
        return [column.name for column in columns if enough and _has_value_per_class(column, y)]
    rows = np.random.default_rng(0).permutation(rows)[:_MAX_ROWS]
    probe = rows[:_PROBE_ROWS] if len(rows) > 2 * _PROBE_ROWS else None
    return [column.name for column in columns if _predicts_class(column, y, rows, probe)]


def _predicts_class(
    column: Column, y: NDArray[np.int64], rows: NDArray[np.int64], probe: NDArray[np.int64] | None
) -> bool:
    if probe is not None:
        errors = _rule_errors(column, y, probe[::2], probe[1::2], ignore_new=True)
        if errors > _MAX_PROBE_ERROR * len(probe[1::2]):
            return False
    checked = rows[1::2]
    errors = _rule_errors(column, y, rows[::2], checked)
    baseline = len(checked) - int(np.bincount(y[checked]).max())
    return baseline > 0 and errors <= min(MAX_ERROR * len(checked), MAX_ERROR_TO_BASELINE * baseline)


def _has_value_per_class(column: Column, y: NDArray[np.int64]) -> bool:
    """Whether every class has one value of its own."""
    values = column.values
    if np.isnan(values).any() if column.levels is None else (values < 0).any():
        return False
    different, codes = np.unique(values, return_inverse=True)
    num_classes = len(np.unique(y))
    return len(different) == num_classes == len(np.unique(codes * (int(y.max()) + 1) + y))


def _rule_errors(
    column: Column,
    y: NDArray[np.int64],
    learnt: NDArray[np.int64],
    checked: NDArray[np.int64],
    *,
    ignore_new: bool = False,
) -> int:
    """Wrong answers on the checked rows of the best rule for the learnt ones; new words there are wrong too."""
    if column.levels is None:
        predicted = _nearest_class(column.values, y, learnt, checked)
        return int((predicted != y[checked]).sum())
    num_classes, num_levels = int(y.max()) + 1, len(column.levels) + 1  # missing is a level
    if num_levels * num_classes > max(1 << 16, 16 * len(y)):
        return len(checked)
    codes = column.values.astype(np.int64) + 1
    counts = np.bincount(codes[learnt] * num_classes + y[learnt], minlength=num_levels * num_classes)
    table = counts.reshape(num_levels, num_classes)
    is_new = table.sum(axis=1)[codes[checked]] == 0
    wrong = table.argmax(axis=1)[codes[checked]] != y[checked]
    return int((wrong & ~is_new).sum() if ignore_new else (wrong | is_new).sum())


def _nearest_class(
    values: NDArray[np.float64] | NDArray[np.int64],
    y: NDArray[np.int64],
    learnt: NDArray[np.int64],
    checked: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The class of the nearest value among the learnt rows; of equal ones that of most, missing is a value too."""
    known = np.nan_to_num(values.astype(np.float64), nan=np.inf)
    num_classes = int(y.max()) + 1
    order = learnt[np.argsort(known[learnt], kind="stable")]
    different, starts = np.unique(known[order], return_index=True)
    groups = np.repeat(np.arange(len(different)), np.diff(np.r_[starts, len(order)]))
    pairs, counts = np.unique(groups * num_classes + y[order], return_counts=True)
    best = np.lexsort((-counts, pairs // num_classes))
    _, first = np.unique(pairs[best] // num_classes, return_index=True)
    classes: NDArray[np.int64] = pairs[best][first] % num_classes
    wanted = known[checked]
    above = np.clip(np.searchsorted(different, wanted), 0, len(different) - 1)
    below = np.maximum(above - 1, 0)
    with np.errstate(invalid="ignore", over="ignore"):
        is_below_nearer = np.abs(wanted - different[below]) < np.abs(different[above] - wanted)
    return classes[np.where(is_below_nearer, below, above)]


# ---------------------------------------------------------------- duplicate rows


class Duplicates(NamedTuple):
    """Which rows are equal to others in all columns; the class is none of them."""

    is_copy: NDArray[np.bool_]
    """Equal to an earlier row."""
    is_contradicted: NDArray[np.bool_]
    """Equal to a row of another class."""


def find_duplicates(columns: Sequence[Column], y: NDArray[np.int64]) -> Duplicates:
    """The rows that are equal to others.

    >>> found = find_duplicates([Column("x", np.array([1.0, 2.0, 1.0, 1.0]))], np.array([0, 0, 0, 1]))
    >>> found.is_copy.tolist(), found.is_contradicted.tolist()
    ([False, False, True, True], [True, False, True, True])
    """
    duplicates = Duplicates(np.zeros(len(y), dtype=bool), np.zeros(len(y), dtype=bool))
    hashes = np.zeros(len(y), dtype=np.uint64)
    for column in columns:
        hashes = _mix(hashes ^ _column_bits(column))
    order = np.argsort(hashes, kind="stable")
    is_start = np.r_[True, hashes[order][1:] != hashes[order][:-1]]
    firsts = order[is_start][np.cumsum(is_start) - 1]  # for each row the earliest one with its hash
    rows, twins = order[~is_start], firsts[~is_start]
    equal = np.ones(len(rows), dtype=bool)
    for column in columns if len(rows) else ():  # equal hashes are equal rows almost surely; this makes it sure
        bits = _column_bits(column)
        equal &= bits[rows] == bits[twins]
    rows, twins = rows[equal], twins[equal]
    duplicates.is_copy[rows] = True
    has_two_classes = np.zeros(len(y), dtype=bool)
    has_two_classes[twins[y[rows] != y[twins]]] = True
    duplicates.is_contradicted[rows] = has_two_classes[twins]
    duplicates.is_contradicted[twins] = has_two_classes[twins]
    return duplicates


def _column_bits(column: Column) -> NDArray[np.uint64]:
    """Values as whole numbers that are equal where the values are: 0 and −0, and all missing numbers."""
    values = column.values
    if column.levels is None:
        values = np.where(np.isnan(values), np.nan, values + 0.0)
    return np.ascontiguousarray(values).view(np.uint64)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Bits spread over the whole word, as the generator SplitMix64 does it."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (bits ^ (bits >> np.uint64(31))) + np.uint64(0x9E3779B97F4A7C15)
