"""Small tables made of columns, for tests."""

import numpy as np

from widemargin.data.tabular.table import Column, Table


def number_column(values, name="x"):
    return Column(name, np.asarray(values, dtype=np.float64))


def category_column(words, name="c"):
    """Codes of words; None is missing."""
    levels = tuple(sorted({word for word in words if word is not None}))
    places = {None: -1, **{level: place for place, level in enumerate(levels)}}
    return Column(name, np.array([places[word] for word in words]), levels)


def table_of(columns, y=None, classes=2, name="made"):
    y = np.arange(len(columns[0])) % classes if y is None else np.asarray(y)
    return Table(name, tuple(columns), y.astype(np.int64), tuple("abcdefgh"[: int(y.max()) + 1]))


def mixed_table(count=60, seed=0, gaps=True):
    """Three numbers, two categories, three classes; something is missing in each kind."""
    draw = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = draw.standard_normal((count, 3)) + np.eye(3)[y]
    words = [("red", "green", "blue")[k] if draw.random() < 0.7 else "grey" for k in y]
    other = [("p", "q")[draw.integers(2)] for _ in y]
    if gaps:
        x[draw.random(x.shape) < 0.1] = np.nan
        words = [None if draw.random() < 0.1 else word for word in words]
    numbers = [number_column(x[:, k], f"x{k}") for k in range(3)]
    return table_of([numbers[0], category_column(words, "colour"), *numbers[1:], category_column(other, "other")], y)
