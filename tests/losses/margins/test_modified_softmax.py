"""Modified softmax: class weights of unit length."""

from __future__ import annotations

import pytest

from margin_cases import (
    BACKENDS,
    REGIMES,
    assert_is_textbook,
    spellings_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", spellings_of("modified_softmax"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_is_textbook(spelling, backend, regime)
