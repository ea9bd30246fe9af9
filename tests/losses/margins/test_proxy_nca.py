"""Proxy-NCA: distances to one proxy per class, the own one not in the sum."""

from __future__ import annotations

import pytest

from margin_cases import BACKENDS, assert_same_heads

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_lm_softmax_at_its_scale(backend):
    assert_same_heads("proxy_nca", "lm_softmax(s=18)", backend)
