"""CurricularFace: hard classes count by a number that follows the training."""

from __future__ import annotations

import pytest
import torch

import widemargin as wm
from margin_cases import (
    make_batch,
    make_head,
    target_angles,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_t_follows_the_mean_target_cosine_and_rests_in_evaluation():
    head = make_head(4, 5, "curricularface(alpha=0.25, t=0.4)")
    x, y = make_batch(head, 9, "trained")
    wanted = 0.25 * torch.cos(target_angles(head, x, y)).mean().item() + 0.75 * 0.4
    head(x, y)
    assert head.margin_state.state_t.item() == pytest.approx(wanted, rel=1e-14)
    head.eval()(x, y)
    assert head.margin_state.state_t.item() == pytest.approx(wanted, rel=1e-14)


def test_an_empty_batch_leaves_t_as_it_is():
    head = make_head(4, 5, "curricularface(t=0.4)")
    assert head(torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)).shape == (0,)
    assert head.margin_state.state_t.item() == 0.4


def test_a_hard_class_with_a_low_cosine_is_pulled_nearer():
    """Below −t/2 the slope of c (t + c) is negative, as in the paper; an easy class is always pushed away."""
    margin = wm.CurricularFace(t=0.4).with_values(threshold=torch.tensor(-2.0))
    cos = torch.tensor([-0.3, -0.1, 0.5], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(margin.phi(cos).sum(), cos)
    torch.testing.assert_close(slope, 0.4 + 2 * cos.detach())
