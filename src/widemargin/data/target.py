"""The column of classes: which one, its labels, the rows that cannot be learnt from, and when it holds no classes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .cells import LABEL_MISSING, missing, number, several, shown
from .grid import Cells, Grid
from .table import class_order, codes

QUANTITY_VALUES, QUANTITY_SHARE = 50, 0.2


@dataclass(frozen=True, eq=False)
class Labels:
    """Classes of the rows to keep."""

    place: int
    keep: list[int]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    notes: list[str]


def labels(grid: Grid, target: str | None) -> Labels:
    """Find the target and its classes; an error if what it holds is no classes."""
    place = len(grid.names) - 1 if target is None else _place(grid, target)
    column = f"{grid.file}: column {shown(grid.names[place])}"
    remedy = "; name the column of classes with --target" if target is None else ""
    words = _words(grid.columns[place])
    keep = [row for row, word in enumerate(words) if not missing(word, LABEL_MISSING)]
    if not keep:
        raise InputError(f"{column} has no label in any row{remedy}")
    notes = []
    if len(keep) < len(words):
        without = next(row for row, word in enumerate(words) if missing(word, LABEL_MISSING))
        count = len(words) - len(keep)
        rows = f"{count:,} rows without a label (the first is row" if count > 1 else "a row without a label (row"
        notes.append(f"left out {rows} {grid.lines[without]})")
    sizes = Counter(words[row] for row in keep)
    _check_classes(column, sizes, len(keep), remedy)
    single = [name for name, size in sizes.items() if size == 1]
    if single:
        keep = [row for row in keep if sizes[words[row]] > 1]
        what = f"the {len(single)} classes" if len(single) > 1 else "the class"
        notes.append(f"left out {what} with a single row: {several(single)}")
    classes = class_order(words[row] for row in keep)
    if len(classes) < 2:
        only = f"only the class {several(classes)}" if classes else "no class"
        more = " with two rows or more" if single else ""
        raise InputError(f"{column} has {only}{more}; at least two classes are needed{remedy}")
    return Labels(place, keep, codes([words[row] for row in keep], classes), classes, notes)


def _place(grid: Grid, target: str) -> int:
    wanted = target.strip()
    if wanted in grid.names:
        return grid.names.index(wanted)
    lowered = {name.lower(): name for name in grid.names}
    near = get_close_matches(wanted.lower(), lowered, n=1, cutoff=0.5)
    hint = f"; did you mean {shown(lowered[near[0]])}?" if near else ""
    raise InputError(f"{grid.file}: no column {shown(target)}{hint} (its columns: {several(grid.names, most=12)})")


def _words(cells: Cells) -> Sequence[str]:
    """Labels as words; whole numbers of a binary file without a decimal point."""
    if not isinstance(cells, np.ndarray):
        return cells
    return [_word(value) for value in cells.tolist()]


def _word(value: int | float) -> str:
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else str(int(value)) if value.is_integer() else str(value)


def _check_classes(column: str, sizes: Counter[str], rows: int, remedy: str) -> None:
    """Refuse quantities and ids."""
    values = [number(name) for name in sizes]
    if len(sizes) > QUANTITY_VALUES and len(sizes) > QUANTITY_SHARE * rows:
        numbers = [value for value in values if value is not None]
        if len(numbers) > 0.9 * len(values) and any(value != np.floor(value) for value in numbers):
            what = f"{len(sizes):,} different numbers in {rows:,} rows"
            raise InputError(f"{column} looks like a quantity, not classes ({what}){remedy}")
    if len(sizes) > max(1, rows * 2 / 3):
        raise InputError(
            f"{column} has {len(sizes):,} different labels in {rows:,} rows, so these are no classes{remedy}"
        )
