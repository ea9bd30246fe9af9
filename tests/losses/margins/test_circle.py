"""Circle loss on class weights: every cosine is weighted by how far it is from its aim."""

from __future__ import annotations

import pytest
import torch

import widemargin as wm

pytestmark = pytest.mark.usefixtures("one_thread")


def test_by_hand():
    cos = torch.tensor([[0.8, 0.1, -0.5]], dtype=torch.float64, requires_grad=True)
    z = 4 * torch.tensor([0.45 * 0.05, 0.35 * -0.15, 0.0], dtype=torch.float64)
    loss = wm.margin_softmax(cos, torch.tensor([0]), "circle(s=4)")
    assert loss.item() == pytest.approx((torch.logsumexp(z, 0) - z[0]).item(), rel=1e-12)
    (slope,) = torch.autograd.grad(loss.sum(), cos)
    p = z.softmax(0)
    wanted = 4 * torch.stack([0.45 * (p[0] - 1), 0.35 * p[1], 0.0 * p[2]])
    torch.testing.assert_close(slope[0], wanted)


@pytest.mark.parametrize("m", [0, 1, -0.2])
def test_a_relaxation_outside_its_domain_is_refused(m):
    with pytest.raises(wm.InputError, match="outside its domain"):
        wm.parse(f"circle(m={m})")
