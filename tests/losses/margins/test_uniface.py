"""UniFace: one threshold for all classes."""

from __future__ import annotations

import math

import pytest
import torch

import widemargin as wm
from margin_cases import make_batch, make_head

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_threshold_starts_at_its_formula_and_is_learnt():
    head = make_head(4, 5, "uniface(s=8)")
    b = head.margin_state.learnt_b
    assert b.item() == pytest.approx(math.log(50), rel=1e-15)
    assert any(parameter is b for parameter in head.parameters())
    x, y = make_batch(head, 9)
    optimizer = torch.optim.SGD([b], lr=0.01)
    before = head(x, y).sum()
    before.backward()
    optimizer.step()
    assert head(x, y).sum() < before


def test_clipped_arguments_of_the_public_code_are_not_here():
    """Far on the wrong side of the threshold a sample still has the full gradient."""
    cos = torch.tensor([[-0.9, 0.1, -0.3]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(wm.margin_softmax(cos, torch.tensor([0]), "uniface(s=64, b=14)").sum(), cos)
    assert slope[0, 0].item() == pytest.approx(-64.0, rel=1e-12)
