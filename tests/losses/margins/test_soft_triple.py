"""SoftTriple: several weights per class, averaged by their nearness."""

from __future__ import annotations

import pytest
import torch

from margin_cases import (
    BACKENDS,
    head_result,
    make_batch,
    make_head,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_penalty_draws_weights_of_a_class_together(backend):
    head = make_head(4, 3, "soft_triple(k=4, tau=5)", backend)
    x, y = make_batch(head, 12)
    optimizer = torch.optim.SGD([head.weight], lr=0.5)

    def spread():
        unit = torch.nn.functional.normalize(head.weight.detach(), dim=2)
        return (1 - unit @ unit.mT).mean().item()

    before = spread()
    for _ in range(50):
        optimizer.zero_grad()
        head(x, y).mean().backward()
        optimizer.step()
    assert spread() < 0.5 * before


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_weights_of_a_class_have_finite_gradients(backend):
    head = make_head(4, 3, "soft_triple(k=3)", backend)
    with torch.no_grad():
        head.weight[:, 1] = 2 * head.weight[:, 0]
        head.weight[0] = 0.0
    x, y = make_batch(head, 12)
    loss, gradients = head_result(head, x, y, torch.ones(12, dtype=torch.float64))
    assert torch.isfinite(loss).all()
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_a_small_temperature_takes_the_nearest():
    soft, nearest = make_head(4, 5, "soft_triple(k=3, gamma=1e-4)"), make_head(4, 5, "subcenter_arcface(k=3)")
    x, _ = make_batch(soft, 12)
    torch.testing.assert_close(soft.logits(x) / 20, nearest.logits(x) / 64)
