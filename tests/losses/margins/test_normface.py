"""NormFace: a softmax over scaled cosines."""

from __future__ import annotations

import pytest
from hypothesis import given

import textbook
import widemargin as wm
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
@pytest.mark.parametrize("spelling", spellings_of("normface"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_is_textbook(spelling, backend, regime)


@given(s=any_scale, regime=any_regime, backend=any_backend)
@quick
def test_anywhere_in_its_domain(s, regime, backend):
    assert_reference(wm.NormFace(s=s), lambda x, W, y: textbook.normface(x, W, y, s), regime, backend)
