"""scikit-learn's classifiers on the same folds, scaled but not decorrelated, as points of reference."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .crossval import Partition, Score
from .data.encode import encode, scaling
from .data.table import Table


def _logistic_regression(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000)


def _svm(seed: int) -> Any:
    from sklearn.svm import SVC

    return SVC()


def _random_forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(random_state=seed)


def _mlp(seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((32, 16), max_iter=200, random_state=seed)


# Each with scikit-learn's defaults; the network has 32 and 16 hidden units and 200 epochs.
BASELINES: dict[str, Callable[[int], Any]] = {
    "logistic_regression": _logistic_regression,
    "svm": _svm,
    "random_forest": _random_forest,
    "mlp": _mlp,
}


def cross_validate_baseline(
    table: Table, name: str, split: Sequence[Partition], seed: int, told: Callable[[float], None] | None = None
) -> Score:
    """Accuracy in percent of every fold, fold by fold."""
    begun = time.perf_counter()
    encoded = encode(table)
    shift, scale, fill = scaling(encoded, [part.training for part in split])
    folds = []
    for k, part in enumerate(split):
        x = encoded.x if fill is None else np.where(np.isnan(encoded.x), fill[k], encoded.x)
        x = x * scale[k] + shift[k]
        present = np.unique(table.y[part.training])
        if len(present) == 1:  # a classifier refuses to learn one class; its answer is that class
            predicted = np.full(len(part.test), present[0])
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # 200 epochs are the protocol, converged or not
                model = BASELINES[name](seed + k).fit(x[part.training], table.y[part.training])
            predicted = model.predict(x[part.test])
        folds.append(float((predicted == table.y[part.test]).mean() * 100.0))
        if told is not None:
            told(1.0 / len(split))
    return Score(folds, {}, time.perf_counter() - begun)
