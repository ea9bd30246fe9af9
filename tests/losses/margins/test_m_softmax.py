"""M-Softmax: a constant less for the target's inner product."""

from __future__ import annotations

import pytest
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
    assert_reference,
    quick,
    spellings_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", spellings_of("m_softmax"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_is_textbook(spelling, backend, regime)


@given(m=st.floats(0.0, 50.0), regime=any_regime, backend=any_backend)
@quick
def test_anywhere_in_its_domain(m, regime, backend):
    assert_reference(wm.MSoftmax(m=m), lambda x, W, y: textbook.m_softmax(x, W, y, m), regime, backend)
