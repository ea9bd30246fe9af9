"""ElasticFace: the margin of every sample is drawn in every step."""

from __future__ import annotations

import pytest
import torch

from margin_cases import (
    make_batch,
    make_head,
    target_angles,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn_margins(spec, samples=4000, **options):
    """Margins that a training call takes off the target's cosine, read off its loss."""
    head = make_head(4, 2, spec, **options)
    x, y = make_batch(head, samples)
    with torch.no_grad():
        loss = head(x, y)
        other = head.eval().logits(x).gather(1, 1 - y.unsqueeze(1)).squeeze(1)
    return torch.cos(target_angles(head, x, y)) - (other - loss.expm1().log()) / head.scale, head, x, y


def test_margins_have_their_mean_and_deviation():
    margins, *_ = drawn_margins("elasticface(s=2, form=cos, m=0.4, sigma=0.1)")
    assert margins.mean().item() == pytest.approx(0.4, abs=5 * 0.1 / 4000**0.5)
    assert margins.std().item() == pytest.approx(0.1, rel=0.06)


def test_with_plus_the_smallest_cosine_gets_the_largest_margin():
    margins, head, x, y = drawn_margins("elasticface(s=2, form=cos, m=0.4, sigma=0.1, plus=True)", 50)
    assert torch.equal(margins.argsort(descending=True), torch.cos(target_angles(head, x, y)).argsort())


def test_calls_draw_anew_from_torchs_generator_and_evaluation_draws_nothing():
    head = make_head(4, 5, "elasticface(s=8)")
    x, y = make_batch(head, 9)
    torch.manual_seed(5)
    first, second = head(x, y), head(x, y)
    torch.manual_seed(5)
    assert torch.equal(head(x, y), first)
    assert not torch.equal(first, second)
    state = torch.random.get_rng_state()
    assert torch.equal(head.eval()(x, y), head(x, y))
    assert torch.equal(torch.random.get_rng_state(), state)
