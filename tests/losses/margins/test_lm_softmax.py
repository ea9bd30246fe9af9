"""LM-Softmax: the target is not in the denominator."""

from __future__ import annotations

import math

import pytest
import torch

import widemargin as wm
from margin_cases import BACKENDS, make_head

pytestmark = pytest.mark.usefixtures("one_thread")


def test_it_has_no_lower_bound():
    cos = torch.tensor([[1.0, -1.0, -1.0]], dtype=torch.float64)
    loss = wm.margin_softmax(cos, torch.tensor([0]), "lm_softmax(s=50)").item()
    assert loss == pytest.approx(math.log(2) - 100, rel=1e-12)


def test_the_target_is_pulled_with_full_force_wherever_it_is():
    cos = torch.tensor([[0.99, -1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(wm.margin_softmax(cos, torch.tensor([0]), "lm_softmax(s=50)").sum(), cos)
    assert slope[0, 0].item() == pytest.approx(-50.0, rel=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_label_smoothing_is_refused(backend):
    with pytest.raises(wm.InputError, match="label_smoothing"):
        make_head(4, 5, "lm_softmax", backend, label_smoothing=0.1)
