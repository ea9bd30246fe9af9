"""Proxy-NCA++: a softmax over squared distances to one proxy per class."""

from __future__ import annotations

import pytest

from margin_cases import BACKENDS, assert_same_heads

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_normface_at_its_scale(backend):
    assert_same_heads("proxy_nca_pp", "normface(s=18)", backend)
