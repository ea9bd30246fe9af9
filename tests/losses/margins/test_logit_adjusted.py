"""Logit adjustment: the logarithm of each class's share is added in training."""

from __future__ import annotations

import math

import pytest
import torch

import widemargin as wm
from margin_cases import make_batch, make_head

pytestmark = pytest.mark.usefixtures("one_thread")


def test_shares_are_in_the_loss_and_not_in_inference():
    head = make_head(4, 3, "logit_adjusted(counts=[1, 2, 7], tau=2)")
    x, y = make_batch(head, 6)
    shares = 2 * torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64).log()
    torch.testing.assert_close(head.logits(x), x @ head.weight.T)
    torch.testing.assert_close(head.logits(x, y), x @ head.weight.T + shares)


def test_extreme_counts_stay_finite():
    head = make_head(4, 3, "logit_adjusted(counts=[1, 1e15, 3])")
    x, y = make_batch(head, 6)
    assert torch.isfinite(head(x, y)).all()
    assert max(map(abs, head.margin.class_offsets())) == pytest.approx(15 * math.log(10), rel=1e-12)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("logit_adjusted(counts=[4, 0, 2])", r"counts\[1\]=0 is outside its domain"),
        ("logit_adjusted(s=8)", "add cosine=True"),
        ("logit_adjusted(tau=-1)", "outside its domain"),
    ],
)
def test_what_is_undefined_is_one_line(spec, message):
    with pytest.raises(wm.InputError, match=message):
        wm.parse(spec)
