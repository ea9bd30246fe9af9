"""AdaFace: the margin follows the length of the embedding."""

from __future__ import annotations

import pytest
import torch

from margin_cases import make_batch, make_head

pytestmark = pytest.mark.usefixtures("one_thread")


def test_one_sample_alone_moves_the_mean_and_not_the_deviation():
    head = make_head(4, 5, "adaface(alpha=0.5)")
    x, y = make_batch(head, 1)
    loss = head(x, y)
    assert torch.isfinite(loss).all()
    assert head.margin_state.state_std.item() == 100.0
    assert head.margin_state.state_mean.item() == pytest.approx(0.5 * 20 + 0.5 * x.norm().item(), rel=1e-14)


def test_lengths_are_clipped_and_equal_ones_have_no_deviation():
    head = make_head(4, 5, "adaface(alpha=1)")
    x, y = make_batch(head, 6)
    for length, kept in ((1e-8, 1e-3), (1e8, 100.0)):
        x = (length * torch.nn.functional.normalize(x)).requires_grad_()
        loss = head(x, y)
        (to_x,) = torch.autograd.grad(loss.sum(), x)
        assert torch.isfinite(loss).all()
        assert torch.isfinite(to_x).all()
        assert head.margin_state.state_mean.item() == pytest.approx(kept, rel=1e-9)
        assert head.margin_state.state_std.item() == pytest.approx(0.0, abs=1e-9)


def test_good_images_have_the_larger_margin():
    """Where the target is near: there the subtracted cosine outweighs the angle that is added for bad ones."""
    head = make_head(4, 5, "adaface(s=8, mean=10, std=5)").eval()
    x, y = make_batch(head, 9, "trained")
    unit = torch.nn.functional.normalize(x)
    assert (head(60 * unit, y) > head(0.1 * unit, y)).all()
    torch.testing.assert_close(head(10 * unit, y), make_head(4, 5, "cosface(s=8, m=0.4)").eval()(x, y))
