"""ArcGrad: a softmax over angles."""

from __future__ import annotations

import pytest
import torch
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
    make_batch,
    make_head,
    quick,
    spellings_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", spellings_of("arcgrad"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_is_textbook(spelling, backend, regime)


@given(s=any_scale, regime=any_regime, backend=any_backend)
@quick
def test_anywhere_in_its_domain(s, regime, backend):
    assert_reference(wm.ArcGrad(s=s), lambda x, W, y: textbook.arcgrad(x, W, y, s), regime, backend)


def test_logits_are_angles():
    head = make_head(5, 8, "arcgrad(s=3)")
    x, _ = make_batch(head, 6)
    angles = torch.acos(textbook.cosines(x, head.weight.detach()))
    torch.testing.assert_close(head.logits(x).detach(), -3.0 * angles, rtol=1e-12, atol=0)
