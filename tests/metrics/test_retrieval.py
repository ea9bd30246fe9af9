"""Retrieval: against pytorch-metric-learning, faiss and by brute force."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metric_cases import clustered_embeddings
from widemargin.io.errors import InputError
from widemargin.metrics.fewshot import knn_accuracy
from widemargin.metrics.neighbors import NeighborSearch, nearest_in_blocks, nearest_neighbors
from widemargin.metrics.retrieval import retrieval_metrics


@pytest.mark.parametrize("batch", [7, 1000])
def test_retrieval_is_pytorch_metric_learnings(batch, monkeypatch):
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    inference = pytest.importorskip("pytorch_metric_learning.utils.inference")
    from pytorch_metric_learning.distances import CosineSimilarity

    monkeypatch.setattr("widemargin.metrics.neighbors._GALLERY_BLOCK_ROWS", 64)
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
    with pytest.raises(InputError, match="at least one query"):
        retrieval_metrics(extra, strange)


def test_blocks_of_the_gallery_change_nothing(monkeypatch):
    x, y = clustered_embeddings(200)
    whole = retrieval_metrics(x, y)
    monkeypatch.setattr("widemargin.metrics.neighbors._GALLERY_BLOCK_ROWS", 17)
    assert retrieval_metrics(x, y) == whole


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    depth=st.integers(1, 7),
    seed=st.integers(0, 1000),
    has_ties=st.booleans(),
)
def test_the_nearest_in_blocks_are_those_of_one_sort(sizes, depth, seed, has_ties):
    draw = torch.Generator().manual_seed(seed)
    gallery, queries = torch.randn(sum(sizes), 3, generator=draw), torch.randn(5, 3, generator=draw)
    if has_ties:
        gallery, queries = gallery.round(), queries.round()  # sums of small integers are exact
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    blocks = list(zip(starts, gallery.split(sizes), strict=True))
    values, places = nearest_in_blocks(queries, blocks, depth)
    wanted = (queries @ gallery.T).sort(1, descending=True).values[:, :depth]
    assert torch.allclose(values, wanted, atol=1e-5)
    assert torch.allclose((queries @ gallery.T).gather(1, places), values, atol=1e-5)
    assert all(len(set(row)) == len(row) for row in places.tolist())


def test_a_query_that_is_not_finite_does_not_look_like_a_match():
    gallery = torch.nn.functional.normalize(torch.randn(40, 4))
    queries = torch.stack((gallery[30], torch.full((4,), torch.nan)))
    values, places = nearest_in_blocks(queries, [(0, gallery[:20]), (20, gallery[20:])], 2)
    assert places[0, 0] == 30
    assert values[1].isnan().all()


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


def collapsed_embeddings(spread: float, clusters: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Twelve classes of five around one point or a few, at angles far below what a cosine in float32 resolves."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(12).repeat_interleave(5)
    centres = torch.randn(12, 16, generator=draw, dtype=torch.float64)
    samples = centres[y] + 0.05 * torch.randn(60, 16, generator=draw, dtype=torch.float64)
    base = torch.randn(clusters, 16, generator=draw, dtype=torch.float64)
    return base[y % clusters] + spread * samples, y


@pytest.mark.parametrize(
    ("dtype", "spread", "clusters"),
    [(torch.float32, 1e-5, 1), (torch.float32, 1e-5, 3), (torch.float64, 1e-6, 3), (torch.float64, 1e-9, 1)],
)
def test_nearly_equal_embeddings_are_told_apart(dtype, spread, clusters):
    x, y = collapsed_embeddings(spread, clusters)
    assert retrieval_metrics(x.to(dtype), y).recall[1] == 100.0
    assert knn_accuracy(x.to(dtype), y) == 100.0


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6])
def test_neighbours_of_single_precision_are_those_of_double(spread):
    x = collapsed_embeddings(spread)[0].float()
    scores, places = NeighborSearch(x)(x, 9, torch.arange(60))
    wide_scores, wide_places = NeighborSearch(x.double())(x, 9, torch.arange(60))
    assert torch.equal(places, wide_places)
    assert torch.allclose(scores, wide_scores, atol=1e-5)
