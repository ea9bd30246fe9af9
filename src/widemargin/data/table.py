"""A table as numbers and codes: what every file and data set becomes before anything learns from it.

Nothing here scales, imputes or encodes: those need statistics, and statistics belong to the training
part of a split alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cells import parse_number


@dataclass(frozen=True, eq=False)
class Column:
    """One feature: numbers (`levels` is None, NaN where missing) or categories (codes, −1 where missing)."""

    name: str
    values: NDArray[np.float64] | NDArray[np.int64]
    levels: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class Table:
    """Features and classes of one data set; `notes` say in a sentence each what was left out or handled."""

    name: str
    columns: tuple[Column, ...]
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    source: str = ""

    def __len__(self) -> int:
        return len(self.y)


def class_order(names: Iterable[str]) -> tuple[str, ...]:
    """Different names in their order: as numbers if all of them are, else by the alphabet.

    >>> class_order(["10", "9", "-1", "9"]), class_order(["b", "10", "a"])
    (('-1', '9', '10'), ('10', 'a', 'b'))
    """
    different = sorted(set(names))
    values = [parse_number(name) for name in different]
    if any(value is None for value in values):
        return tuple(different)
    return tuple(name for _, name in sorted(zip(values, different, strict=True), key=lambda pair: pair[0] or 0.0))


def encode_levels(words: Sequence[str], levels: tuple[str, ...]) -> NDArray[np.int64]:
    """The place of each word among the levels; −1 for words that are not among them."""
    place = {level: code for code, level in enumerate(levels)}
    return np.array([place.get(word, -1) for word in words], dtype=np.int64)
