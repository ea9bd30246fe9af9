"""scikit-learn's classifiers on the same folds, scaled but not decorrelated, as points of reference.

They are fitted to at most `MAX_FIT_ROWS` rows of a training part; test parts are whole. By default a comparison runs
the majority class on all folds, and logistic regression and a random forest on the first few (`quick_folds`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.tabular.encode import EncodedTable, encode, scaling
from ..data.tabular.table import Table
from ..metrics.classification import FoldEvaluator
from .crossval import Partition, Score, stratified_sample
from .results import MAJORITY, MAX_TRAIN_ACCURACY_ROWS

MAX_FIT_ROWS = 20_000
"""A baseline is fitted to at most so many rows."""
QUICK_BASELINES = (MAJORITY, "logistic_regression", "random_forest")
"""What runs by default."""
QUICK_TOTAL_FIT_ROWS = 100_000
"""Training rows of all folds together that a quick baseline is fitted to, but three folds at the least."""
MAX_LOGISTIC_OPERATIONS = 10**11
"""Rows × columns × classes × iterations that logistic regression may take, but 100 iterations at the least."""


def quick_folds(num_rows: int, folds: int) -> int:
    """On how many folds of the first repeat a quick baseline is run: all of them up to 10,000 rows, 5 from 20,000 on.

    >>> [quick_folds(rows, folds=10) for rows in (150, 11_000, 20_000, 1_000_000)]
    [10, 10, 5, 5]
    """
    fitted = min(MAX_FIT_ROWS, num_rows * (folds - 1) // folds)
    return min(folds, max(3, QUICK_TOTAL_FIT_ROWS // max(fitted, 1)))


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
    table: Table, name: str, split: Sequence[Partition], seed: int, on_progress: Callable[[float], None] | None = None
) -> Score:
    """Metrics of every fold, fold by fold; without probabilities for a classifier that gives none."""
    begun = time.perf_counter()
    encoded, num_classes = encode(table), len(table.class_names)
    shares = np.bincount(table.y, minlength=num_classes) / len(table)
    evaluator, train = FoldEvaluator(num_classes), []
    for k, part in enumerate(split):
        fit_rows = stratified_sample(part.training, table.y, MAX_FIT_ROWS, [seed, k, 5])
        train_rows = stratified_sample(part.training, table.y, MAX_TRAIN_ACCURACY_ROWS, [seed, k, 4])
        predict_rows, present = np.concatenate((part.test, train_rows)), np.unique(table.y[fit_rows])
        if name == MAJORITY:  # of the table: that of a training part is by its nature the rarer one in its test part
            answers = np.full(len(predict_rows), shares.argmax())
            probabilities: NDArray[np.float64] | None = np.tile(shares, (len(predict_rows), 1))
        elif len(present) == 1:  # a classifier refuses to learn one class; its answer is that class
            answers = np.full(len(predict_rows), present[0])
            probabilities = np.eye(num_classes)[answers]
        else:
            model = _build_classifier(name, seed + k, len(fit_rows) * encoded.x.shape[1] * len(present))
            answers, probabilities = _fit_predict(model, encoded, table.y, part.training, fit_rows, predict_rows)
            if probabilities is not None:  # of the classes that were there to learn from
                probabilities = probabilities @ np.eye(num_classes)[present]
        right, tested = answers == table.y[predict_rows], slice(len(part.test))
        evaluator.add(table.y[part.test], None if probabilities is None else probabilities[tested], answers[tested])
        train.append(float(right[len(part.test) :].mean() * 100.0))
        if on_progress is not None:
            on_progress(1.0 / len(split))
    evaluation = evaluator.evaluation()
    return Score(evaluation.metrics["accuracy"], {}, time.perf_counter() - begun, train, evaluation)


def _build_classifier(name: str, seed: int, operations_per_iteration: int) -> Any:
    """The classifier; an iteration of logistic regression takes rows × columns × classes operations."""
    model = _CLASSIFIERS[name](seed)
    if name == "logistic_regression":
        model.set_params(max_iter=max(100, min(model.max_iter, MAX_LOGISTIC_OPERATIONS // operations_per_iteration)))
    return model


def _fit_predict(
    model: Any,
    encoded: EncodedTable,
    y: NDArray[np.int64],
    training: NDArray[np.int64],
    fit_rows: NDArray[np.int64],
    predict_rows: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """Predicted classes and probabilities (None for a model without) of `predict_rows`, by a model fitted to `fit_rows`
    in the scaling of the training part."""
    shift, scale, fill = scaling(encoded, [training])

    def scaled_rows(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        x = encoded.x[rows] if fill is None else np.where(np.isnan(encoded.x[rows]), fill[0], encoded.x[rows])
        scaled: NDArray[np.float64] = x * scale[0] + shift[0]
        return scaled

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the number of iterations is fixed, converged or not
        model.fit(scaled_rows(fit_rows), y[fit_rows])
    x = scaled_rows(predict_rows)
    return model.predict(x), model.predict_proba(x) if hasattr(model, "predict_proba") else None
