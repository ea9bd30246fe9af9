"""CosFace: a constant less for the target's cosine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import textbook
from margin_cases import (
    BACKENDS,
    REGIMES,
    any_backend,
    any_regime,
    any_scale,
    assert_is_textbook,
    assert_reference,
    quick,
    spellings_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", spellings_of("cosface"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_is_textbook(spelling, backend, regime)


@given(s=any_scale, m=st.floats(0.0, 2.0), regime=any_regime, backend=any_backend)
@quick
def test_anywhere_in_its_domain(s, m, regime, backend):
    assert_reference(f"cosface(s={s!r}, m={m!r})", lambda x, W, y: textbook.cosface(x, W, y, s, m), regime, backend)
