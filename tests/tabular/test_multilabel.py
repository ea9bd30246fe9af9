"""MarginClassifier with several labels per row, by scikit-learn's conventions."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import accuracy_score, average_precision_score
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.multiclass import type_of_target

import widemargin as wm

X, Y = make_multilabel_classification(240, 10, n_classes=4, random_state=0)
NAMES = ["ant", "bee", "cat", "dog"]


def quick_classifier(loss: str = "bce", **changes) -> wm.MarginClassifier:
    return wm.MarginClassifier(loss, **{"epochs": 1, "min_steps": 150, "random_state": 0, "hidden": (16, 8), **changes})


@pytest.mark.parametrize("loss", ["bce", "focal"])
def test_predictions_are_indicators_and_probabilities_sigmoids(loss):
    model = quick_classifier(loss).fit(X[:160], Y[:160])
    predicted, probabilities = model.predict(X[160:]), model.predict_proba(X[160:])
    assert type_of_target(predicted) == "multilabel-indicator"
    assert predicted.shape == probabilities.shape == model.decision_function(X[160:]).shape == (80, 4)
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-model.decision_function(X[160:]))), rtol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(X[160:]), np.log(probabilities), rtol=1e-9)
    assert np.array_equal(predicted, probabilities > 0.5)
    assert model.score(X[160:], Y[160:]) == accuracy_score(Y[160:], predicted)
    assert (
        average_precision_score(Y[160:], probabilities)
        > average_precision_score(Y[160:], np.tile(Y.mean(0), (80, 1))) + 0.15
    )
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert model.predict(X[:1]).shape == (1, 4)


def test_label_sets_sparse_and_dense_targets_give_the_same_model():
    wanted = quick_classifier().fit(X, Y).predict_proba(X[:5])
    sets = [{NAMES[k] for k in np.flatnonzero(row)} for row in Y]
    by_name = quick_classifier().fit(X, sets)
    assert by_name.classes_.tolist() == NAMES
    assert by_name.score(X, sets) == by_name.score(X, Y)
    lists = [sorted(row) for row in sets]
    for y in (lists, sparse.csr_matrix(Y), Y.astype(bool), Y.tolist(), torch.from_numpy(Y)):
        np.testing.assert_array_equal(quick_classifier().fit(X, y).predict_proba(X[:5]), wanted)
    np.testing.assert_array_equal(by_name.predict_proba(X[:5]), wanted)


def test_early_stopping_wide_tables_and_cross_validation():
    model = quick_classifier(early_stopping=True, max_components=3, screening=1.0).fit(X, Y)
    assert 0 <= model.best_validation_score_ <= 1
    assert len(cross_val_score(quick_classifier(), X, Y, cv=3, scoring="average_precision")) == 3


def test_one_label_losses_and_wrong_targets_are_one_line():
    with pytest.raises(wm.InputError, match=r"arcgrad.*bce or focal"):
        quick_classifier("arcgrad(s=5)").fit(X, Y)
    with pytest.raises(wm.InputError, match="0 and 1"):
        quick_classifier().fit(X, 2 * Y)
    with pytest.raises(wm.InputError, match="240 rows, y has 100"):
        quick_classifier().fit(X, Y[:100])
    model = quick_classifier().fit(X, [{NAMES[k] for k in np.flatnonzero(row)} for row in Y])
    with pytest.raises(wm.InputError, match="'elk' was not among"):
        model.score(X[:1], [{"elk"}])
    with pytest.raises(wm.InputError, match="one label"):
        model.angles(X, Y[:, 0])
    with pytest.raises(wm.InputError, match="does not choose between classes"):
        quick_classifier().fit(X, Y[:, 0])


def test_scikit_learns_multi_label_checks_pass():
    model = wm.MarginClassifier("focal", epochs=1, min_steps=30, random_state=0)
    assert model.__sklearn_tags__().classifier_tags.multi_label
    assert not wm.MarginClassifier().__sklearn_tags__().classifier_tags.multi_label
    names = ("check_classifier_multioutput", "check_classifiers_multilabel_output_format_predict")
    names += ("check_classifiers_multilabel_output_format_predict_proba",)
    names += ("check_classifiers_multilabel_output_format_decision_function",)
    ran = 0
    for estimator, check in estimator_checks_generator(model):
        if check.func.__name__ in names:
            check(clone(estimator))
            ran += 1
    assert ran >= 3
