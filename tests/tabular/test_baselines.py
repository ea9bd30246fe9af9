"""scikit-learn's classifiers as baselines: the same folds, a sample of many rows, the majority class of the table."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_tables import number_column, table_of
from widemargin.data.tabular.uci import load_uci_set
from widemargin.tabular import baselines
from widemargin.tabular.baselines import cross_validate_baseline, max_fit_rows
from widemargin.tabular.crossval import Partition, partitions
from widemargin.tabular.results import BASELINES, MAJORITY


def test_baselines_are_fitted_to_a_sample_of_many_rows_and_tested_on_all(monkeypatch):
    draw = np.random.default_rng(0)
    y = draw.permutation(np.arange(600) % 3)
    table = table_of([number_column(y + draw.normal(0, 0.7, 600), f"x{k}") for k in range(3)], y)
    split = partitions(y, 1, 4, 0)
    whole = cross_validate_baseline(table, "logistic_regression", split, 0)
    monkeypatch.setattr(baselines, "max_fit_rows", lambda *given: 60)
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


@pytest.mark.slow
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


def noisy_table(num_rows, num_classes=3, num_columns=4, seed=0):
    draw = np.random.default_rng(seed)
    y = draw.permutation(np.arange(num_rows) % num_classes)
    return table_of([number_column(y + draw.normal(0, 1, num_rows), f"x{k}") for k in range(num_columns)], y)


@pytest.mark.parametrize("name", ["hist_gradient_boosting", "mlp"])
def test_boosting_and_the_network_are_scikit_learns(name):
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = noisy_table(2300)
    split = partitions(table.y, 1, 10, 0)[:2]
    x = np.stack([column.values for column in table.columns], axis=1)
    wanted = []
    for k, part in enumerate(split):
        model = (
            MLPClassifier(early_stopping=True, random_state=7 + k)
            if name == "mlp"
            else HistGradientBoostingClassifier(random_state=7 + k)
        )
        fitted = make_pipeline(StandardScaler(), model).fit(x[part.training], table.y[part.training])
        wanted.append(100 * fitted.score(x[part.test], table.y[part.test]))
    assert cross_validate_baseline(table, name, split, 7).folds == pytest.approx(wanted, abs=0.9)  # two rows of 230


@pytest.mark.parametrize("name", ["hist_gradient_boosting", "mlp"])
def test_a_class_of_one_row_does_not_end_early_stopping_in_an_error(name):
    """scikit-learn holds out rows of every class to stop early, and refuses a class that has but one."""
    y = np.r_[np.arange(12_000) % 2, 2, 2]
    table = table_of([number_column(np.random.default_rng(0).normal(y, 1))], y)
    split = [Partition(np.r_[np.arange(11_000), 12_000], np.r_[np.arange(11_000, 12_000), 12_001])]
    (accuracy,) = cross_validate_baseline(table, name, split, 0).folds
    assert 55 < accuracy < 85


class FakeClock:
    """Seconds that pass with every fit and at no other time."""

    def __init__(self, monkeypatch, seconds_per_fit):
        self.now, self.fits = 0.0, 0
        monkeypatch.setattr(baselines.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(baselines, "_fit_predict", self.fit_predict)
        self.seconds_per_fit = seconds_per_fit

    def fit_predict(self, model, encoded, y, training, fit_rows, predict_rows):
        self.now += self.seconds_per_fit
        self.fits += 1
        return y[predict_rows], None


@given(seconds=st.floats(0.01, 1000), each=st.floats(0.01, 100), num_folds=st.integers(2, 20))
def test_folds_are_run_in_order_while_the_budget_lasts(seconds, each, num_folds):
    table = load_uci_set("iris")
    split = partitions(table.y, 1, num_folds, 0)
    progress = []
    with pytest.MonkeyPatch.context() as patch:
        clock = FakeClock(patch, each)
        patch.setattr(baselines, "max_fit_rows", lambda *given: None)
        score = cross_validate_baseline(table, "svm", split, 0, progress.append, seconds)
        every = cross_validate_baseline(table, "svm", split, 0)
    assert len(every.folds) == num_folds
    count = len(score.folds)
    assert count == len(score.train) == clock.fits - num_folds
    assert score.folds == every.folds[:count]
    assert count >= min(3, num_folds)
    tolerance = 1e-9 * seconds
    assert count <= 3 or count * each <= seconds + tolerance
    assert count == num_folds or (count + 1) * each > seconds - tolerance  # no time is left unused
    assert sum(progress) == pytest.approx(1.0)


@pytest.mark.slow
def test_numbers_of_a_fold_do_not_depend_on_the_time():
    table = noisy_table(400)
    split = partitions(table.y, 1, 5, 0)
    for name in BASELINES:
        short, long = (cross_validate_baseline(table, name, split, 0, seconds=s) for s in (0.01, 1000.0))
        assert 3 <= len(short.folds) <= 5
        assert long.folds[: len(short.folds)] == short.folds


def test_rows_of_a_fit_follow_from_the_shape_of_the_table():
    draw = np.random.default_rng(0)
    for _ in range(30):
        rows, columns, classes = (int(n) for n in draw.integers((3_000, 1, 2), (400_000, 60, 8)))
        column = number_column(np.zeros(rows))
        table = table_of([column] * columns, np.arange(rows) % classes)
        for name in (name for name in BASELINES if name != MAJORITY):
            few, more = (max_fit_rows(table, name, seconds) for seconds in (1.0, 30.0))
            assert few is None or 2_000 <= few <= rows
            assert few is None or not set(str(few)[2:]) - {"0"}
            assert more is None or (few is not None and few <= more < rows)
            assert max_fit_rows(table, name, math.inf) is None
            if few is not None and few > 2_000:
                assert baselines._estimate_seconds(name, few, columns, classes) <= 1.0
                assert baselines._estimate_seconds(name, 1.11 * few, columns, classes) > 1.0
    assert max_fit_rows(table, MAJORITY, 1e-9) is None


def test_large_tables_are_judged_by_many_of_their_rows():
    """Two hundred thousand rows of thirty columns in a minute, but for what would take several."""
    table = table_of([number_column(np.zeros(200_000))] * 30, np.arange(200_000) % 2)
    rows = {name: max_fit_rows(table, name, 60.0) for name in BASELINES}
    assert rows["logistic_regression"] is None
    assert rows["hist_gradient_boosting"] is None
    assert rows["mlp"] >= 150_000
    assert rows["random_forest"] > 40_000
    assert rows["svm"] > 20_000


def test_a_fit_takes_one_thread_whatever_there_are(monkeypatch):
    from threadpoolctl import threadpool_info, threadpool_limits

    seen = []

    class Watcher:
        def fit(self, x, y):
            seen.extend(library["num_threads"] for library in threadpool_info())

        def predict(self, x):
            return np.zeros(len(x))

    import sklearn.ensemble  # noqa: F401  loads OpenMP

    monkeypatch.setattr(baselines, "_build_classifier", lambda *given: Watcher())
    table = load_uci_set("iris")
    with threadpool_limits(2):
        cross_validate_baseline(table, "hist_gradient_boosting", partitions(table.y, 1, 2, 0), 0)
        assert {library["num_threads"] for library in threadpool_info()} == {2}
    assert set(seen) == {1}


def test_many_classes_bound_the_number_of_trees():
    y = np.repeat(np.arange(200), 3)
    assert baselines._build_classifier("hist_gradient_boosting", 0, 5, y).max_iter == 25
    assert baselines._build_classifier("hist_gradient_boosting", 0, 5, y % 3).max_iter == 100
