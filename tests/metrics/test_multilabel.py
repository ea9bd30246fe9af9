"""Multi-label metrics against scikit-learn."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from widemargin.io.errors import InputError
from widemargin.metrics.multilabel import multilabel_metrics


@pytest.mark.parametrize("ties", [False, True])
def test_figures_are_scikit_learns(ties):
    draw = np.random.default_rng(0)
    truth = draw.random((80, 6)) < [0.5, 0.1, 0.9, 0.3, 0.02, 0.4]
    truth[0] = True  # every label has a positive
    scores = draw.standard_normal((80, 6)) + truth
    scores = np.round(scores, 0) if ties else scores
    found = multilabel_metrics(torch.from_numpy(truth), torch.from_numpy(scores))
    assert found.mean_average_precision == pytest.approx(100 * average_precision_score(truth, scores, average="macro"))
    each = [100 * average_precision_score(truth[:, c], scores[:, c]) for c in range(6)]
    assert found.average_precision == pytest.approx(each)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found.f1_micro == pytest.approx(100 * f1_score(truth, scores > 0, average="micro"))
        assert found.f1_macro == pytest.approx(100 * f1_score(truth, scores > 0, average="macro"))
    assert found.exact_match == pytest.approx(100 * accuracy_score(truth, scores > 0))


def test_a_label_without_a_positive_does_not_count():
    truth = torch.tensor([[1, 0], [0, 0]])
    found = multilabel_metrics(truth, torch.tensor([[1.0, 5.0], [0.0, 1.0]]))
    assert found.average_precision == (100.0, None)
    assert found.mean_average_precision == 100.0
    assert multilabel_metrics(torch.zeros(2, 2), torch.zeros(2, 2)).mean_average_precision is None


@pytest.mark.parametrize("truth", [torch.zeros(3), torch.full((2, 2), 0.5), [[0, 1], [1, 0]]])
def test_wrong_truth_is_an_input_error(truth):
    with pytest.raises(InputError, match="truth"):
        multilabel_metrics(truth, torch.zeros(2, 2))
