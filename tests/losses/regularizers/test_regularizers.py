"""Regularizers against loops over classes, in sums, with sub-centres and on tables."""

from __future__ import annotations

import math

import pytest
import torch

import widemargin as wm
from widemargin.losses.registry import list_losses


def angle(a: list[float], b: list[float]) -> float:
    dot = sum(u * v for u, v in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)
    return math.acos(max(-1.0, min(1.0, dot)))


def penalty_by_loops(name: str, rows: list[list[float]], y: int) -> float:
    thetas = [angle(rows[y], row) for j, row in enumerate(rows) if j != y]
    return sum(t**-2 for t in thetas) / len(thetas) if name == "mhe" else max(math.cos(t) for t in thetas)


@pytest.mark.parametrize("name", list_losses("regularizers"))
def test_penalties_are_those_of_loops_over_classes(name):
    torch.manual_seed(0)
    objective = wm.Objective(f"arcface + 0.3*{name}", 4, 6).double()
    x, y = torch.randn(7, 4, dtype=torch.float64), torch.tensor([0, 5, 2, 2, 1, 0, 4])
    loss = objective(x, y)
    rows = objective.head.weight.tolist()
    wanted = [penalty_by_loops(name, rows, label) for label in y.tolist()]
    assert objective.last_losses[name].tolist() == pytest.approx(wanted, rel=1e-12)
    torch.testing.assert_close(loss, objective.last_losses["arcface"] + 0.3 * objective.last_losses[name])


@pytest.mark.parametrize("name", list_losses("regularizers"))
@pytest.mark.parametrize("spec", ["arcface", "cross_entropy", "proxy_anchor", "subcenter_arcface(k=2)"])
def test_gradients_are_exact_and_reach_the_weights(name, spec):
    torch.manual_seed(1)
    objective = wm.Objective(f"{spec} + {name}", 3, 4).double()
    part, y = objective.parts[name], torch.tensor([0, 3, 1])
    weight = objective.class_weights().detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: part(w, y), (weight,))
    objective(torch.randn(3, 3, dtype=torch.float64), y).sum().backward()
    assert objective.class_weights().grad.abs().sum() > 0


@pytest.mark.parametrize("name", list_losses("regularizers"))
def test_coinciding_weights_and_a_lone_class_are_finite(name):
    for classes in (1, 3):
        weight = torch.full((classes, 4), 0.5, requires_grad=True)
        penalty = wm.parse(name).class_penalties(weight, torch.tensor([0, classes - 1]))
        penalty.sum().backward()
        assert penalty.isfinite().all()
        assert weight.grad.isfinite().all()
        if classes == 1:
            assert penalty.tolist() == [0.0, 0.0]


def test_mixed_and_ignored_labels():
    objective = wm.Objective("normface + mhe", 3, 4, ignore_index=-1).double()
    x, y, y_b = torch.randn(3, 3, dtype=torch.float64), torch.tensor([0, -1, 2]), torch.tensor([3, 1, 0])
    objective(x, y, mix=(y_b, 0.25))
    part, weight = objective.parts["mhe"], objective.head.weight
    first, second = part(weight, torch.tensor([0, 2])), part(weight, torch.tensor([3, 1, 0]))
    wanted = torch.stack([0.25 * first[0] + 0.75 * second[0], 0.75 * second[1], 0.25 * first[1] + 0.75 * second[2]])
    torch.testing.assert_close(objective.last_losses["mhe"], wanted.detach())


def test_a_regularizer_needs_class_weights():
    for spec in ("mhe", "regularface + supcon"):
        with pytest.raises(wm.InputError, match="no class weights"):
            wm.Objective(spec, 3, 4)


def test_mhe_drives_class_weights_apart():
    torch.manual_seed(0)
    objective = wm.Objective("normface(s=1) + mhe", 3, 4)
    objective.head.weight.data.copy_(torch.tensor([1.0, 0, 0]) + 0.1 * torch.randn(4, 3))
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.05)

    def largest_cosine() -> float:
        unit = torch.nn.functional.normalize(objective.head.weight.detach())
        return (unit @ unit.T).fill_diagonal_(-1).max().item()

    before = largest_cosine()
    for _ in range(200):
        optimizer.zero_grad()
        objective(torch.zeros(4, 3), torch.arange(4)).mean().backward()
        optimizer.step()
    assert before > 0.9
    assert largest_cosine() < 0.1  # the best four points on a sphere have −1/3


def test_regularizers_on_tables_are_those_of_an_objective():
    from widemargin.tabular.batched_objective import StackedObjective

    torch.manual_seed(0)
    weight = torch.randn(2, 3, 4, dtype=torch.float64)
    stacked = StackedObjective("normface(s=4) + 0.5*mhe", weight)
    x, y = torch.randn(2, 5, 4, dtype=torch.float64), torch.randint(3, (2, 5))
    for k in range(2):
        objective = wm.Objective("normface(s=4) + 0.5*mhe", 4, 3).double()
        objective.head.weight.data.copy_(weight[k])
        torch.testing.assert_close(stacked(x, y)[k], objective(x[k], y[k]))
