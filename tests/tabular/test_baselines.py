"""scikit-learn's classifiers as baselines: the same folds, a sample of many rows, the majority class of the table."""

import numpy as np
import pytest

from small_tables import number_column, table_of
from widemargin.data.tabular.uci import load_uci_set
from widemargin.tabular import baselines
from widemargin.tabular.baselines import cross_validate_baseline
from widemargin.tabular.crossval import Partition, partitions
from widemargin.tabular.results import BASELINES, MAJORITY


def test_baselines_are_fitted_to_a_sample_of_many_rows_and_tested_on_all(monkeypatch):
    draw = np.random.default_rng(0)
    y = draw.permutation(np.arange(600) % 3)
    table = table_of([number_column(y + draw.normal(0, 0.7, 600), f"x{k}") for k in range(3)], y)
    split = partitions(y, 1, 4, 0)
    whole = cross_validate_baseline(table, "logistic_regression", split, 0)
    monkeypatch.setattr(baselines, "MAX_FIT_ROWS", 60)
    fitted, answers = [], baselines._fit_predict
    monkeypatch.setattr(baselines, "_fit_predict", lambda *given: fitted.append(given[4]) or answers(*given))
    few = cross_validate_baseline(table, "logistic_regression", split, 0)
    assert [len(rows) for rows in fitted] == [60] * 4
    assert all(set(rows) <= set(part.training) for rows, part in zip(fitted, split, strict=True))
    assert few.folds != whole.folds
    assert np.mean(few.folds) == pytest.approx(np.mean(whole.folds), abs=6)
    right = [fold / 100 * len(part.test) for fold, part in zip(few.folds, split, strict=True)]
    assert right == pytest.approx(np.round(right))  # of all rows of the test part


def test_the_majority_class_is_that_of_the_table():
    y = np.random.default_rng(0).permutation(np.repeat([0, 1], [149, 151]))
    table = table_of([number_column(np.arange(300) % 7)], y)
    score = cross_validate_baseline(table, MAJORITY, partitions(y, 3, 10, 0), 0)
    assert np.mean(score.folds) == pytest.approx(100 * 151 / 300)  # no less, as a training part's majority would have
    assert np.mean(score.train) == pytest.approx(100 * 151 / 300, abs=0.01)
    few = [Partition(np.arange(100), np.arange(100, 130))]
    assert cross_validate_baseline(table, MAJORITY, few, 0).folds == [100 * np.mean(y[100:130])]


def test_training_accuracy_of_baselines_and_the_first_folds():
    table = load_uci_set("iris")
    split = partitions(table.y, 2, 5, 0)
    for name in BASELINES:
        every, first = (cross_validate_baseline(table, name, part, 0) for part in (split, split[:3]))
        assert first.folds == every.folds[:3]
        assert first.train == every.train[:3]
    assert cross_validate_baseline(table, "random_forest", split[:2], 0).train == [100.0, 100.0]


def test_baselines_are_scikit_learns_on_the_same_folds():
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    table = load_uci_set("iris")
    split = partitions(table.y, 1, 5, 0)
    x = np.stack([column.values for column in table.columns], axis=1)
    wanted = []
    for part in split:
        model = make_pipeline(StandardScaler(), SVC()).fit(x[part.training], table.y[part.training])
        wanted.append(100 * model.score(x[part.test], table.y[part.test]))
    assert cross_validate_baseline(table, "svm", split, 0).folds == pytest.approx(wanted)
    forest = [cross_validate_baseline(table, "random_forest", split[:2], seed).folds for seed in (0, 0)]
    assert forest[0] == forest[1]
