"""scikit-learn's classifiers on the same folds, scaled but not decorrelated, as points of reference.

By default a comparison runs all of them but the SVM: the majority class on every fold, the others on those of the first
repeat. Each has a budget of seconds for each table. Folds are run in order within the budget, at least three; if
one fold alone would take longer, the classifier is fitted to a stratified sample of its training rows (`max_fit_rows`).
The size of the sample depends on the shape of the table and not on the time taken: the results of a fold are the same
on every machine, and only the number of folds depends on time. Test parts are complete. A fit uses one thread.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.tabular.encode import EncodedTable, check_width, encode, scaling
from ..data.tabular.table import Table
from ..metrics.classification import FoldEvaluator
from .crossval import Partition, Score, stratified_sample
from .results import BASELINES, MAJORITY, MAX_TRAIN_ACCURACY_ROWS

DEFAULT_BASELINES = tuple(name for name in BASELINES if name != "svm")
"""Baselines that run by default."""
MIN_FOLDS = 3
"""Folds that are run regardless of the budget."""
MIN_FIT_ROWS = 2_000
"""Smallest number of rows of a sample."""
MIN_EARLY_STOPPING_ROWS = 2_000
"""Number of training rows from which the network is wider and uses early stopping."""
MAX_LOGISTIC_OPERATIONS = 10**11
"""Rows × columns × classes × iterations that logistic regression may take, but at least 100 iterations."""
MAX_TREES = 5_000
"""Trees of gradient boosting, one for each class and round, but at least 10 rounds."""


def max_fit_rows(table: Table, name: str, seconds: float) -> int | None:
    """Estimated number of rows to which a baseline can be fitted in `seconds`; None if all rows of the table are.

    >>> from widemargin.data.tabular.uci import load_uci_set
    >>> max_fit_rows(load_uci_set("iris"), "random_forest", seconds=60.0) is None
    True
    """
    if name == MAJORITY:
        return None
    columns, classes = check_width(table), len(table.class_names)
    if _estimate_seconds(name, len(table), columns, classes) <= seconds:
        return None
    low, high = 0, len(table)  # the estimate grows with the rows
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _estimate_seconds(name, middle, columns, classes) <= seconds else (low, middle)
    unit: int = 10 ** max(0, len(str(low)) - 2)  # two digits: it is an estimate
    return max(MIN_FIT_ROWS, low // unit * unit)


def _estimate_seconds(name: str, rows: int, columns: int, classes: int) -> float:
    """Seconds of one fit on one thread, measured on 2,000 to 200,000 rows of 20 to 100 columns and 2 to 26 classes."""
    if name == "logistic_regression":
        return 1.6e-7 * rows * columns * classes  # 100 iterations
    if name == "svm":
        return 2e-9 * rows**2 * columns
    if name == "random_forest":
        return 1.5e-5 * rows * math.log2(rows + 2) * math.sqrt(columns) * (1 + classes / 50)
    if name == "hist_gradient_boosting":
        trees = _boosting_rounds(classes) * (1 if classes == 2 else classes)
        return trees * (rows + 8_000) * (3e-7 + 9e-9 * columns)
    return 60 * rows * (6e-6 + 1e-8 * columns)  # mlp, 60 epochs: 15 to 160 were seen


def has_time_for_another_fold(num_folds: int, elapsed_seconds: float, seconds: float) -> bool:
    """Whether a fold that takes as long as the mean of those before it fits the budget; the first three always do.

    >>> [has_time_for_another_fold(folds, 50.0, seconds=60.0) for folds in (2, 4, 5, 6)]
    [True, False, True, True]
    """
    return num_folds < MIN_FOLDS or elapsed_seconds * (num_folds + 1) / num_folds <= seconds


def _boosting_rounds(num_classes: int) -> int:
    return max(10, min(100, MAX_TREES // num_classes))


# ---------------------------------------------------------------- classifiers


def _build_classifier(name: str, seed: int, num_columns: int, y: NDArray[np.int64]) -> Any:
    """The classifier for training rows of the classes `y`: scikit-learn's defaults but for what is set here.

    Rounds and iterations are bounded where classes or cells are many. Rows are held out to stop early only if every
    class can have one among them.
    """
    classes, counts = np.unique(y, return_counts=True)
    can_hold_out = bool(counts.min() > 1 and len(y) // 10 >= len(classes))
    if name == "logistic_regression":
        from sklearn.linear_model import LogisticRegression

        operations = len(y) * num_columns * len(classes)
        return LogisticRegression(max_iter=max(100, min(1000, MAX_LOGISTIC_OPERATIONS // operations)))
    if name == "svm":
        from sklearn.svm import SVC

        return SVC()
    if name == "random_forest":
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(random_state=seed)
    if name == "hist_gradient_boosting":
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(
            max_iter=_boosting_rounds(len(classes)),
            early_stopping="auto" if can_hold_out else False,  # from 10,000 rows on
            random_state=seed,
        )
    from sklearn.neural_network import MLPClassifier

    hidden = mlp_hidden(len(y))
    return MLPClassifier(
        hidden, early_stopping=can_hold_out and len(y) >= MIN_EARLY_STOPPING_ROWS, max_iter=200, random_state=seed
    )


def mlp_hidden(num_rows: int) -> tuple[int, ...]:
    """Widths of the network's hidden layers for so many training rows: scikit-learn's 100 units where they are many.

    >>> mlp_hidden(500), mlp_hidden(50_000)
    ((32, 16), (100,))
    """
    return (32, 16) if num_rows < MIN_EARLY_STOPPING_ROWS else (100,)


# ---------------------------------------------------------------- folds


def cross_validate_baseline(
    table: Table,
    name: str,
    split: Sequence[Partition],
    seed: int,
    on_progress: Callable[[float], None] | None = None,
    seconds: float = math.inf,
) -> Score:
    """Metrics of every fold, fold by fold, or of the first folds that `seconds` allow; no probabilities where a
    classifier gives none."""
    begun = time.perf_counter()
    encoded, num_classes = encode(table), len(table.class_names)
    max_rows = max_fit_rows(table, name, seconds) or len(table)
    shares = np.bincount(table.y, minlength=num_classes) / len(table)
    evaluator, train = FoldEvaluator(num_classes), []
    for k, part in enumerate(split):
        fit_rows = stratified_sample(part.training, table.y, max_rows, [seed, k, 5])
        train_rows = stratified_sample(part.training, table.y, MAX_TRAIN_ACCURACY_ROWS, [seed, k, 4])
        predict_rows, present = np.concatenate((part.test, train_rows)), np.unique(table.y[fit_rows])
        if name == MAJORITY:  # of the table: that of a training part is by its nature the rarer one in its test part
            answers = np.full(len(predict_rows), shares.argmax())
            probabilities: NDArray[np.float64] | None = np.tile(shares, (len(predict_rows), 1))
        elif len(present) == 1:  # a classifier refuses to learn one class; its answer is that class
            answers = np.full(len(predict_rows), present[0])
            probabilities = np.eye(num_classes)[answers]
        else:
            model = _build_classifier(name, seed + k, encoded.x.shape[1], table.y[fit_rows])
            answers, probabilities = _fit_predict(model, encoded, table.y, part.training, fit_rows, predict_rows)
            if probabilities is not None:  # of the classes that were there to learn from
                probabilities = probabilities @ np.eye(num_classes)[present]
        right, tested = answers == table.y[predict_rows], slice(len(part.test))
        evaluator.add(table.y[part.test], None if probabilities is None else probabilities[tested], answers[tested])
        train.append(float(right[len(part.test) :].mean() * 100.0))
        is_last = not has_time_for_another_fold(len(train), time.perf_counter() - begun, seconds)
        if on_progress is not None:
            on_progress((len(split) - k if is_last else 1) / len(split))
        if is_last:
            break
    evaluation = evaluator.evaluation()
    return Score(evaluation.metrics["accuracy"], {}, time.perf_counter() - begun, train, evaluation)


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
    from threadpoolctl import threadpool_limits

    shift, scale, fill = scaling(encoded, [training])

    def scaled_rows(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        x = encoded.x[rows] if fill is None else np.where(np.isnan(encoded.x[rows]), fill[0], encoded.x[rows])
        scaled: NDArray[np.float64] = x * scale[0] + shift[0]
        return scaled

    # Gradient boosting takes every core otherwise, also those of the jobs beside it.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # the number of iterations is fixed, converged or not
        model.fit(scaled_rows(fit_rows), y[fit_rows])
        x = scaled_rows(predict_rows)
        return model.predict(x), model.predict_proba(x) if hasattr(model, "predict_proba") else None
