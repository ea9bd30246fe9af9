"""AdaCos: the scale follows the batches."""

from __future__ import annotations

import math

import pytest
import torch

import textbook
import widemargin as wm
from margin_cases import (
    BACKENDS,
    REGIMES,
    assert_adapts_as_textbook,
    assert_state,
    make_batch,
    make_head,
    spellings_of,
    target_angles,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", spellings_of("adacos"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_adapts_as_textbook(spelling, backend, regime)


def test_uses_the_angle_only_below_45_degrees():
    """A trained batch has its median below π/4 and a random one above: both branches of the minimum."""
    head = make_head(6, 9, "adacos")
    simulation = textbook.AdaCos(9)
    medians = []
    for seed, regime in enumerate(("random", "random", "trained")):
        x, y = make_batch(head, 15, regime, seed)
        medians.append(target_angles(head, x, y).median().item())
        simulation.observe(x, head.weight.detach(), y)
        head(x, y)
        assert_state(head, simulation)
    assert medians[2] < math.pi / 4 < medians[1]


def test_a_floor_holds_the_scale():
    head = make_head(6, 9, "adacos(floor=2.9)")
    seen = []
    for seed, regime in enumerate(("random", "random", "trained", "trained", "trained")):
        head(*make_batch(head, 15, regime, seed))
        seen.append(head.margin_state.state_s.item())
    assert seen[0] == pytest.approx(math.sqrt(2) * math.log(8), rel=1e-12)
    assert min(seen) == 2.9


def test_the_average_does_not_overflow():
    """log B_avg by logsumexp: a scale of 2000 would overflow exp."""
    head = make_head(6, 9, "adacos(floor=2000)")
    x, y = make_batch(head, 15)
    for _ in range(2):
        head(x, y)
    c = textbook.cosines(x, head.weight.detach())
    others = 2000.0 * textbook.without_target(c, y)
    log_average = torch.logsumexp(others.flatten(), 0) - math.log(15)
    assert torch.isinf(others.exp().sum(1).mean())
    median = min(math.pi / 4, target_angles(head, x, y).median().item())
    assert head.margin_state.state_s.item() == pytest.approx(
        max(2000.0, log_average.item() / math.cos(median)), rel=1e-12
    )


def test_a_ceiling_holds_the_scale():
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(8, 6, generator=draw), torch.randint(5, (8,), generator=draw)
    free, held = wm.Head(6, 5, "adacos"), wm.Head(6, 5, "adacos(ceiling=2)")
    held.weight = free.weight
    for _ in range(6):
        free(x, y), held(x, y)
    assert free.scale > 2
    assert held.scale == 2
