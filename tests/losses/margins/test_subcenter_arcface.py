"""Sub-centre ArcFace: the nearest of K weights counts."""

from __future__ import annotations

import pytest
import torch

import widemargin as wm
from margin_cases import (
    BACKENDS,
    assert_same_loss,
    head_result,
    make_batch,
    make_head,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_equal_sub_centres_one_has_the_gradient(backend):
    """Loss and gradient are ArcFace's; what a tie shares out would be half of it twice."""
    head = make_head(4, 5, "subcenter_arcface(s=8, m=0.3, k=3)", backend).eval()
    plain = make_head(4, 5, "arcface(s=8, m=0.3)", backend).eval()
    with torch.no_grad():
        head.weight.copy_(plain.weight.unsqueeze(1).expand(5, 3, 4))
    x, y = make_batch(plain, 12)
    cotangent = torch.linspace(0.5, 1.5, 12, dtype=torch.float64)
    (loss, (to_x, to_weight)), (wanted, wanted_gradients) = (head_result(one, x, y, cotangent) for one in (head, plain))
    assert_same_loss(loss, wanted)
    torch.testing.assert_close(to_x, wanted_gradients[0])
    torch.testing.assert_close(to_weight.sum(1), wanted_gradients[1])
    assert ((to_weight != 0).any(2).sum(1) == 1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sub_centre_of_length_zero_has_a_cosine_of_zero(backend):
    head = make_head(2, 2, "subcenter_arcface(s=4, m=0, k=2)", backend).eval()
    with torch.no_grad():
        rows = [[[-1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.6, 0.8]]]
        head.weight.copy_(torch.tensor(rows, dtype=torch.float64))
    x, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    loss, (to_x, to_weight) = head_result(head, x, y, torch.ones(1, dtype=torch.float64))
    expected = torch.nn.functional.softplus(torch.tensor([4 * 0.6], dtype=torch.float64))
    assert_same_loss(loss, expected)
    assert torch.isfinite(to_x).all()
    assert not to_weight[0].any()  # the nearest has no direction that could turn


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_fewer_than_one_sub_centre_is_refused(k):
    with pytest.raises(wm.InputError, match=r"subcenter_arcface: k=.* outside its domain: whole number"):
        wm.parse(f"subcenter_arcface(k={k})")
