"""Classification metrics against scikit-learn, temperatures against a grid, what is kept of folds."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from widemargin.metrics import classification as wmc
from widemargin.metrics.classification import METRICS, FoldEvaluator, FoldMetrics, fit_temperature, softmax


def random_case(seed, rows=40, num_classes=4, present=None, ties=False):
    """Classes drawn among the first `present` ones, and probabilities, on a coarse grid where ties are wanted."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, present or num_classes, rows)
    p = rng.dirichlet(np.full(num_classes, 0.7), rows)
    if ties:
        p = np.round(p * 4) + 0.25
    return y, p / p.sum(1, keepdims=True)


cases = st.builds(
    random_case,
    st.integers(0, 10_000),
    st.integers(1, 60),
    st.integers(2, 6),
    st.integers(1, 2),
    st.booleans(),
) | st.builds(random_case, st.integers(0, 10_000), st.integers(5, 60), st.integers(2, 6), st.none(), st.booleans())


@given(cases)
def test_metrics_are_scikit_learns(case):
    y, p = case
    found, answers, labels = wmc.compute_metrics(y, p), p.argmax(1), list(range(p.shape[1]))
    recalls = [np.mean(answers[y == c] == c) for c in np.unique(y)]
    assert found["accuracy"] == pytest.approx(100 * sk.accuracy_score(y, answers))
    assert found["balanced_accuracy"] == pytest.approx(100 * np.mean(recalls))
    assert found["macro_f1"] == pytest.approx(100 * sk.f1_score(y, answers, average="macro"))
    assert found["log_loss"] == pytest.approx(sk.log_loss(y, p, labels=labels), abs=1e-12)
    one_hot = np.eye(len(labels))[y]
    assert found["brier"] == pytest.approx(np.mean(((p - one_hot) ** 2).sum(1)), abs=1e-12)
    areas = [sk.roc_auc_score(y == c, p[:, c]) for c in labels if 0 < (y == c).sum() < len(y)]
    if len(labels) == 2:
        areas = areas[1:]
    assert found["roc_auc"] == pytest.approx(100 * np.mean(areas) if areas else math.nan, nan_ok=True)


@given(cases)
def test_the_calibration_error_by_its_formula(case):
    y, p = case
    top, right = p.max(1), p.argmax(1) == y
    expected = 0.0
    for k in range(15):
        there = (top > k / 15) & (top <= (k + 1) / 15)
        if there.any():
            expected += there.mean() * abs(top[there].mean() - right[there].mean())
    assert wmc.ece(y, p) == pytest.approx(expected, abs=1e-9)


def test_balanced_accuracy_with_all_classes_is_scikit_learns():
    y, p = random_case(3, 200)
    assert wmc.balanced_accuracy(y, p) == pytest.approx(100 * sk.balanced_accuracy_score(y, p.argmax(1)))


def test_multiclass_auc_is_scikit_learns():
    y, p = random_case(3, 200)
    assert wmc.roc_auc(y, p) == pytest.approx(100 * sk.roc_auc_score(y, p, multi_class="ovr", average="macro"))


def test_a_certain_mistake_has_a_finite_log_loss():
    assert wmc.log_loss([1], [[1.0, 0.0]]) == pytest.approx(-math.log(np.finfo(np.float64).eps))
    assert wmc.log_loss([1], [[0.0, 0.0]]) == pytest.approx(math.log(2))


def test_numbers_that_are_none_give_no_metric():
    y, p = np.array([0, 1]), np.array([[math.nan, math.nan], [0.5, 0.5]])
    assert all(math.isnan(wmc.compute_metrics(y, p)[name]) for name in ("log_loss", "roc_auc", "brier", "ece"))
    assert math.isnan(wmc.accuracy([], []))
    assert math.isnan(wmc.balanced_accuracy([], []))


def smoothed_log_loss(z, y, temperature):
    """The objective of the temperature: log loss with one more row, of uniform labels, spread over all rows."""
    log_p = z / temperature - np.logaddexp.reduce(z / temperature, axis=1)[:, None]
    return -(log_p[np.arange(len(y)), y].sum() + log_p.mean())


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 5), st.floats(0.05, 30))
def test_a_temperature_is_the_minimum_of_a_grid(seed, rows, num_classes, scale):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, num_classes, rows)
    z = scale * (rng.normal(size=(rows, num_classes)) + np.eye(num_classes)[y])
    found = fit_temperature(z, y)
    grid = np.geomspace(1e-3, 1e3, 400)
    best = min(smoothed_log_loss(z, y, t) for t in grid)
    assert 1e-3 <= found <= 1e3
    assert smoothed_log_loss(z, y, found) <= best + 1e-9 * abs(best)


def test_the_temperature_of_many_rows_is_the_one_they_were_drawn_with():
    rng = np.random.default_rng(0)
    z = 4 * rng.normal(size=(20_000, 3))
    y = (softmax(z, 2.5).cumsum(1) > rng.random((len(z), 1))).argmax(1)
    assert fit_temperature(z, y) == pytest.approx(2.5, rel=0.03)


