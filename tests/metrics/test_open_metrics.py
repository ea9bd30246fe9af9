"""Verification, retrieval, few shots, open sets: against scikit-learn, pytorch-metric-learning and by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sk_roc
from sklearn.neighbors import KNeighborsClassifier

from widemargin.io.errors import InputError
from widemargin.metrics.fewshot import few_shot_metrics, knn_accuracy
from widemargin.metrics.openset import open_set_metrics
from widemargin.metrics.retrieval import nearest_neighbors, retrieval_metrics
from widemargin.metrics.verification import (
    auc,
    best_threshold,
    eer,
    fold_accuracies,
    has_enough_different_pairs,
    required_different_pairs,
    roc_curve,
    tar_at,
    threshold_at_far,
    verification_metrics,
)


def pairs(n=400, seed=0, digits=None):
    draw = np.random.default_rng(seed)
    same = draw.random(n) < 0.4
    scores = draw.normal(size=n) + 1.2 * same
    return (scores if digits is None else scores.round(digits)), same


@pytest.mark.parametrize("digits", [None, 1])  # without and with ties
def test_roc_and_auc_are_scikit_learns(digits):
    scores, same = pairs(digits=digits)
    far, tar, thresholds = sk_roc(same, scores, drop_intermediate=False)
    roc = roc_curve(scores, same)
    np.testing.assert_allclose(roc.far, far, atol=1e-12)
    np.testing.assert_allclose(roc.tar, tar, atol=1e-12)
    np.testing.assert_allclose(roc.thresholds[1:], thresholds[1:])
    assert auc(roc) == pytest.approx(roc_auc_score(same, scores), abs=1e-12)


def test_eer_is_where_the_curve_meets_the_diagonal():
    scores, same = pairs(2000)
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


def test_a_tar_that_the_pairs_cannot_support_is_refused():
    scores, same = pairs(400)
    found = verification_metrics(scores, same)
    assert found.tar[0.1] is not None
    assert found.tar[1e-4] is None
    assert not has_enough_different_pairs(same, 1e-2)
    assert required_different_pairs(1e-3) == 10_000
    assert found.num_different == int((~same).sum())


def apart(same):
    """Identities of pairs that share none: every pair has its own."""
    first = 2 * np.arange(len(same))
    return first, first + ~same


def test_intervals_cover_and_shrink():
    few, many = (verification_metrics(*pairs(n, seed=n), identities=apart(pairs(n, seed=n)[1])) for n in (200, 4000))
    truth = 0.8019  # P(N(1.2, 1) > N(0, 1)) = Φ(1.2/√2)
    for found in (few, many):
        assert found.auc.low < found.auc.value < found.auc.high
    assert many.auc.high - many.auc.low < 0.4 * (few.auc.high - few.auc.low)
    assert many.auc.low < truth < many.auc.high


def test_fold_accuracy_chooses_the_threshold_elsewhere():
    scores, same = pairs(1000)
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


@pytest.mark.parametrize(
    ("scores", "same", "words"),
    [
        ([1.0], [True, False], "one length"),
        ([1.0, np.nan], [True, False], "not a number"),
        ([1.0], [True], "both kinds"),
    ],
)
def test_bad_pairs_are_one_line(scores, same, words):
    with pytest.raises(InputError, match=words):
        verification_metrics(np.array(scores), np.array(same))


# ---------------------------------------------------------------- retrieval


def embeddings(n=300, classes=20, dim=16, seed=0):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=draw)
    centres = torch.randn(classes, dim, generator=draw)
    return centres[y] + 1.5 * torch.randn(n, dim, generator=draw), y


@pytest.mark.parametrize("batch", [7, 1000])
def test_retrieval_is_pytorch_metric_learnings(batch, monkeypatch):
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    inference = pytest.importorskip("pytorch_metric_learning.utils.inference")
    from pytorch_metric_learning.distances import CosineSimilarity

    monkeypatch.setattr("widemargin.metrics.retrieval._GALLERY_BLOCK_ROWS", 64)
    x, y = embeddings()
    theirs = calculator.AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        knn_func=inference.CustomKNN(CosineSimilarity()),
    )
    ours, found = retrieval_metrics(x, y, batch_size=batch), theirs.get_accuracy(x, y)
    assert ours.recall[1] == pytest.approx(100 * found["precision_at_1"], abs=1e-6)
    assert ours.r_precision == pytest.approx(100 * found["r_precision"], abs=1e-6)
    assert ours.map_at_r == pytest.approx(100 * found["mean_average_precision_at_r"], abs=1e-6)
    other, labels = embeddings(80, seed=1)
    ours, found = retrieval_metrics(other, labels, x, y, batch_size=batch), theirs.get_accuracy(other, labels, x, y)
    assert ours.map_at_r == pytest.approx(100 * found["mean_average_precision_at_r"], abs=1e-6)


def test_recall_by_brute_force():
    x, y = embeddings(120)
    unit = torch.nn.functional.normalize(x)
    similarity = (unit @ unit.T).fill_diagonal_(-2)
    order = similarity.argsort(1, descending=True)
    found = retrieval_metrics(x, y, ks=(1, 3, 10), batch_size=50)
    for k in (1, 3, 10):
        wanted = (y[order[:, :k]] == y.unsqueeze(1)).any(1).double().mean()
        assert found.recall[k] == pytest.approx(100 * float(wanted))


def test_queries_without_a_match_do_not_count():
    x, y = embeddings(50, classes=5)
    extra, strange = torch.randn(3, 16), torch.tensor([90, 91, 92])
    found = retrieval_metrics(torch.cat((x, extra)), torch.cat((y, strange)), x, y)
    assert (found.queries, found.without_match) == (50, 3)
    with pytest.raises(InputError, match="nothing to find"):
        retrieval_metrics(extra, strange)


def test_blocks_of_the_gallery_change_nothing(monkeypatch):
    x, y = embeddings(200)
    whole = retrieval_metrics(x, y)
    monkeypatch.setattr("widemargin.metrics.retrieval._GALLERY_BLOCK_ROWS", 17)
    assert retrieval_metrics(x, y) == whole


def test_faiss_gives_the_same_numbers():
    pytest.importorskip("faiss")
    x, y = embeddings(200)
    assert retrieval_metrics(x, y, faiss=True) == retrieval_metrics(x, y)


def test_nearest_skips_itself_even_beside_a_twin():
    x = torch.nn.functional.normalize(torch.randn(6, 4))
    x[3] = x[0]
    _, places = nearest_neighbors(x, x, 1, torch.arange(6))
    assert places[0].item() == 3
    assert places[3].item() == 0


@pytest.mark.parametrize("k", [1, 5])
def test_neighbours_vote_as_scikit_learns(k):
    x, y = embeddings(300, classes=4)
    other, labels = embeddings(100, classes=4, seed=3)
    unit = torch.nn.functional.normalize
    judge = KNeighborsClassifier(k, metric="cosine").fit(unit(x), y)
    wanted = 100 * judge.score(unit(other), labels)
    assert knn_accuracy(other, labels, x, y, k=k) == pytest.approx(wanted, abs=3 if k > 1 else 1e-6)  # ties differ
    with pytest.raises(InputError, match="nearest neighbours"):
        knn_accuracy(x, y, k=300)


# ---------------------------------------------------------------- few shots, open sets


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


def test_open_sets_by_hand():
    gallery, names = torch.eye(3), torch.tensor([0, 1, 2])
    probes = torch.tensor([[1.0, 0.1, 0.0], [0.1, 1.0, 0.0], [0.6, 0.0, 0.5], [1.0, 1.0, 1.0], [0.0, 1.0, 0.9]])
    labels = torch.tensor([0, 1, 2, 7, 8])
    found = open_set_metrics(probes, labels, gallery, names, fars=(0.5, 0.01))
    assert (found.known, found.unknown) == (3, 2)
    assert found.rank1 == pytest.approx(200 / 3)
    assert found.dir == {0.5: None, 0.01: None}  # one false alarm is no rate
    many = open_set_metrics(probes.repeat(10, 1), labels.repeat(10), gallery, names, fars=(0.5, 0.01))
    # the ten lower of twenty strangers (0.577) pass no more: all knowns score above, two of three are named rightly
    assert many.dir[0.5] == pytest.approx(200 / 3)
    assert many.dir[0.01] is None
    scores = [0.995, 0.995, 0.768, 0.577, 0.743]
    assert found.auroc == pytest.approx(roc_auc_score([1, 1, 1, 0, 0], scores))
    with pytest.raises(InputError, match="known and of unknown"):
        open_set_metrics(probes[:3], labels[:3], gallery, names)
