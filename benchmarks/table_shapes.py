"""Tables of many shapes to evaluate the default settings of `compare`: thirteen generated ones, and three real ones.

A generated table is drawn for every seed, with separate test rows from the same distribution, so that the noise of a
small test part does not decide. Seeds 0 to 4 are for developing rules, 100 to 104 for reporting, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from widemargin.data.tabular.load import load_table
from widemargin.data.tabular.table import Column, Table

TUNING_SEEDS, REPORT_SEEDS = tuple(range(5)), tuple(range(100, 105))
REAL_SETS = ("digits", "wine", "breast_cancer")
REAL_FOLDS = 5


@dataclass(frozen=True)
class TableSplit:
    """A table with its training and test rows."""

    table: Table
    training: NDArray[np.int64]
    test: NDArray[np.int64]

    def features(self) -> NDArray[np.float64]:
        """Return all rows as a matrix, for estimators; columns must be numeric."""
        return np.stack([column.values for column in self.table.columns], axis=1).astype(np.float64, copy=False)


@dataclass(frozen=True)
class TableShape:
    """Size and kind of a generated table; `rows` are the training rows."""

    rows: int
    columns: int
    classes: int
    draw: Callable[[TableShape, int, np.random.Generator], tuple[list[Column], NDArray[np.int64]]]
    informative: int = 10
    clusters: int = 1
    """Gaussian clusters per class."""
    separation: float = 1.0
    label_noise: float = 0.01
    """Fraction of rows with a random class."""
    weights: tuple[float, ...] | None = None
    """Fractions of the classes; equal by default."""

    @property
    def test_rows(self) -> int:
        """Number of test rows: enough for a standard error below half a point."""
        return 20_000 if self.rows >= 50_000 else 10_000 if self.columns < 500 else 4_000


def _gaussian_clusters(
    shape: TableShape, count: int, rng: np.random.Generator
) -> tuple[list[Column], NDArray[np.int64]]:
    """Clusters on corners of a hypercube, scikit-learn's `make_classification`; half of the rest is redundant."""
    from sklearn.datasets import make_classification

    redundant = min(shape.informative // 2, shape.columns - shape.informative)
    x, y = make_classification(
        count,
        shape.columns,
        n_informative=shape.informative,
        n_redundant=redundant,
        n_classes=shape.classes,
        n_clusters_per_class=shape.clusters,
        class_sep=shape.separation,
        flip_y=shape.label_noise,
        weights=None if shape.weights is None else list(shape.weights),
        random_state=int(rng.integers(1 << 31)),
    )
    return [Column(f"x{place}", x[:, place].copy()) for place in range(shape.columns)], y.astype(np.int64)


def _axis_rules(shape: TableShape, count: int, rng: np.random.Generator) -> tuple[list[Column], NDArray[np.int64]]:
    """Classes by thresholds on single columns, from a decision tree of depth 6; suits trees."""
    x = rng.standard_normal((count, shape.columns))
    leaf = np.zeros(count, np.int64)
    depth = 6
    features = rng.integers(shape.informative, size=(1 << depth) - 1)
    thresholds = rng.normal(0.0, 0.5, size=(1 << depth) - 1)
    for level in range(depth):
        node = (1 << level) - 1 + leaf
        leaf = 2 * leaf + (x[np.arange(count), features[node]] > thresholds[node])
    y = rng.integers(shape.classes, size=1 << depth)[leaf]
    return [Column(f"x{place}", x[:, place].copy()) for place in range(shape.columns)], _noisy(y, shape, rng)


def _categories(shape: TableShape, count: int, rng: np.random.Generator) -> tuple[list[Column], NDArray[np.int64]]:
    """Half numbers, half categories of 3 to 12 levels and 2 % missing; logits of main effects and pairs."""
    half = shape.columns // 2
    numbers = rng.standard_normal((count, shape.columns - half))
    logits = 1.2 * np.tanh(numbers) @ rng.standard_normal((numbers.shape[1], shape.classes))
    columns = [Column(f"x{place}", numbers[:, place].copy()) for place in range(numbers.shape[1])]
    codes = []
    for place in range(half):
        levels = int(rng.integers(3, 13))
        code = rng.choice(levels, size=count, p=rng.dirichlet(np.full(levels, 2.0)))
        logits += rng.standard_normal((levels, shape.classes))[code]
        codes.append((code, levels))
        values = np.where(rng.random(count) < 0.02, -1, code).astype(np.int64)
        columns.append(Column(f"c{place}", values, tuple(f"level {k:02}" for k in range(levels))))
    for (a, num_a), (b, num_b) in zip(codes[::2], codes[1::2], strict=False):
        logits += 1.5 * rng.standard_normal((num_a, num_b, shape.classes))[a, b]
    gumbel = rng.gumbel(size=logits.shape)
    return columns, np.asarray((2.0 * logits + gumbel).argmax(1), np.int64)


def _smooth_curves(shape: TableShape, count: int, rng: np.random.Generator) -> tuple[list[Column], NDArray[np.int64]]:
    """Classes by the largest of smooth random functions of a few columns with different scales and skews."""
    x = rng.standard_normal((count, shape.columns))
    inner = np.tanh(x[:, : shape.informative] @ rng.standard_normal((shape.informative, 32)) / 1.5)
    y = (inner @ rng.standard_normal((32, shape.classes))).argmax(1)
    skewed = np.where(np.arange(shape.columns) % 3 == 0, np.exp(x), x) * 10.0 ** rng.uniform(-3, 3, shape.columns)
    return [Column(f"x{place}", skewed[:, place].copy()) for place in range(shape.columns)], _noisy(y, shape, rng)


def _noisy(y: NDArray[np.int64], shape: TableShape, rng: np.random.Generator) -> NDArray[np.int64]:
    is_noisy = rng.random(len(y)) < shape.label_noise
    return np.where(is_noisy, rng.integers(shape.classes, size=len(y)), y).astype(np.int64)


SHAPES: dict[str, TableShape] = {
    "tiny": TableShape(200, 5, 2, _gaussian_clusters, informative=4, clusters=2, label_noise=0.05),
    "wide_tiny": TableShape(200, 2_000, 2, _gaussian_clusters, informative=20, separation=2.0),
    "small": TableShape(2_000, 20, 3, _gaussian_clusters, informative=8, clusters=3),
    "wide": TableShape(2_000, 1_000, 10, _gaussian_clusters, informative=20, separation=1.5),
    "categories": TableShape(3_000, 12, 4, _categories),
    "unbalanced": TableShape(
        5_000, 15, 5, _gaussian_clusters, informative=8, clusters=2, weights=(0.8, 0.1, 0.05, 0.03, 0.02)
    ),
    "noisy": TableShape(5_000, 50, 2, _gaussian_clusters, informative=5, clusters=2, label_noise=0.3),
    "rules": TableShape(10_000, 20, 6, _axis_rules, informative=6, label_noise=0.05),
    "hundred_classes": TableShape(10_000, 40, 100, _gaussian_clusters, informative=25),
    "wide_large": TableShape(10_000, 2_000, 4, _gaussian_clusters, informative=30, clusters=2),
    "fifty_classes": TableShape(20_000, 30, 50, _gaussian_clusters, informative=20),
    "large": TableShape(100_000, 50, 10, _gaussian_clusters, informative=20, clusters=4),
    "largest": TableShape(200_000, 100, 5, _smooth_curves, informative=12, label_noise=0.05),
}


def draw_splits(name: str, seed: int) -> list[TableSplit]:
    """Return the splits of a table by name: one of a generated table, five folds of a real one."""
    if name in REAL_SETS:
        return _real_splits(name, seed)
    return [draw_shape(name, SHAPES[name], list(SHAPES).index(name), seed)]


def draw_shape(name: str, shape: TableShape, place: int, seed: int) -> TableSplit:
    """Draw a table of this shape; every `place` and seed gives another one."""
    rng = np.random.default_rng([20_261_118, place, seed])
    count = shape.rows + shape.test_rows
    columns, y = shape.draw(shape, count, rng)
    classes, y = np.unique(y, return_inverse=True)
    table = Table(name, tuple(columns), y.astype(np.int64), tuple(f"class {k:03}" for k in classes))
    order = rng.permutation(count)
    return TableSplit(table, np.sort(order[: shape.rows]), np.sort(order[shape.rows :]))


def _real_splits(name: str, seed: int) -> list[TableSplit]:
    from sklearn import datasets

    from widemargin.tabular.crossval import partitions

    bunch = getattr(datasets, f"load_{name}")()
    table = load_table((bunch.data, bunch.target), target_is_class=True, default_name=name)
    return [
        TableSplit(table, part.training, part.test) for part in partitions(table.y, 1, REAL_FOLDS, seed, stratify=True)
    ]


def take_rows(table: Table, rows: NDArray[np.int64]) -> Table:
    """Return the table with these rows only; its classes are unchanged."""
    columns = tuple(Column(column.name, column.values[rows], column.levels) for column in table.columns)
    return Table(table.name, columns, table.y[rows], table.class_names, table.notes, table.source)
