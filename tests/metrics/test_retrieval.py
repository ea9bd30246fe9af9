"""Retrieval: against pytorch-metric-learning, faiss and by brute force."""

import pytest
import torch

from metric_cases import clustered_embeddings
from widemargin.io.errors import InputError
from widemargin.metrics.retrieval import nearest_neighbors, retrieval_metrics


@pytest.mark.parametrize("batch", [7, 1000])
def test_retrieval_is_pytorch_metric_learnings(batch, monkeypatch):
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    inference = pytest.importorskip("pytorch_metric_learning.utils.inference")
    from pytorch_metric_learning.distances import CosineSimilarity

    monkeypatch.setattr("widemargin.metrics.retrieval._GALLERY_BLOCK_ROWS", 64)
    x, y = clustered_embeddings()
    theirs = calculator.AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        knn_func=inference.CustomKNN(CosineSimilarity()),
    )
    ours, found = retrieval_metrics(x, y, batch_size=batch), theirs.get_accuracy(x, y)
    assert ours.recall[1] == pytest.approx(100 * found["precision_at_1"], abs=1e-6)
    assert ours.r_precision == pytest.approx(100 * found["r_precision"], abs=1e-6)
    assert ours.map_at_r == pytest.approx(100 * found["mean_average_precision_at_r"], abs=1e-6)
    other, labels = clustered_embeddings(80, seed=1)
    ours, found = retrieval_metrics(other, labels, x, y, batch_size=batch), theirs.get_accuracy(other, labels, x, y)
    assert ours.map_at_r == pytest.approx(100 * found["mean_average_precision_at_r"], abs=1e-6)


def test_recall_by_brute_force():
    x, y = clustered_embeddings(120)
    unit = torch.nn.functional.normalize(x)
    similarity = (unit @ unit.T).fill_diagonal_(-2)
    order = similarity.argsort(1, descending=True)
    found = retrieval_metrics(x, y, ks=(1, 3, 10), batch_size=50)
    for k in (1, 3, 10):
        wanted = (y[order[:, :k]] == y.unsqueeze(1)).any(1).double().mean()
        assert found.recall[k] == pytest.approx(100 * float(wanted))


def test_queries_without_a_match_do_not_count():
    x, y = clustered_embeddings(50, classes=5)
    extra, strange = torch.randn(3, 16), torch.tensor([90, 91, 92])
    found = retrieval_metrics(torch.cat((x, extra)), torch.cat((y, strange)), x, y)
    assert (found.queries, found.without_match) == (50, 3)
    with pytest.raises(InputError, match="nothing to find"):
        retrieval_metrics(extra, strange)


def test_blocks_of_the_gallery_change_nothing(monkeypatch):
    x, y = clustered_embeddings(200)
    whole = retrieval_metrics(x, y)
    monkeypatch.setattr("widemargin.metrics.retrieval._GALLERY_BLOCK_ROWS", 17)
    assert retrieval_metrics(x, y) == whole


def test_faiss_gives_the_same_numbers():
    pytest.importorskip("faiss")
    x, y = clustered_embeddings(200)
    assert retrieval_metrics(x, y, faiss=True) == retrieval_metrics(x, y)


def test_nearest_skips_itself_even_beside_a_twin():
    x = torch.nn.functional.normalize(torch.randn(6, 4))
    x[3] = x[0]
    _, places = nearest_neighbors(x, x, 1, torch.arange(6))
    assert places[0].item() == 3
    assert places[3].item() == 0
