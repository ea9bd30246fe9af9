"""Objectives: weighted sums of losses, mixing, ignored samples, logits, parameters, more classes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import widemargin as wm
from head_batch import C, D
from pair_cases import MININGS, batch


def test_an_objective_is_the_weighted_sum_of_its_parts():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("arcface + 0.02*center", 8, 5).double().eval()
    objective.parts["center"].centers.copy_(batch([0] * 5, dim=8, seed=7)[0])
    head = wm.Head(8, 5, "arcface", dtype=torch.float64).eval()
    with torch.no_grad():
        head.weight.copy_(objective.head.weight)
    pulled = [0.5 * sum((x[i] - objective.parts["center"].centers[y[i]]) ** 2) for i in range(4)]
    assert torch.allclose(objective(x, y), head(x, y) + 0.02 * torch.stack(pulled), rtol=1e-12, atol=0)


def test_parts_and_last_are_known_by_name():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("arcface + 0.5*triplet(mining=all) + 0.02*center", 8, 5)
    total = objective(x.requires_grad_(), y)
    assert list(objective.parts) == ["arcface", "triplet", "center"]
    assert list(objective.last_losses) == ["arcface", "triplet", "center"]
    assert not any(loss.requires_grad for loss in objective.last_losses.values())
    added = (
        objective.last_losses["arcface"]
        + 0.5 * objective.last_losses["triplet"]
        + 0.02 * objective.last_losses["center"]
    )
    assert torch.allclose(total, added)


def test_parts_of_one_name_are_numbered():
    objective = wm.Objective("triplet(mining=all) + 0.5*triplet(mining=hard) + triplet(mining=pool)", 8, 5)
    assert list(objective.parts) == ["triplet", "triplet_2", "triplet_3"]
    x, y = batch([0, 1, 0, 4], dim=8)
    objective(x, y)
    assert list(objective.last_losses) == ["triplet", "triplet_2", "triplet_3"]


def test_two_heads_of_one_kind_have_their_own_weights():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("arcface(s=8) + 3*arcface(s=16)", 8, 5).double()
    first, second = objective.parts["arcface"], objective.parts["arcface_2"]
    assert not torch.equal(first.weight, second.weight)
    assert objective.head is first
    assert torch.allclose(objective(x, y), first(x, y) + 3 * second(x, y))


def test_an_objective_takes_a_value_or_a_sum_as_well():
    x, y = batch([0, 1, 0])
    wanted = wm.Contrastive(m=0.8)(x, y)
    assert torch.equal(wm.Objective(wm.Contrastive(m=0.8), 4, 2)(x, y), wanted)
    assert torch.allclose(wm.Objective(wm.parse("2*contrastive(m=0.8)"), 4, 2)(x, y), 2 * wanted)


@pytest.mark.parametrize(
    "text",
    [
        "arcface(s=64, m=0.5) + 0.02*center(alpha=0.5)",
        "softmax + 0.02*center(alpha=0.5, learn=True)",
        "0.5*contrastive(m=1, form=hadsell, normalize=False)",
        "triplet(alpha=0.2, mining=pool, pool_size=50)",
        "normface(s=30) + 0.1*triplet(alpha=0.3, mining=hard) + 1e-07*center(alpha=1)",
        "l2(half=False) + huber(delta=2) + l1",
        "bce(probabilities=True)",
        "focal(gamma=0.5) + cross_entropy(label_smoothing=0.1)",
    ],
)
def test_parse_strings_come_back_as_they_were_written(text):
    value = wm.parse(text)
    assert repr(value) == text
    assert wm.parse(repr(value)) == value
    spec = wm.Objective(text, 4, 3).spec
    assert wm.parse(repr(spec)) == value


def test_sample_weight_multiplies_the_whole_loss():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("cosface + 0.5*contrastive", 8, 5).eval()
    weight = torch.tensor([0.0, 1.0, 2.5, 0.1])
    plain = objective(x, y)
    assert torch.allclose(objective(x, y, sample_weight=weight), plain * weight)


def test_a_sample_weight_of_another_shape_is_an_error():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("cosface + 0.5*contrastive", 8, 5)
    with pytest.raises(wm.InputError, match="sample_weight"):
        objective(x, y, sample_weight=torch.ones(4, 1))


@pytest.mark.parametrize("lam", [0.3, torch.tensor([0.0, 0.3, 1.0, 0.5])], ids=["one lam", "lam per sample"])
def test_mix_is_the_mixture_of_both_losses(lam):
    x, y = batch([0, 1, 0, 4], dim=8)
    y_b = torch.tensor([1, 1, 2, 0])
    objective = wm.Objective("arcface + 0.5*triplet(mining=all) + 0.1*center", 8, 5).double().eval()
    objective.parts["center"].centers.copy_(batch([0] * 5, dim=8, seed=7)[0])
    wanted = lam * objective(x, y) + (1 - lam) * objective(x, y_b)
    assert torch.allclose(objective(x, y, mix=(y_b, lam)), wanted, rtol=1e-6)


def test_mix_is_one_training_call():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("arcface + center", 8, 5)
    objective(x, y, mix=(y.flip(0), 0.4))
    assert int(objective.head.margin_state.steps) == 1


@pytest.mark.parametrize("pair_losses", ["center", "contrastive", "triplet(mining=all)", "triplet(mining=hard)"])
def test_ignored_samples_cost_nothing_and_do_not_exist_for_pair_losses(pair_losses):
    x, y = batch([0, 1, -1, 0, 4, -1], dim=8)
    x.requires_grad_()
    kept = torch.tensor([0, 1, 3, 4])
    objective = wm.Objective(f"arcface + 0.5*{pair_losses}", 8, 5, ignore_index=-1).double()
    alone = wm.Objective(pair_losses, 8, 5).double()
    loss = objective(x, y)
    loss.sum().backward()
    (name,) = alone.parts
    assert loss[[2, 5]].tolist() == [0.0, 0.0]
    assert x.grad[[2, 5]].abs().sum() == 0
    assert torch.allclose(objective.last_losses[name][kept], alone(x.detach()[kept], y[kept]))
    for mine, theirs in zip(objective.parts[name].buffers(), alone.parts[name].buffers(), strict=True):
        assert torch.equal(mine, theirs), "ignored samples must not move the centres"


@pytest.mark.parametrize("pair_losses", ["center", "contrastive", *(f"triplet(mining={mining})" for mining in MININGS)])
def test_a_batch_of_ignored_samples_only_costs_0(pair_losses):
    objective = wm.Objective(f"arcface + {pair_losses}", 8, 5, ignore_index=-1)
    loss = objective(torch.randn(3, 8, requires_grad=True), torch.tensor([-1, -1, -1]))
    loss.sum().backward()
    assert loss.tolist() == [0.0] * 3


def test_mixing_with_ignored_samples_counts_each_label_for_itself():
    x, y = batch([0, -1, 2, -1], dim=8)
    y_b = torch.tensor([1, 3, -1, -1])
    objective = wm.Objective("arcface + 0.1*center", 8, 5, ignore_index=-1).double().eval()
    wanted = 0.3 * objective(x, y) + 0.7 * objective(x, y_b)
    assert (wanted[:3] > 0).all()
    assert torch.allclose(objective(x, y, mix=(y_b, 0.3)), wanted)


def test_options_of_heads_are_refused_where_there_is_no_head():
    with pytest.raises(wm.InputError, match="ignore_index"):
        wm.Objective("triplet", 8, 5, ignore_index=-1)


def test_logits_are_those_of_the_first_part_with_class_weights():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("0.5*triplet + arcface + softmax", 8, 5).double()
    head = objective.parts["arcface"]
    assert torch.equal(objective.logits(x), head.logits(x))
    assert torch.equal(objective.logits(x, y), head.logits(x, y))
    assert not torch.equal(objective.logits(x, y), objective.logits(x))
    regression = wm.Objective("l2", 8, 2).double()
    linear = regression.parts["l2"].linear
    assert torch.allclose(regression.logits(x), x @ linear.weight.T + linear.bias)


def test_an_objective_without_class_weights_has_no_logits():
    with pytest.raises(wm.InputError, match="no logits"):
        wm.Objective("triplet + center", 8, 5).logits(torch.zeros(2, 8))


def decay_of(objective: wm.Objective, weight_decay: float) -> dict[int, float]:
    """The weight decay of every parameter by its id; each must be in exactly one group."""
    groups = objective.parameter_groups(weight_decay)
    found = [(id(p), group["weight_decay"]) for group in groups for p in group["params"]]
    assert sorted(i for i, _ in found) == sorted(id(p) for p in objective.parameters())
    return dict(found)


@pytest.mark.parametrize(
    ("spec", "decays"),
    [
        ("arcface", False),
        ("arcgrad", False),
        ("cosface + 0.1*center", False),
        ("normface", False),
        ("modified_softmax", False),
        ("a_softmax", False),
        ("softmax", True),
        ("m_softmax", True),
        ("l_softmax", True),
    ],
)
def test_only_class_weights_whose_length_matters_are_decayed(spec, decays):
    objective = wm.Objective(spec, 8, 5)
    assert decay_of(objective, 5e-4)[id(objective.head.weight)] == (5e-4 if decays else 0.0)


def test_biases_are_never_decayed_and_linear_weights_are():
    objective = wm.Objective("softmax(bias=True) + 0.1*cross_entropy + arcface + center(learn=True)", 8, 5)
    decay = decay_of(objective, 0.1)
    linear = objective.parts["cross_entropy"].linear
    assert decay[id(objective.parts["softmax"].weight)] == decay[id(linear.weight)] == 0.1
    assert decay[id(objective.parts["softmax"].bias)] == decay[id(linear.bias)] == 0.0
    assert decay[id(objective.parts["arcface"].weight)] == 0.0


def test_parameter_groups_work_in_an_optimizer():
    objective = wm.Objective("arcface + 0.1*softmax", 8, 5)
    before = [p.detach().clone() for p in objective.parameters()]
    optimizer = torch.optim.SGD(objective.parameter_groups(0.1), lr=0.1)
    objective(torch.randn(6, 8), torch.arange(6) % 5).mean().backward()
    optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(objective.parameters(), before, strict=True))


def log_sigmoid(z: float) -> float:
    return -math.log1p(math.exp(-z)) if z > 0 else z - math.log1p(math.exp(z))


@pytest.mark.parametrize("spec", ["bce", "focal(gamma=1.5)"])
def test_multi_label_objectives_take_a_target_per_class(spec):
    x, _ = batch([0] * 4, dim=8)
    target = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.float64)
    objective = wm.Objective(spec, 8, 3).double()
    loss = objective(x, target)
    gamma = 1.5 if spec.startswith("focal") else 0.0
    for i in range(4):
        leads = [z if t else -z for z, t in zip(objective.logits(x)[i].tolist(), target[i].tolist(), strict=True)]
        wanted = [-((1 - math.exp(log_sigmoid(lead))) ** gamma) * log_sigmoid(lead) for lead in leads]
        assert loss[i].item() == pytest.approx(sum(wanted) / 3, rel=1e-9)
    loss.mean().backward()
    assert all(p.grad.abs().sum() > 0 for p in objective.parameters())


def test_multi_class_criteria_take_class_numbers():
    x, y = batch([0, 2, 1, 2], dim=8)
    objective = wm.Objective("cross_entropy + focal(gamma=0)", 8, 3).double()
    z = [objective.parts[name].logits(x) for name in ("cross_entropy", "focal")]
    wanted = [sum(torch.logsumexp(part[i], 0) - part[i, y[i]] for part in z) for i in range(4)]
    assert torch.allclose(objective(x, y), torch.stack(wanted))


@pytest.mark.parametrize("spec", ["arcface", "center", "cross_entropy"])
def test_embeddings_of_another_length_and_labels_in_a_list_are_input_errors(spec):
    objective = wm.Objective(spec, 8, 3)
    with pytest.raises(wm.InputError, match=r"\[N, 8\]"):
        objective(torch.zeros(2, 5), torch.tensor([0, 1]))
    with pytest.raises(wm.InputError):
        objective(torch.zeros(2, 8), [0, 1])


@pytest.mark.parametrize("spec", [3, None, torch.nn.Linear(2, 2)], ids=["number", "None", "module"])
def test_an_objective_of_something_else_is_an_input_error(spec):
    with pytest.raises(wm.InputError):
        wm.Objective(spec, 8, 3)


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_a_regression_objective_predicts_one_value(shape):
    x, _ = batch([0] * 5, dim=8)
    y = torch.linspace(-1, 1, 5, dtype=torch.float64)
    objective = wm.Objective("l2", 8, 1).double()
    loss = objective(x, y.reshape(shape))
    assert loss.shape == (5,)
    assert torch.allclose(loss, 0.5 * (y - objective.logits(x).squeeze(1)) ** 2)


def test_a_regression_objective_learns_a_line():
    x, _ = batch([0] * 64, dim=3)
    x = x.float()
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3
    objective = wm.Objective("l2", 3, 1)
    optimizer = torch.optim.LBFGS(objective.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective(x, y).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    linear = objective.parts["l2"].linear
    assert [*linear.weight[0].tolist(), linear.bias.item()] == pytest.approx([1.0, -2.0, 0.5, 0.3], abs=1e-3)


def test_an_objective_and_a_model_grow_in_every_part():
    model = wm.MarginModel(nn.Linear(4, D), wm.Objective("arcface + 0.02*center + 0.1*triplet", D, C))
    model.eval()
    model.head.weight.requires_grad_(False)
    model.extend(2)
    assert not model.head.weight.requires_grad
    assert not model.head.margin_state.training
    assert model.objective.parts["center"].centers.shape == (C + 2, D)
    loss = model.train()(torch.randn(6, 4), torch.tensor([0, 1, 6, 6, 5, 5]))
    assert torch.isfinite(loss).all()
    with pytest.raises(wm.InputError, match="cannot be extended"):
        wm.Objective("cross_entropy", D, C).extend(1)


def test_an_objective_grows_whole_or_not_at_all():
    objective = wm.Objective("arcface(m=[0.1, 0.2, 0.3]) + cosface + center", D, 3)
    with pytest.raises(wm.InputError, match="m is per class"):
        objective.extend(1)
    with pytest.raises(wm.InputError, match="unknown per-class option 'q'"):
        objective.extend(1, m=[0.4], q=[1.0])
    assert [part.weight.shape[0] for part in (objective.parts["arcface"], objective.parts["cosface"])] == [3, 3]
    objective.extend(1, m=[0.4])
    assert repr(objective.spec).startswith("arcface(s=64, m=[0.1, 0.2, 0.3, 0.4]) + cosface(s=64, m=0.35)")
    assert objective(torch.randn(4, D), torch.tensor([0, 1, 2, 3])).shape == (4,)
