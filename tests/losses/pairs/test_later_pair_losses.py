"""The later pair losses against references written from their formulas, and where they are defined to be 0."""

from __future__ import annotations

import pytest
import torch

import widemargin as wm
from pair_cases import batch, loss_and_stats
from pair_references import REFERENCES, proxy_anchor
from widemargin.losses import pair_batch
from widemargin.losses.registry import list_losses

CASES = [
    ("supcon", {}),
    ("supcon", {"tau": 1.5}),
    ("nt_xent", {}),
    ("nt_xent", {"tau": 0.01}),
    ("multi_similarity", {}),
    ("multi_similarity", {"alpha": 1, "beta": 3, "lam": 0.1, "epsilon": 0.4}),
    ("multi_similarity", {"epsilon": None}),
    ("circle_pairs", {}),
    ("circle_pairs", {"s": 3, "m": 0.1}),
    ("margin_pairs", {"mining": "all"}),
    ("margin_pairs", {"mining": "all", "alpha": 0.5, "beta": 0.8}),
    ("smooth_ap", {"tau": 0.1}),
    ("smooth_ap", {"tau": 0.01, "include_query": False}),
    ("recall_at_k", {"tau": 0.1}),
    ("recall_at_k", {"k": 1, "tau": 0.02, "tau_k": 0.5}),
    ("recall_at_k", {"k": 3, "tau": 0.3}),
    ("tuplet", {}),
    ("tuplet", {"s": 5, "m": 0.7}),
    ("n_pair", {}),
    ("n_pair", {"l2": 0}),
    ("lifted", {}),
    ("lifted", {"m": 0.4, "form": "generalized"}),
    ("angular", {}),
    ("angular", {"alpha": 1.1}),
    ("ranked_list", {}),
    ("ranked_list", {"alpha": 0.9, "m": 0.2, "temperature": 2, "lam": 0.3}),
    ("fast_ap", {}),
    ("fast_ap", {"bins": 3}),
]
MIXED_LABELS = [0, 1, 0, 2, 1, 0, 3, 1, 0, 2]  # of unequal numbers, one class alone


def test_every_later_pair_loss_has_a_reference():
    tested = {name for name, _ in CASES} | {"center", "contrastive", "triplet", "proxy_anchor", "xbm"}
    assert tested == set(list_losses("pairs"))


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else str(v))
def test_values_and_gradients_are_those_of_the_formula(name, options):
    loss = wm.parse(name).__class__(**options)
    given = {key: value for key, value in options.items() if key != "mining"}
    x, y = batch(MIXED_LABELS, dim=5, seed=7)
    upstream = torch.linspace(0.5, 1.5, len(y), dtype=x.dtype)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    value, wanted = loss(ours, y), REFERENCES[name](theirs, y, **given)
    (value * upstream).sum().backward()
    (wanted * upstream).sum().backward()
    assert wanted.abs().max() > 1e-3, "a loss of 0 shows nothing"
    torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-12)


def test_proxy_anchor_is_the_formula_in_x_and_in_the_proxies():
    x, y = batch(MIXED_LABELS, dim=5, seed=7)
    objective = wm.Objective("proxy_anchor", 5, 6).double()
    part = objective.parts["proxy_anchor"]
    proxies = part.proxies.detach().clone().requires_grad_()
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    value, wanted = objective(ours, y), proxy_anchor(theirs, y, proxies)
    value.mean().backward()
    wanted.mean().backward()
    torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(part.proxies.grad, proxies.grad, rtol=1e-11, atol=1e-12)
    cos = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(part.proxies.detach()).T
    torch.testing.assert_close(objective.logits(x), 32 * cos)
    assert objective.has_logits
    objective.extend(2)
    assert objective.logits(x).shape == (10, 8)


def test_learnt_betas_are_those_of_the_anchors_classes():
    x, y = batch(MIXED_LABELS, dim=5, seed=7)
    objective = wm.Objective("margin_pairs(mining=all, learn_beta=True, nu=0.3)", 5, 4).double()
    beta = objective.parts["margin_pairs"].beta
    with torch.no_grad():
        beta.copy_(torch.tensor([0.9, 1.1, 1.3, 1.5]))
    loss = objective(x, y)
    wanted = torch.stack(
        [REFERENCES["margin_pairs"](x, y, beta=beta[label].item())[i] for i, label in enumerate(y.tolist())]
    )
    torch.testing.assert_close(loss, wanted + 0.3 * beta[y], rtol=1e-12, atol=1e-12)
    loss.sum().backward()
    assert beta.grad.abs().min() > 0


