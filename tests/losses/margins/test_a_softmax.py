"""A-Softmax (SphereFace): the target's angle m times, class weights of unit length."""

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
    any_regime,
    assert_is_textbook,
    assert_matches,
    assert_reference,
    make_batch,
    make_head,
    plain_loss,
    quick,
    spellings_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", spellings_of("a_softmax"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_is_textbook(spelling, backend, regime)


@given(m=st.integers(1, 8), lam=st.floats(0.0, 2000.0), regime=any_regime, backend=any_backend)
@quick
def test_anywhere_in_its_domain(m, lam, regime, backend):
    assert_reference(wm.ASoftmax(m=m, lam=lam), lambda x, W, y: textbook.a_softmax(x, W, y, m, lam), regime, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_annealing_by_training_calls(backend):
    head = make_head(4, 6, "a_softmax(m=3)", backend)
    for t in range(5):
        x, y = make_batch(head, 10, "random", t)
        assert_matches(head, x, y, plain_loss(lambda x, W, y, t=t: textbook.a_softmax(x, W, y, 3, t=t)))
    for t in (50, 1000, 1657, 1658, 10**6):  # λ reaches its least value of 5 between the calls 1658 and 1659
        head.margin_state.steps.fill_(t)
        assert_matches(head, x, y, plain_loss(lambda x, W, y, t=t: textbook.a_softmax(x, W, y, 3, t=t)))
        assert head.margin_state.steps == t + 1


@pytest.mark.parametrize("m", [1, 2, 3, 4, 7])
def test_psi_is_continuous_and_decreasing(m):
    theta = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    steps = wm.parse(f"a_softmax(m={m}, lam=0)").psi(theta).diff()
    assert steps.max() <= 1e-12
    assert steps.min() >= -1.01 * m * math.pi / 20000


@pytest.mark.parametrize("t", [0, 3, 40, 4000])
def test_annealing_with_other_numbers(t):
    spelling = "a_softmax(m=3, lam=anneal(start=50, gamma=0.3, power=1.5, floor=0.25))"
    head = make_head(4, 6, spelling).eval()
    head.margin_state.steps.fill_(t)
    x, y = make_batch(head, 10, "random")
    lam = textbook.anneal(t + 1, 50.0, 0.3, 1.5, 0.25)
    assert_matches(head, x, y, plain_loss(lambda x, W, y: textbook.a_softmax(x, W, y, 3, lam)))