@given(st.floats(0.01, 50))
def test_a_temperature_grows_with_the_scale_of_the_logits(scale):
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 30)
    z = rng.normal(size=(30, 3)) + 2 * np.eye(3)[y]
    assert fit_temperature(scale * z, y) == pytest.approx(scale * fit_temperature(z, y), rel=1e-6)


def test_temperatures_of_logits_without_a_minimum_are_sensible():
    y = np.array([0, 1, 2, 0])
    separated = fit_temperature(50.0 * np.eye(3)[y], y)
    confidence = softmax(50.0 * np.eye(3)[y], separated).max(1)
    assert confidence == pytest.approx((4 + 1 / 3) / 5)  # of 4 rows and one of uniform labels
    assert fit_temperature(np.ones((5, 3)), np.array([0, 1, 2, 0, 1])) == 1.0
    assert fit_temperature(np.eye(3)[y][:, [1, 2, 0]], y) == 1e3  # always wrong: as flat as may be
    one_class = fit_temperature(np.random.default_rng(0).normal(size=(20, 3)), np.zeros(20, np.int64))
    assert 0.1 < one_class <= 1e3
    assert fit_temperature(np.full((2, 3), math.nan), np.array([0, 1])) == 1.0
    assert fit_temperature(np.zeros((0, 3)), np.zeros(0, np.int64)) == 1.0
    assert wmc.fit_temperatures([(np.eye(3), np.arange(3)), (np.ones((2, 2)), np.array([0, 1]))])[1] == 1.0


@pytest.mark.parametrize("num_classes", [3, 61])
def test_the_folds_of_a_method_are_summed_up_and_kept_in_json(num_classes):
    evaluator, parts = FoldEvaluator(num_classes), [random_case(k, 300, num_classes) for k in range(2)]
    for y, p in parts:
        evaluator.add(y, p, uncalibrated=p**2 / (p**2).sum(1, keepdims=True), temperature=2.0)
    found = evaluator.evaluation()
    y, p = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    matrix = sk.confusion_matrix(y, p.argmax(1), labels=range(num_classes))
    assert found.metrics["log_loss"] == [wmc.log_loss(*part) for part in parts]
    assert list(found.support) == matrix.sum(1).tolist()
    assert list(found.predicted) == matrix.sum(0).tolist()
    assert list(found.hits) == matrix.diagonal().tolist()
    if num_classes == 3:
        assert np.array_equal(found.confusion(), matrix)
    else:
        assert found.confusion() is None
        assert len(found.mistakes) == 50
        np.fill_diagonal(matrix, 0)
        assert [count for _, _, count in found.mistakes] == sorted(matrix.ravel().tolist())[::-1][:50]
    assert found.reliability.ece == pytest.approx(wmc.ece(y, p))
    assert sum(found.uncalibrated.counts) == 600
    assert FoldMetrics.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found


def test_classes_as_scikit_learn_reports_them():
    y, p = random_case(5, 100, 3)
    evaluator = FoldEvaluator(3)
    evaluator.add(y, p)
    expected = np.array(sk.precision_recall_fscore_support(y, p.argmax(1)))
    rows = evaluator.evaluation().per_class()
    for c, row in enumerate(rows):
        assert [row["precision"], row["recall"], row["f1"]] == pytest.approx((100 * expected[:3, c]).tolist())
        assert row["support"] == expected[3, c]


def test_a_classifier_without_probabilities_has_the_metrics_of_its_answers():
    evaluator = FoldEvaluator(2)
    evaluator.add([0, 1, 1], None, [0, 1, 0])
    found = evaluator.evaluation()
    assert found.metrics["balanced_accuracy"] == [75.0]
    assert math.isnan(found.metrics["log_loss"][0])
    assert found.reliability is None
    read = FoldMetrics.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert math.isnan(read.metrics["roc_auc"][0])
    assert read.hits == (1, 1)
    assert set(found.metrics) == set(METRICS)
    with pytest.raises(ValueError, match="probabilities"):
        wmc.compute_metrics([0], None)


@pytest.mark.parametrize(
    "change",
    [
        {"support": [1]},
        {"support": [1, -1]},
        {"support": 5},
        {"mistakes": [[0, 7, 1]]},
        {"mistakes": [[0, 1]]},
        {"metrics": []},
        {"temperatures": [math.inf]},
        {"reliability": {"counts": [1], "confidence": [], "accuracy": []}},
        {"reliability": {"counts": [1], "confidence": [math.nan], "accuracy": [0.5]}},
        {"reliability": [1]},
    ],
)
def test_records_that_contradict_themselves_are_refused(change):
    evaluator = FoldEvaluator(2)
    evaluator.add([0, 1], [[0.2, 0.8], [0.3, 0.7]])
    record = evaluator.evaluation().to_dict()
    assert FoldMetrics.from_dict(record).support == (1, 1)
    with pytest.raises(ValueError):  # noqa: PT011
        FoldMetrics.from_dict({**record, **change})
