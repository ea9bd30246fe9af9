"""Center: Wen's update of the centres, learned centres, mixed labels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import widemargin as wm
from pair_cases import batch


def wen_update(centers: list[list[float]], x: Tensor, y: Tensor, alpha: float) -> list[list[float]]:
    """c_j − α Σ_{y_i=j}(c_j − x_i)/(1 + n_j), coordinate by coordinate."""
    rows, labels = x.tolist(), y.tolist()
    moved = []
    for j, center in enumerate(centers):
        members = [row for row, label in zip(rows, labels, strict=True) if label == j]
        step = [sum(c - row[k] for row in members) / (1 + len(members)) for k, c in enumerate(center)]
        moved.append([c - alpha * s for c, s in zip(center, step, strict=True)])
    return moved


def test_center_follows_wens_update_over_batches():
    objective = wm.Objective("center(alpha=0.3)", 3, 4)
    part = objective.parts["center"]
    centers = [[0.0] * 3 for _ in range(4)]
    for seed, labels in enumerate([[0, 1, 1, 3], [1, 1, 1], [0, 3]]):
        x, y = batch(labels, dim=3, seed=seed)
        loss = objective(x, y)
        wanted = [
            0.5 * sum((u - c) ** 2 for u, c in zip(row, centers[label], strict=True))
            for row, label in zip(x.tolist(), labels, strict=True)
        ]
        assert loss.tolist() == pytest.approx(wanted, rel=1e-6)
        centers = wen_update(centers, x, y, 0.3)
        for got, want in zip(part.centers.tolist(), centers, strict=True):
            assert got == pytest.approx(want, abs=1e-6)
    assert part.centers[2].tolist() == [0.0] * 3, "a class without samples must not move"


def test_center_moves_half_way_by_default():
    objective = wm.Objective("center", 1, 2)
    objective(torch.tensor([[4.0]]), torch.tensor([1]))
    assert objective.parts["center"].centers.tolist() == [[0.0], [1.0]]  # 0.5 · 4 / (1 + 1)


def test_center_is_frozen_in_evaluation():
    objective = wm.Objective("center", 3, 4)
    x, y = batch([0, 1, 1], dim=3)
    objective(x, y)
    before = objective.parts["center"].centers.clone()
    objective.eval()
    first, second = objective(x, y), objective(x, y)
    assert torch.equal(objective.parts["center"].centers, before)
    assert torch.equal(first, second)


def test_center_pulls_an_embedding_towards_its_centre():
    objective = wm.Objective("center", 3, 4).double()
    objective(*batch([0, 1, 2, 3], dim=3, seed=1))
    centers = objective.parts["center"].centers.clone()
    x, y = batch([2, 0, 2], dim=3)
    x.requires_grad_()
    objective(x, y).sum().backward()
    assert torch.allclose(x.grad, x.detach() - centers[y], rtol=0, atol=1e-14)


def test_learned_centres_get_a_gradient_and_no_update():
    objective = wm.Objective("center(learn=True)", 3, 4).double()
    part = objective.parts["center"]
    with torch.no_grad():
        part.centers.copy_(batch([0, 0, 0, 0], dim=3, seed=9)[0])
    before = part.centers.detach().clone()
    x, y = batch([2, 0, 2], dim=3)
    x.requires_grad_()
    objective(x, y).sum().backward()
    assert torch.equal(part.centers.detach(), before)
    wanted = torch.zeros(4, 3, dtype=torch.float64)
    for row, label in zip(x.detach(), y.tolist(), strict=True):
        wanted[label] += before[label] - row
    assert torch.allclose(part.centers.grad, wanted, rtol=0, atol=1e-14)
    assert torch.allclose(x.grad, x.detach() - before[y], rtol=0, atol=1e-14)
    assert any(p is part.centers for p in objective.parameters())


def test_learned_centres_stay_put_in_a_functional_call():
    objective = wm.Objective("center(learn=True)", 3, 4).double()
    x, y = batch([2, 0, 2], dim=3)
    centers = batch([0, 0, 0, 0], dim=3, seed=9)[0]
    before = centers.clone()
    torch.func.functional_call(objective, {"parts.center.centers": centers}, (x, y))
    assert torch.equal(centers, before)


@pytest.mark.parametrize("spec", ["center", "center(learn=True)"])
def test_a_state_dict_carries_the_centres(spec):
    trained = wm.Objective(spec, 3, 4)
    with torch.no_grad():
        trained.parts["center"].centers.normal_()
    fresh = wm.Objective(spec, 3, 4)
    fresh.load_state_dict(trained.state_dict())
    assert fresh.parts["center"].centers.abs().sum() > 0
    assert torch.equal(fresh.parts["center"].centers, trained.parts["center"].centers)


def test_a_bare_center_says_that_it_needs_an_objective():
    x, y = batch([0, 1])
    with pytest.raises(wm.InputError, match="Objective"):
        wm.Center()(x, y)


def test_center_checks_dimension_and_labels():
    objective = wm.Objective("center", 3, 4)
    with pytest.raises(wm.InputError, match=r"\[N, 3\]"):
        objective(torch.zeros(2, 5), torch.tensor([0, 1]))
    with pytest.raises(wm.InputError, match="label 4"):
        objective(torch.zeros(2, 3), torch.tensor([0, 4]))


def test_mixed_labels_see_the_centres_of_before_the_update():
    mixed, plain = wm.Objective("center", 3, 4), wm.Objective("center", 3, 4).eval()
    for objective in (mixed, plain):
        objective.parts["center"].centers.copy_(torch.arange(12.0).reshape(4, 3))
    x, y = batch([2, 0, 1], dim=3)
    y_b = torch.tensor([0, 2, 2])
    wanted = 0.3 * plain(x, y) + 0.7 * plain(x, y_b)
    assert torch.allclose(mixed(x, y, mix=(y_b, 0.3)), wanted)


def test_mixed_labels_move_the_centres_once_by_the_first_labels():
    mixed, plain = wm.Objective("center", 3, 4), wm.Objective("center", 3, 4)
    x, y = batch([2, 0, 1], dim=3)
    mixed(x, y, mix=(torch.tensor([3, 3, 3]), 0.3))
    plain(x, y)
    assert torch.equal(mixed.parts["center"].centers, plain.parts["center"].centers)


def test_gradients_of_center_are_exact():
    objective = wm.Objective("center(learn=True)", 3, 4).double().eval()
    x, y = batch([0, 1, 0, 3], dim=3)
    centers = batch([0, 0, 0, 0], dim=3, seed=8)[0].requires_grad_()

    def loss(points: Tensor, parameters: Tensor) -> Tensor:
        return torch.func.functional_call(objective, {"parts.center.centers": parameters}, (points, y))

    assert torch.autograd.gradcheck(loss, (x.requires_grad_(), centers))
