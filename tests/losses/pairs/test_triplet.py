"""Triplet against plain loops."""

from __future__ import annotations

import pytest
import torch

import widemargin as wm
from pair_cases import MININGS, batch, distances_of, loss_and_stats, mean_hinges, triplets_by_loops


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.5])
@pytest.mark.parametrize("mining", ["all", "hard", "semihard"])
def test_triplet_is_the_mean_over_each_anchors_mined_triplets(mining, alpha, normalize):
    x, y = batch([0, 1, 0, 2, 1, 0, 3, 1, 2], seed=3)
    distance = distances_of(x, normalize)
    mined = triplets_by_loops(distance, y.tolist(), mining, alpha)
    loss, stats = loss_and_stats(f"triplet(alpha={alpha}, mining={mining}, normalize={normalize})", x, y)
    assert loss.tolist() == pytest.approx(mean_hinges(distance, mined, alpha), abs=1e-12)
    assert stats["triplets"] == sum(map(len, mined))
    assert stats["anchors_without"] == sum(not found for found in mined)


def test_triplet_defaults_are_semihard_with_alpha_0_2_on_unit_embeddings():
    x, y = batch([0, 0, 0, 1, 1, 1, 2, 2, 2], dim=3, seed=1)
    distance = distances_of(x)
    mined = triplets_by_loops(distance, y.tolist(), "semihard", 0.2)
    assert sum(map(len, mined)) > 3, "a batch without semi-hard triplets shows nothing"
    assert wm.Triplet()(x, y).tolist() == pytest.approx(mean_hinges(distance, mined, 0.2), abs=1e-12)


def test_triplet_counts_active_triplets():
    x, y = batch([0, 1, 0, 1, 0], seed=5)
    distance = distances_of(x)
    mined = triplets_by_loops(distance, y.tolist(), "all", 0.2)
    active = sum(distance[a][p] - distance[a][n] + 0.2 > 0 for a, found in enumerate(mined) for p, n in found)
    assert 0 < active < sum(map(len, mined))
    assert loss_and_stats("triplet(mining=all)", x, y)[1]["active"] == active


@pytest.mark.parametrize("mining", MININGS)
@pytest.mark.parametrize("labels", [[2, 2, 2, 2], [0, 1, 2, 3]], ids=["one class", "no positives"])
def test_batches_without_a_triplet_cost_nothing_and_say_so(mining, labels):
    x, y = batch(labels)
    x.requires_grad_()
    loss, stats = loss_and_stats(f"triplet(mining={mining})", x, y)
    loss.sum().backward()
    assert loss.tolist() == [0.0] * 4
    assert x.grad.tolist() == [[0.0] * 4] * 4
    assert stats == {"triplets": 0, "active": 0, "anchors_without": 4}


@pytest.mark.parametrize("mining", MININGS)
def test_an_anchor_alone_in_its_class_counts_0_among_others(mining):
    x, y = batch([0, 0, 1], seed=2)
    loss, stats = loss_and_stats(f"triplet(mining={mining}, alpha=8)", x, y)
    assert loss[2] == 0.0
    assert stats["anchors_without"] >= 1


@pytest.mark.parametrize("given", ["semihrad", "Semihard", "semi-hard"])
def test_a_mistyped_mining_is_an_input_error_that_names_the_nearest(given):
    with pytest.raises(wm.InputError, match="did you mean 'semihard'"):
        wm.Triplet(mining=given)


def test_distance_mining_needs_unit_embeddings():
    with pytest.raises(wm.InputError, match="unit embeddings"):
        wm.Triplet(mining="distance", normalize=False)


@pytest.mark.parametrize("mining", MININGS)
def test_every_mining_compiles_into_one_graph(mining):
    x, y = batch([0, 1, 0, 2, 1, 0, 3, 1, 2], seed=3)
    objective = wm.Objective(f"triplet(mining={mining}, alpha=1)", 4, 4)
    compiled = torch.compile(objective, backend="aot_eager", fullgraph=True)
    found = []
    for function in (objective, compiled):
        torch.manual_seed(0)  # distance and pool draw
        leaf = x.clone().requires_grad_()
        loss = function(leaf, y)
        loss.sum().backward()
        found.append((loss.detach(), leaf.grad))
    for eager, graph in zip(*found, strict=True):
        torch.testing.assert_close(graph, eager)
    assert found[0][0].any()
