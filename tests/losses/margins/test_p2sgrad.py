"""P2SGrad: the gradient of each cosine is its own error."""

from __future__ import annotations

import pytest
import torch

import widemargin as wm

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_slope_of_every_cosine_is_its_error():
    cos = torch.tensor([[0.8, 0.1, -0.5]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(wm.margin_softmax(cos, torch.tensor([0]), "p2sgrad").sum(), cos)
    torch.testing.assert_close(slope, torch.tensor([[-0.2, 0.1, -0.5]], dtype=torch.float64))


def test_a_perfect_sample_has_no_loss():
    cos = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    assert wm.margin_softmax(cos, torch.tensor([0]), "p2sgrad").item() == 0.0
