"""scikit-learn's classifiers on the same folds, scaled but not decorrelated, as points of reference.

They are fitted to at most FIT_ROWS rows of a training part; test parts are whole. By default a comparison runs the
majority class on all folds, and logistic regression and a random forest on the first few (`quick_folds`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .crossval import Partition, Score, sample
from .data.encode import Encoded, encode, scaling
from .data.table import Table
from .results import MAJORITY, TRAIN_ROWS

FIT_ROWS = 20_000
"""A baseline is fitted to at most so many rows."""
QUICK = (MAJORITY, "logistic_regression", "random_forest")
"""What runs by default."""
QUICK_ROWS = 100_000
"""Training rows of all folds together that a quick baseline is fitted to, but three folds at the least."""
LOGISTIC_WORK = 10**11
"""Rows × columns × classes × iterations that logistic regression may take, but 100 iterations at the least."""


def quick_folds(rows: int, folds: int) -> int:
    """On how many folds of the first run a quick baseline is run: all of them up to 10,000 rows, 5 from 20,000 on.

    >>> [quick_folds(rows, folds=10) for rows in (150, 11_000, 20_000, 1_000_000)]
    [10, 10, 5, 5]
    """
    fitted = min(FIT_ROWS, rows * (folds - 1) // folds)
    return min(folds, max(3, QUICK_ROWS // max(fitted, 1)))


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


# Each with scikit-learn's defaults; the network has 32 and 16 hidden units and 200 epochs. The majority needs none.
_CLASSIFIERS: dict[str, Callable[[int], Any]] = {
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
    folds, train = [], []
    for k, part in enumerate(split):
        fitted = sample(part.training, table.y, FIT_ROWS, [seed, k, 5])
        seen = sample(part.training, table.y, TRAIN_ROWS, [seed, k, 4])
        asked, present = np.concatenate((part.test, seen)), np.unique(table.y[fitted])
        if name == MAJORITY:  # of the table: that of a training part is by its nature the rarer one in its test part
            answers = np.full(len(asked), np.bincount(table.y).argmax())
        elif len(present) == 1:  # a classifier refuses to learn one class; its answer is that class
            answers = np.full(len(asked), present[0])
        else:
            model = _classifier(name, seed + k, len(fitted) * encoded.x.shape[1] * len(present))
            answers = _answers(model, encoded, table.y, part.training, fitted, asked)
        right = answers == table.y[asked]
        folds.append(float(right[: len(part.test)].mean() * 100.0))
        train.append(float(right[len(part.test) :].mean() * 100.0))
        if told is not None:
            told(1.0 / len(split))
    return Score(folds, {}, time.perf_counter() - begun, train)


def _classifier(name: str, seed: int, work: int) -> Any:
    """The classifier; `work` is rows × columns × classes, which an iteration of logistic regression goes through."""
    model = _CLASSIFIERS[name](seed)
    if name == "logistic_regression":
        model.set_params(max_iter=max(100, min(model.max_iter, LOGISTIC_WORK // work)))
    return model


def _answers(
    model: Any,
    encoded: Encoded,
    y: NDArray[np.int64],
    training: NDArray[np.int64],
    fitted: NDArray[np.int64],
    asked: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Predicted classes of the rows `asked`, by a model of the rows `fitted` in the scaling of the training part."""
    shift, scale, fill = scaling(encoded, [training])

    def numbers(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        x = encoded.x[rows] if fill is None else np.where(np.isnan(encoded.x[rows]), fill[0], encoded.x[rows])
        scaled: NDArray[np.float64] = x * scale[0] + shift[0]
        return scaled

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the iterations are the protocol, converged or not
        model.fit(numbers(fitted), y[fitted])
    found: NDArray[np.int64] = model.predict(numbers(asked))
    return found
