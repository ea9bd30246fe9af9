"""Cross-batch memory: what it holds, that it is compared with, and that a copy goes on with the same bits."""

from __future__ import annotations

import copy

import pytest
import torch

import widemargin as wm
from pair_cases import batch
from pair_references import REFERENCES
from widemargin.losses.registry import loss_class

INNER = [
    *(name for name in REFERENCES if name != "margin_pairs"),
    "margin_pairs(mining=all)",
    "contrastive",
    "triplet(mining=hard)",
]


def batches(count: int, size: int = 6):
    return [batch([(i + k) % 3 for i in range(size)], dim=4, seed=20 + k) for k in range(count)]


def test_the_memory_is_a_ring_of_the_last_samples():
    objective = wm.Objective("xbm(supcon, size=8)", 4, 3).double()
    part, seen, labels = objective.parts["xbm"], [], []
    for x, y in batches(4, size=3):
        objective(x, y)
        seen, labels = [*seen, *x], [*labels, *y.tolist()]
        held = sorted(zip(part.memory_labels.tolist(), part.memory.tolist(), strict=True))
        wanted = sorted(zip(labels[-8:], (row.tolist() for row in seen[-8:]), strict=True))
        assert [row for row in held if row[0] >= 0] == wanted
        assert int(part.position) == len(seen) % 8


def test_a_batch_larger_than_the_memory_leaves_its_last_samples():
    objective = wm.Objective("xbm(supcon, size=4)", 4, 3).double()
    ((x, y),) = batches(1, size=6)
    objective(x, y)
    held = objective.parts["xbm"].memory
    assert sorted(held.tolist()) == sorted(x[-4:].tolist())


@pytest.mark.parametrize("inner", INNER)
def test_remembered_samples_are_columns_without_gradient(inner):
    (old_x, old_y), (x, y) = batches(2)
    objective = wm.Objective(f"xbm({inner}, size=16)", 4, 3).double()
    objective(old_x, old_y)
    ours = x.clone().requires_grad_()
    loss = objective(ours, y)
    loss.sum().backward()
    name = inner.partition("(")[0]
    if name in ("n_pair", "lifted", "angular"):
        assert not torch.allclose(loss, wm.parse(inner)(x, y))
        assert ours.grad.isfinite().all()
        return
    # The same samples in one batch, of which only the new ones are anchors.
    theirs = x.clone().requires_grad_()
    both = wm.parse(inner)(torch.cat([theirs, old_x]), torch.cat([y, old_y]))[: len(y)]
    both.sum().backward()
    torch.testing.assert_close(loss, both, rtol=1e-12, atol=1e-12)
    if name not in ("circle_pairs",):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-11)


def test_lifted_and_angular_and_n_pair_take_negatives_from_the_memory():
    (old_x, _), (x, _) = batches(2)
    stranger = torch.full((6,), 7)
    for inner in ("lifted", "angular", "n_pair(l2=0)"):
        objective = wm.Objective(f"xbm({inner}, size=6)", 4, 8).double()
        objective(old_x, stranger)
        own = torch.full((6,), 0)
        alone = wm.parse(inner)(x, own)
        assert alone.tolist() == [0.0] * 6
        assert (objective(x, own) > 0).all()


def test_nothing_is_remembered_before_the_start_or_in_evaluation():
    objective = wm.Objective("xbm(supcon, size=8, start=2)", 4, 3).double()
    part = objective.parts["xbm"]
    for step, (x, y) in enumerate(batches(3)):
        objective(x, y)
        assert bool((part.memory_labels >= 0).any()) == (step == 2)
    before = copy.deepcopy(objective.state_dict())
    objective.eval()(x, y)
    assert all(torch.equal(value, before[key]) for key, value in objective.state_dict().items())
    assert int(objective.mining_stats()["xbm"]["memory"]) == 6


def test_a_state_dict_goes_on_with_the_same_bits():
    first, rest = batches(6)[:3], batches(6)[3:]
    one = wm.Objective("xbm(supcon, size=10)", 4, 3)
    for x, y in first:
        one(x.float(), y)
    other = wm.Objective("xbm(supcon, size=10)", 4, 3)
    other.load_state_dict(one.state_dict())
    for x, y in rest:
        assert torch.equal(one(x.float(), y), other(x.float(), y))
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in one.state_dict().items())


def test_backward_after_the_memory_has_moved_on():
    objective = wm.Objective("xbm(nt_xent, size=8)", 4, 3).double()
    losses, leaves = [], []
    for x, y in batches(3):
        leaves.append(x.clone().requires_grad_())
        losses.append(objective(leaves[-1], y).sum())
    torch.stack(losses).sum().backward()
    assert all(leaf.grad.abs().sum() > 0 for leaf in leaves)


def test_spellings():
    value = wm.parse("xbm(supcon(tau=0.2), size=64)")
    assert value == wm.XBM(wm.SupCon(tau=0.2), size=64) == wm.parse("xbm(loss=supcon(tau=0.2), size=64)")
    assert value == wm.XBM("supcon(tau=0.2)", size=64)
    assert repr(wm.parse("arcface + 0.5*xbm(triplet)")).endswith(
        "0.5*xbm(triplet(alpha=0.2, mining=semihard), size=8192)"
    )
    assert loss_class("xbm").options()["loss"][0].domain() == "a pair loss"
    for bad, match in (
        ("xbm(center)", "compares no samples"),
        ("xbm(proxy_anchor)", "compares no samples"),
        ("xbm(xbm(supcon))", "not possible"),
        ("xbm(arcface)", "must be a pair loss"),
        ("xbm(supcon, triplet)", "takes one loss"),
        ("xbm(supcon, loss=triplet)", "takes one loss"),
        ("xbm(supcon, size=0)", "outside its domain"),
        ("xbm(nosuch)", "unknown loss"),
        ("xbm(supcon, 64)", "takes one loss"),
    ):
        with pytest.raises(wm.InputError, match=match) as caught:
            wm.parse(bad)
        assert "\n" not in str(caught.value)
    x, y = batch([0, 0, 1])
    with pytest.raises(wm.InputError, match="Objective"):
        wm.parse("xbm(supcon)")(x, y)
