"""AdaAcos: the margin follows the batches."""

from __future__ import annotations

import math

import pytest
import torch

import textbook
from margin_cases import (
    BACKENDS,
    REGIMES,
    assert_adapts_as_textbook,
    assert_matches,
    make_batch,
    make_head,
    spellings_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", spellings_of("adaacos"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_adapts_as_textbook(spelling, backend, regime)


@pytest.mark.parametrize(
    ("regime", "wanted"), [("opposed", 0.0), ("trained", math.pi / 2)], ids=["clipped at 0", "clipped at π/2"]
)
def test_the_margin_is_clipped(regime, wanted):
    """Three classes in a plane, 120° apart: gaps near 120° when trained, negative when opposed."""
    head = make_head(2, 3, "adaacos(s=6)")
    turns = torch.tensor([0.0, 2 * math.pi / 3, 4 * math.pi / 3], dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(torch.stack([turns.cos(), turns.sin()], 1))
    x, y = make_batch(head, 11, regime)
    assert_matches(head, x, y, lambda x, W, y: textbook.loss(textbook.arcface(x, W, y, 6.0, wanted), y))
    assert head.margin_state.state_m.item() == pytest.approx(wanted, abs=1e-15)
