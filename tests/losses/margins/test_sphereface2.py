"""SphereFace2: a binary classifier for every class."""

from __future__ import annotations

import pytest
import torch

import widemargin as wm
from margin_cases import make_head

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("classes", [2, 5, 1000])
@pytest.mark.parametrize("options", ["", "s=9, lam=0.2", "form=a", "form=m, m=1.4, s=100"])
def test_the_bias_starts_where_it_has_no_gradient_at_right_angles(options, classes):
    head = make_head(3, classes, f"sphereface2({options})")
    with torch.no_grad():
        head.weight.copy_(torch.tensor([0.0, 0.0, 1.0]))
    x = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    loss = head(x, torch.tensor([0]))
    (to_b,) = torch.autograd.grad(loss.sum(), head.margin_state.learnt_b)
    assert abs(to_b.item()) < 1e-12


def test_a_factor_below_one_is_refused_where_the_margin_is_one():
    with pytest.raises(wm.InputError, match="m must be at least 1"):
        wm.parse("sphereface2(form=m)")


def test_the_bias_of_an_extreme_scale_is_finite():
    head = make_head(3, 4, "sphereface2(s=2000)")
    assert torch.isfinite(head.margin_state.learnt_b).all()
