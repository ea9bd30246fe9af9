"""Few shots and nearest neighbours: against scikit-learn, and where the answer is known."""

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from metric_cases import clustered_embeddings
from widemargin.io.errors import InputError
from widemargin.metrics.fewshot import few_shot_metrics, knn_accuracy


@pytest.mark.parametrize("k", [1, 5])
def test_neighbours_vote_as_scikit_learns(k):
    x, y = clustered_embeddings(300, classes=4)
    other, labels = clustered_embeddings(100, classes=4, seed=3)
    unit = torch.nn.functional.normalize
    classifier = KNeighborsClassifier(k, metric="cosine").fit(unit(x), y)
    wanted = 100 * classifier.score(unit(other), labels)
    assert knn_accuracy(other, labels, x, y, k=k) == pytest.approx(wanted, abs=3 if k > 1 else 1e-6)  # ties differ
    with pytest.raises(InputError, match="nearest neighbours"):
        knn_accuracy(x, y, k=300)


def test_few_shots_are_easy_where_classes_are_apart_and_chance_where_they_are_not():
    y = torch.arange(20).repeat_interleave(6)
    apart = torch.eye(20)[y] + 0.01 * torch.randn(120, 20)
    assert few_shot_metrics(apart, y, episodes=50).accuracy == 100.0
    noise = few_shot_metrics(torch.randn(120, 20), y, episodes=400)
    assert abs(noise.accuracy - 20) < 5
    assert noise.low < 20 < noise.high
    assert few_shot_metrics(torch.randn(40, 20), y[:40], ways=3, episodes=50).error is None  # of seven classes
    assert few_shot_metrics(apart, y, episodes=20, seed=1) == few_shot_metrics(apart, y, episodes=20, seed=1)
    with pytest.raises(InputError, match="5 ways with 6 shots"):
        few_shot_metrics(apart, y, shots=6)
