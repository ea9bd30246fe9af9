"""MV-Softmax: classes above the target's margin get a larger logit."""

from __future__ import annotations

import math

import pytest
import torch

import widemargin as wm

pytestmark = pytest.mark.usefixtures("one_thread")


def test_hard_classes_by_hand():
    cos = torch.tensor([[0.5, 0.4, 0.1, -0.3]], dtype=torch.float64)
    z = 4 * torch.tensor([0.5 - 0.35, 1.2 * 0.4 + 0.2, 0.1, -0.3], dtype=torch.float64)
    found = wm.margin_softmax(cos, torch.tensor([0]), "mv_softmax(s=4)")
    assert found.item() == pytest.approx((torch.logsumexp(z, 0) - z[0]).item(), rel=1e-12)


def test_easy_drops_the_margin_and_compares_as_if_it_were_there():
    cos = torch.tensor([[-0.1, -0.2, -0.6]], dtype=torch.float64)
    z = 4 * torch.tensor([-0.1, 1.2 * -0.2 + 0.2, -0.6], dtype=torch.float64)  # −0.2 lies above −0.1 − 0.35
    found = wm.margin_softmax(cos, torch.tensor([0]), "mv_softmax(s=4, easy=True)")
    assert found.item() == pytest.approx((torch.logsumexp(z, 0) - z[0]).item(), rel=1e-12)


def test_an_angle_past_a_right_one_is_refused():
    assert wm.parse("mv_softmax(m=1.9)").m == 1.9
    assert wm.parse(f"mv_softmax(form=arc, m={math.pi / 2})").form == "arc"
    with pytest.raises(wm.InputError, match="at most π/2"):
        wm.parse("mv_softmax(form=arc, m=1.9)")
