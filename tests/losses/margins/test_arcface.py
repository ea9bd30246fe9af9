"""ArcFace: an angle more for the target; its jump, its warm-up, its straight-through gradient."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given

import textbook
import widemargin as wm
from margin_cases import (
    BACKENDS,
    REGIMES,
    any_backend,
    any_margin_angle,
    any_regime,
    any_scale,
    assert_is_textbook,
    assert_matches,
    assert_reference,
    assert_same_loss,
    make_batch,
    make_head,
    plain_loss,
    quick,
    spellings_of,
    target_angles,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", spellings_of("arcface"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_is_textbook(spelling, backend, regime)


@pytest.mark.parametrize("backend", BACKENDS)
def test_past_the_jump(backend):
    """Angles on both sides of π − m, in the same batch."""
    head = make_head(4, 6, "arcface(s=20, m=0.8)", backend).eval()
    near, y_near = make_batch(head, 20, "trained")
    far, y_far = make_batch(head, 20, "opposed", seed=1)
    x, y = torch.cat([near, far]), torch.cat([y_near, y_far])
    past = target_angles(head, x, y) > math.pi - 0.8
    assert 5 < past.sum() < 35
    assert_matches(head, x, y, lambda x, W, y: textbook.loss(textbook.arcface(x, W, y, 20.0, 0.8), y))


@given(s=any_scale, m=any_margin_angle, regime=any_regime, backend=any_backend)
@quick
def test_anywhere_in_its_domain(s, m, regime, backend):
    assert_reference(f"arcface(s={s!r}, m={m!r})", lambda x, W, y: textbook.arcface(x, W, y, s, m), regime, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_warmup_at_each_step(backend):
    head = make_head(4, 6, "arcface(s=20, m=warmup(0, 0.5, steps=10))", backend)
    for t in range(13):
        m = 0.5 * min(t, 10) / 10
        x, y = make_batch(head, 10, "random", t)
        reference = plain_loss(lambda x, W, y, m=m: textbook.arcface(x, W, y, 20.0, m))
        head.eval()
        assert_matches(head, x, y, reference)
        head.train()
        assert_matches(head, x, y, reference)
        assert head.margin_state.steps == t + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("regime", REGIMES)
def test_straight_through_keeps_the_loss_and_takes_the_slope_of_the_cosine(regime, backend):
    head = make_head(4, 6, "arcface(s=20, m=0.5, gradient=straight_through)", backend).eval()
    x, y = make_batch(head, 16, regime)
    assert_same_loss(head(x, y).detach(), textbook.loss(textbook.arcface(x, head.weight.detach(), y, 20.0, 0.5), y))
    assert_matches(head, x, y, lambda x, W, y: textbook.loss(textbook.arcface_straight_through(x, W, y, 20.0, 0.5), y))


def test_straight_through_slope_at_the_target_cosine():
    """d loss / d cos_y = −σ s with σ = 1 − p_y, and s p_j for the others; the exact form's differs."""
    s, m = 20.0, 0.5
    head = make_head(4, 6, "arcface")
    x, y = make_batch(head, 16)
    cos = textbook.cosines(x, head.weight.detach())
    slopes = {}
    for gradient in ("straight_through", "exact"):
        leaf = cos.clone().requires_grad_()
        loss = wm.margin_softmax(leaf, y, f"arcface(s={s}, m={m}, gradient={gradient})")
        (slopes[gradient],) = torch.autograd.grad(loss.sum(), leaf)
    p = textbook.arcface(x, head.weight.detach(), y, s, m).softmax(1)
    wanted = s * (p - F.one_hot(y, 6))
    torch.testing.assert_close(slopes["straight_through"], wanted, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(slopes["exact"], wanted, rtol=1e-3)
