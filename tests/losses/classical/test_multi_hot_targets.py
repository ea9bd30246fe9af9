"""bce and focal with several labels per sample, against plain Python in double precision; other losses refuse them."""

import math

import pytest
import torch

import widemargin as wm
from widemargin.losses.multilabel import check_multilabel_loss

TARGETS = [[1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]]  # the slides' three, and none
LOGITS = [[2.0, -1.0, 0.5], [30.0, -2.0, -40.0], [0.0, 1e-3, -0.7], [-1.5, 3.0, 12.0]]


def focal_by_hand(logit: float, target: int, gamma: float) -> float:
    """−(1 − p_t)^γ log p_t, with 1 − p_t = sigmoid(−z) and log p_t = −log1p(e^−z) of the logit z of the truth."""
    z = logit if target else -logit
    log_p = -math.log1p(math.exp(-z)) if z > -700 else z
    return -((1.0 / (1.0 + math.exp(z))) ** gamma) * log_p


@pytest.mark.parametrize(
    ("spec", "gamma"), [("bce", 0.0), ("focal", 2.0), ("focal(gamma=0)", 0.0), ("focal(gamma=1.5)", 1.5)]
)
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.int64, torch.bool])
def test_multi_hot_targets_are_the_mean_over_the_labels(spec, gamma, kind):
    loss = wm.parse(spec)(torch.tensor(LOGITS, dtype=torch.float64), torch.tensor(TARGETS).to(kind))
    wanted = [
        sum(focal_by_hand(z, t, gamma) for z, t in zip(zs, ts, strict=True)) / 3
        for zs, ts in zip(LOGITS, TARGETS, strict=True)
    ]
    assert loss.tolist() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    "spec", ["arcface", "softmax + 0.02*center", "triplet", "bce + softmax", "cross_entropy", "l2"]
)
def test_losses_of_one_label_are_refused_by_name(spec):
    with pytest.raises(wm.InputError, match=r"exactly one label per sample.*bce or focal"):
        check_multilabel_loss(wm.parse(spec))


@pytest.mark.parametrize("spec", ["arcface", "contrastive", "softmax + 0.02*center"])
def test_multi_hot_targets_of_a_margin_or_pair_loss_are_one_clear_line(spec):
    objective = wm.Objective(spec, 4, 3)
    for targets in (torch.tensor(TARGETS), torch.tensor(TARGETS).float(), torch.tensor(TARGETS).bool()):
        with pytest.raises(wm.InputError, match="bce or focal"):
            objective(torch.randn(4, 4), targets)
