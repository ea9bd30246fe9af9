"""MagFace: the length of the embedding sets its margin and is pushed up by a penalty."""

from __future__ import annotations

import pytest
import torch

import widemargin as wm
from margin_cases import BACKENDS, make_batch, make_head

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_factor_below_its_bound_is_refused_and_the_bound_is_named():
    bound = 64 * 0.35 / 100 * (110**2 * 10**2) / (110**2 - 10**2)
    assert wm.parse(f"magface(lambda_g={bound})").lambda_g == pytest.approx(bound)
    with pytest.raises(wm.InputError, match=r"lambda_g=20 is below 22\.59.*raise it"):
        wm.parse("magface(lambda_g=20)")


@pytest.mark.parametrize("options", ["l_a=120", "l_a=110", "l_m=0.9"])
def test_ends_in_the_wrong_order_are_refused(options):
    with pytest.raises(wm.InputError, match="l_a must be below u_a, and l_m at most u_m"):
        wm.parse(f"magface({options})")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_length_has_a_gradient_within_its_range_alone(backend):
    head = make_head(4, 5, "magface(s=8, l_a=2, u_a=6, lambda_g=9)", backend)
    x, y = make_batch(head, 9)
    unit = torch.nn.functional.normalize(x)
    for length, has_one in ((1.0, False), (4.0, True), (9.0, False)):
        one = (length * unit).requires_grad_()
        (to_x,) = torch.autograd.grad(head(one, y).sum(), one)
        along = (to_x * unit).sum(1).abs()
        assert (along > 1e-3).all() if has_one else (along < 1e-12).all()
