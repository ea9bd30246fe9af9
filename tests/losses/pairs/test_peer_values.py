"""Pair losses against pytorch-metric-learning 2.9.0: equal where definitions agree, known to differ elsewhere."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor

import widemargin as wm
from pair_cases import batch

losses = pytest.importorskip("pytorch_metric_learning.losses")
miners = pytest.importorskip("pytorch_metric_learning.miners")
BALANCED = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def both(spec: str, peer: torch.nn.Module, x: Tensor, y: Tensor, miner: torch.nn.Module | None = None):
    """Mean loss and gradient, ours and theirs."""
    found = []
    for compute in (
        lambda leaf: wm.parse(spec)(leaf, y).mean(),
        lambda leaf: peer(leaf, y, None if miner is None else miner(leaf, y)),
    ):
        leaf = x.clone().requires_grad_()
        value = compute(leaf)
        value.backward()
        found.append((value.detach(), leaf.grad))
    return found


@pytest.mark.parametrize(
    ("spec", "peer", "miner"),
    [
        ("supcon(tau=0.1)", "SupConLoss(0.1)", None),
        ("nt_xent(tau=0.3)", "NTXentLoss(0.3)", None),
        ("multi_similarity", "MultiSimilarityLoss(2, 50, 0.5)", "MultiSimilarityMiner(0.1)"),
        ("multi_similarity(epsilon=None)", "MultiSimilarityLoss(2, 50, 0.5)", None),
        ("circle_pairs", "CircleLoss(0.4, 80)", None),
        ("tuplet(m=0.1)", f"TupletMarginLoss({math.degrees(0.1)!r}, 64)", None),
        ("lifted", "LiftedStructureLoss()", None),
        ("lifted(form=generalized)", "GeneralizedLiftedStructureLoss()", None),
        ("fast_ap", "FastAPLoss(10)", None),
    ],
)
def test_values_and_gradients_agree_where_the_definitions_do(spec, peer, miner):
    x, y = batch(BALANCED, dim=6, seed=5)
    theirs = eval(f"losses.{peer}")
    mining = None if miner is None else eval(f"miners.{miner}")
    ours, other = both(spec, theirs, x, y, mining)
    torch.testing.assert_close(ours[0], other[0], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(ours[1], other[1], rtol=1e-6, atol=1e-9)


def test_n_pair_is_theirs_on_unit_embeddings():
    x, y = batch([0, 0, 1, 1, 2, 2], dim=6, seed=5)
    ours = wm.parse("n_pair(l2=0, normalize=True)")(x, y)
    pairs = (torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5]), torch.tensor([]), torch.tensor([]))
    torch.testing.assert_close(ours.mean(), losses.NPairsLoss()(x, y, pairs), rtol=1e-9, atol=1e-10)


def test_regularface_over_the_classes_of_the_batch_is_theirs_over_all():
    regularizers = pytest.importorskip("pytorch_metric_learning.regularizers")
    weight = batch([0] * 7, dim=6, seed=2)[0]
    theirs = regularizers.RegularFaceRegularizer()(weight)
    ours = wm.parse("regularface").class_penalties(weight, torch.arange(7)).mean()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_smooth_ap_agrees_only_with_as_many_classes_as_samples_of_each():
    square, y = batch([0, 0, 0, 1, 1, 1, 2, 2, 2], dim=6, seed=5)
    ours, theirs = both("smooth_ap(tau=0.1)", losses.SmoothAPLoss(0.1), square, y)
    torch.testing.assert_close(ours[0].float(), theirs[0].float(), rtol=1e-6, atol=1e-6)
    x, y = batch(BALANCED, dim=6, seed=5)
    ours, theirs = both("smooth_ap(tau=0.1)", losses.SmoothAPLoss(0.1), x, y)
    assert abs(ours[0] - theirs[0]) > 0.01


def test_angular_agrees_on_unit_embeddings_only():
    x, y = batch(BALANCED, dim=6, seed=5)
    spec = f"angular(alpha={math.radians(40)!r})"
    unit = torch.nn.functional.normalize(x)
    ours, theirs = both(spec, losses.AngularLoss(40), unit, y)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-7, atol=1e-8)
    assert losses.AngularLoss(40)(2 * x, y) > 1.5 * losses.AngularLoss(40)(unit, y)
    torch.testing.assert_close(wm.parse(spec)(2 * x, y), wm.parse(spec)(unit, y))


def test_nt_xent_saturates_there():
    x, y = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [0.9, 0.1], [0.9, -0.1]]), torch.tensor([0, 0, 1, 1])
    ours, theirs = both("nt_xent(tau=0.01)", losses.NTXentLoss(0.01), x, y)
    wanted = wm.parse("nt_xent(tau=0.01)")(x.double(), y).mean().item()
    assert ours[0].item() == pytest.approx(wanted, rel=1e-5)
    assert theirs[0].item() < 0.8 * wanted


def test_supcon_counts_anchors_without_positives_as_0():
    x, y = batch([0, 0, 1, 2], dim=6, seed=5)
    torch.testing.assert_close(2 * wm.parse("supcon")(x, y).mean(), losses.SupConLoss(0.1)(x, y))


def test_the_weights_of_proxy_losses_can_be_taken_over():
    x, y = batch(BALANCED, dim=6, seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anchor, nca = losses.ProxyAnchorLoss(3, 6).double(), losses.ProxyNCALoss(3, 6, softmax_scale=3).double()
    objective = wm.Objective("proxy_anchor", 6, 3).double()
    objective.load_class_weights(anchor.state_dict())
    torch.testing.assert_close(objective(x, y).mean(), anchor(x, y), rtol=1e-9, atol=1e-10)
    head = wm.Head(6, 3, "proxy_nca_pp(s=6)", dtype=torch.float64)
    head.load_class_weights(nca.state_dict())
    torch.testing.assert_close(head(x, y).mean(), nca(x, y), rtol=1e-9, atol=1e-10)
    with pytest.raises(wm.InputError, match=r"have shape \[3, 6\]"):
        wm.Objective("proxy_anchor", 6, 4).load_class_weights(anchor.state_dict())
    with pytest.raises(wm.InputError, match="no class weights"):
        wm.Objective("supcon", 6, 4).load_class_weights(anchor.state_dict())
    before = wm.Objective("softmax + supcon", 6, 3)
    before.load_class_weights({"weight": torch.ones(3, 6)})
    assert before.head.weight.eq(1).all()


def test_weights_of_oml_and_of_timm_classifiers():
    """OML's ArcFaceLoss has `weight` [C, D]; timm's classifiers are linear layers with a bias."""
    weight = batch([0] * 4, dim=6, seed=2)[0].float()
    head = wm.Head(6, 4, "arcface(s=64, m=0.5)")
    head.load_class_weights({"weight": weight})
    assert torch.equal(head.weight, weight)
    import widemargin.models.torchvision_compat  # noqa: F401  (before timm)

    timm = pytest.importorskip("timm")
    classifier = timm.create_model("resnet10t", num_classes=4).get_classifier()
    linear = wm.Head(classifier.in_features, 4, "softmax(bias=True)")
    linear.load_class_weights(classifier.state_dict())
    x = torch.randn(3, classifier.in_features)
    torch.testing.assert_close(linear.logits(x), classifier(x), rtol=1e-5, atol=1e-5)
