"""The combined margin: a factor, an angle and a constant at once."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
    assert_reference,
    assert_same_heads,
    assert_same_loss,
    make_batch,
    make_head,
    quick,
    spellings_of,
    target_angles,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", spellings_of("combined"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_is_textbook(spelling, backend, regime)


@given(
    s=any_scale,
    margins=st.fixed_dictionaries({"m1": st.floats(1.0, 4.0), "m2": any_margin_angle, "m3": st.floats(0.0, 2.0)}),
    regime=any_regime,
    backend=any_backend,
)
@quick
def test_anywhere_in_its_domain(s, margins, regime, backend):
    margin = wm.Combined(s=s, **margins)
    assert_reference(margin, lambda x, W, y: textbook.combined(x, W, y, s=s, **margins), regime, backend)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_with_a_whole_factor_is_psi(m):
    """As a curve on [0, π], and as A-Softmax on embeddings of unit length."""
    theta = torch.linspace(0, math.pi, 1001, dtype=torch.float64)[1:-1]
    curve = wm.Combined(s=1, m1=m, m2=0, m3=0).psi(theta)
    torch.testing.assert_close(curve, textbook.psi_curve(theta, m), rtol=0, atol=1e-13)
    assert_same_heads(f"combined(s=1, m1={m}, m2=0, m3=0)", f"a_softmax(m={m}, lam=0)", "dense", unit_x=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_an_added_angle_is_arcface_up_to_the_jump(backend):
    arcface = make_head(4, 6, "arcface(s=20, m=0.7)", backend).eval()
    combined = make_head(4, 6, "combined(s=20, m1=1, m2=0.7, m3=0)", backend).eval()
    near, y_near = make_batch(arcface, 30, "random")
    far, y_far = make_batch(arcface, 10, "opposed")
    x, y = torch.cat([near, far]), torch.cat([y_near, y_far])
    before = target_angles(arcface, x, y) <= math.pi - 0.7
    one, other = arcface(x, y).detach(), combined(x, y).detach()
    assert before.sum() > 10
    assert_same_loss(one[before], other[before])
    assert (~before).sum() > 5
    assert ((one - other).abs()[~before] > 1e-3).any()
