"""ROC curves, AUC, EER, TAR at a FAR and accuracy over folds: against scikit-learn and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sk_roc

from metric_cases import scored_pairs
from widemargin.io.errors import InputError
from widemargin.metrics.roc import auc, best_threshold, eer, fold_accuracies, roc_curve, tar_at
from widemargin.metrics.verification import threshold_at_far, verification_metrics


@pytest.mark.parametrize("digits", [None, 1])  # without and with ties
def test_roc_and_auc_are_scikit_learns(digits):
    scores, same = scored_pairs(digits=digits)
    far, tar, thresholds = sk_roc(same, scores, drop_intermediate=False)
    roc = roc_curve(scores, same)
    np.testing.assert_allclose(roc.far, far, atol=1e-12)
    np.testing.assert_allclose(roc.tar, tar, atol=1e-12)
    np.testing.assert_allclose(roc.thresholds[1:], thresholds[1:])
    assert auc(roc) == pytest.approx(roc_auc_score(same, scores), abs=1e-12)


def test_eer_is_where_the_curve_meets_the_diagonal():
    scores, same = scored_pairs(2000)
    roc = roc_curve(scores, same)
    value = eer(roc)
    tar = np.interp(value, roc.far, roc.tar)
    assert value == pytest.approx(1 - tar, abs=2e-3)
    assert eer(roc_curve(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, True, False, False]))) == 0.0
    assert eer(roc_curve(np.array([0.0, 1.0]), np.array([True, False]))) == 1.0


def test_tar_at_far_by_hand():
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    same = np.array([True, False, True, True, False, False])
    roc = roc_curve(scores, same)
    assert [tar_at(roc, far) for far in (0.0, 0.34, 0.7, 1.0)] == pytest.approx([1 / 3, 1.0, 1.0, 1.0])
    assert threshold_at_far(scores, same, 0.34) == 0.6
    assert threshold_at_far(scores, same, 0.0) == 0.9


def test_fold_accuracy_chooses_the_threshold_elsewhere():
    scores, same = scored_pairs(1000)
    folds = np.arange(1000) % 10
    found = fold_accuracies(scores, same, folds)
    for fold in range(10):
        rest = folds != fold
        best = max(((scores[rest] >= t) == same[rest]).mean() for t in [*scores[rest], np.inf])
        threshold = best_threshold(scores[rest], same[rest])
        assert ((scores[rest] >= threshold) == same[rest]).mean() == pytest.approx(best)
        assert found[fold] == ((scores[~rest] >= threshold) == same[~rest]).mean()
    result = verification_metrics(scores, same, folds)
    assert result.accuracy == pytest.approx(100 * found.mean())


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
def test_figures_of_any_pairs_stay_within_their_bounds(rows):
    scores, same = np.array([float(s) for s, _ in rows]), np.array([k for _, k in rows])
    if same.all() or not same.any():
        with pytest.raises(InputError, match="both kinds"):
            verification_metrics(scores, same)
        return
    roc = roc_curve(scores, same)
    assert (np.diff(roc.far) >= 0).all()
    assert (np.diff(roc.tar) >= 0).all()
    assert 0 <= eer(roc) <= 1
    assert auc(roc) == pytest.approx(roc_auc_score(same, scores))
    flipped = roc_curve(-scores, same)
    assert auc(flipped) == pytest.approx(1 - auc(roc))