def test_distance_weighted_margin_loss_divides_by_what_is_active():
    x, y = batch([0, 0, 1, 1, 2, 2], dim=5, seed=3)
    torch.manual_seed(0)
    loss, stats = loss_and_stats("margin_pairs", x, y)
    torch.manual_seed(0)
    assert torch.equal(wm.MarginPairs()(x, y), loss)
    hinges = REFERENCES["margin_pairs"]
    every = hinges(x, y)
    assert stats["active"] <= 12  # one positive and one negative for each anchor
    assert (loss > 0).sum() >= (every > 0).sum() // 2
    distance = torch.cdist(torch.nn.functional.normalize(x), torch.nn.functional.normalize(x))
    for i in range(6):
        p = i ^ 1
        near = max(0.0, distance[i, p].item() - 1.0)
        possible = []
        for k in (k for k in range(6) if y[k] != y[i]):
            costs = [c for c in (near, max(0.0, 1.4 - distance[i, k].item())) if c > 0]
            possible.append(sum(costs) / len(costs) if costs else 0.0)
        assert min(abs(loss[i].item() - value) for value in possible) < 1e-12


@pytest.mark.parametrize("name", [name for name in list_losses("pairs") if name not in ("center", "proxy_anchor")])
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [2, 2, 2, 2]], ids=["one of each class", "a lone class"])
def test_batches_without_a_pair_of_one_kind_are_defined_and_counted(name, labels):
    x, y = batch(labels)
    x.requires_grad_()
    spec = {"n_pair": "n_pair(l2=0)"}.get(name, name)
    loss, stats = loss_and_stats(spec, x, y)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert x.grad.isfinite().all()
    one_sided = {"contrastive", "xbm", "ranked_list"}  # they learn from positives or negatives alone
    learns = name in one_sided or (name in ("supcon", "smooth_ap", "recall_at_k", "fast_ap") and labels[0] == labels[1])
    if not learns:
        assert loss.tolist() == [0.0] * 4
        assert x.grad.abs().max() < 1e-15  # smooth_ap ranks the query itself
    if name not in ("contrastive", "xbm"):
        assert stats["anchors_without"] == 4


@pytest.mark.parametrize("name", ["supcon", "nt_xent"])
@pytest.mark.parametrize("tau", [0.0, -1.0])
def test_temperatures_are_above_0(name, tau):
    with pytest.raises(wm.InputError, match="value > 0"):
        wm.parse(f"{name}(tau={tau})")


def test_a_small_supcon_loss_keeps_its_digits_in_single_precision():
    angles = torch.tensor([0.0, 0.02, 3.0, 3.03], dtype=torch.float64)
    x = torch.stack([angles.cos(), angles.sin()], 1)
    y = torch.tensor([0, 0, 1, 1])
    wanted = REFERENCES["nt_xent"](x, y, tau=0.1)
    assert wanted.max() < 1e-6
    got = wm.parse("supcon(tau=0.1)")(x.float(), y)
    torch.testing.assert_close(got.double(), wanted, rtol=2e-5, atol=0)


@pytest.mark.parametrize("spec", ["smooth_ap", "recall_at_k", "margin_pairs(mining=all)"])
def test_blocks_change_neither_value_nor_gradient(spec, monkeypatch):
    x, y = batch([i % 4 for i in range(16)], dim=5, seed=2)
    x = torch.cat([x, x[:4] + 1e-6])  # pairs whose distance is computed from the difference
    y = torch.cat([y, y[:4]])
    found = []
    for elements in (2**22, 100):
        monkeypatch.setattr(pair_batch, "MAX_BLOCK_ELEMENTS", elements)
        leaf = x.clone().requires_grad_()
        loss = wm.parse(spec)(leaf, y)
        loss.sum().backward()
        found.append((loss.detach(), leaf.grad))
    for whole, blocks in zip(*found, strict=True):
        torch.testing.assert_close(blocks, whole, rtol=1e-13, atol=1e-14)


def test_small_distances_are_exact_in_single_precision():
    x, y = batch([0, 1, 2, 3, 4, 5], dim=64, seed=1)
    x = torch.nn.functional.normalize(x)
    near = (x + 1e-5 * batch([0] * 6, dim=64, seed=2)[0]).float()
    pairs = pair_batch.PairBatch.of_batch(torch.cat([x.float(), near]), torch.cat([y, y]))
    wanted = (x.float().double() - near.double()).square().sum(1)
    got = pairs.squared_distances(normalize=False)[:6, 6:].diagonal()
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=0)
