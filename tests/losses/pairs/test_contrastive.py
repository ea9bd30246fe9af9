"""Contrastive against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import widemargin as wm
from pair_cases import batch, distances_of, loss_and_stats


def contrastive_by_loops(x: Tensor, y: Tensor, m: float, form: str, normalize: bool) -> list[float]:
    distance, labels = distances_of(x, normalize), y.tolist()
    losses = []
    for i in range(len(labels)):
        costs = []
        for j in range(len(labels)):
            if i == j:
                continue
            if labels[i] == labels[j]:
                costs.append(distance[i][j])
            elif form == "squared":
                costs.append(max(0.0, m**2 - distance[i][j]))
            else:
                costs.append(max(0.0, m - math.sqrt(distance[i][j])) ** 2)
        losses.append(sum(costs) / len(costs) if costs else 0.0)
    return losses


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("form", ["squared", "hadsell"])
@pytest.mark.parametrize("m", [0.7, 1.0, 1.9])
def test_contrastive_is_the_mean_over_each_anchors_pairs(form, normalize, m):
    x, y = batch([0, 1, 0, 2, 1, 0, 3], spread=0.6)
    loss = wm.Contrastive(m=m, form=form, normalize=normalize)(x, y)
    assert loss.tolist() == pytest.approx(contrastive_by_loops(x, y, m, form, normalize), abs=1e-12)


def test_contrastive_defaults_are_the_slides_hinge_on_unit_embeddings_with_m_1():
    x, y = batch([0, 1, 0, 1, 2])
    assert wm.Contrastive()(x, y).tolist() == pytest.approx(contrastive_by_loops(x, y, 1.0, "squared", True), abs=1e-12)


def test_contrastive_of_singletons_has_negative_pairs_only():
    x, y = batch([0, 1, 2, 3])
    loss, stats = loss_and_stats("contrastive(m=2)", x, y)
    assert loss.tolist() == pytest.approx(contrastive_by_loops(x, y, 2.0, "squared", True), abs=1e-12)
    assert (stats["positive_pairs"], stats["negative_pairs"]) == (0, 6)


def test_contrastive_reports_its_pairs_and_how_many_negatives_are_active():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]])
    _, stats = loss_and_stats("contrastive", x, torch.tensor([0, 0, 1, 2]))
    # Of the five negative pairs only those with (0.8, 0.6) and (1, 0) are nearer than 1.
    assert stats == {"positive_pairs": 1, "negative_pairs": 5, "active": 2}


@pytest.mark.parametrize("form", ["squared", "hadsell"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contrastive_of_coinciding_points_costs_m_squared_and_has_a_finite_gradient(form, normalize, dtype):
    x = torch.tensor([[0.3, -1.2, 0.7]], dtype=dtype).repeat(4, 1).requires_grad_()
    loss = wm.Contrastive(form=form, normalize=normalize)(x, torch.tensor([0, 0, 1, 1]))
    loss.sum().backward()
    # Each anchor: one positive at distance 0 and two negatives at the full m² = 1.
    assert loss.tolist() == pytest.approx([2 / 3] * 4, abs=1e-6)
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("form", ["squared", "hadsell"])
@pytest.mark.parametrize("normalize", [True, False])
def test_contrastive_of_a_collapsed_batch_costs_m_squared_in_float32(form, normalize):
    for seed in range(8):
        x = batch([0], dim=64, seed=seed)[0].float().repeat(33, 1)
        loss = wm.Contrastive(form=form, normalize=normalize)(x, torch.arange(33))
        assert loss.tolist() == pytest.approx([1.0] * 33, abs=1e-5)


def test_contrastive_keeps_its_digits_far_from_the_origin():
    x, y = batch([0, 1, 0, 1])
    far = (x + 1e4).to(torch.float32)
    got = wm.Contrastive(normalize=False)(far, y)
    assert got.tolist() == pytest.approx(contrastive_by_loops(far.double(), y, 1.0, "squared", False), rel=1e-5)
