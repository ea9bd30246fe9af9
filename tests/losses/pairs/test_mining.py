"""The two miners that draw: what they draw, how often, and what the loss makes of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import widemargin as wm
from pair_cases import batch, distances_of, loss_and_stats, mean_hinges, triplets_by_loops
from widemargin.losses.pair_batch import pair_masks
from widemargin.losses.pairs._mining import MINERS, MiningConfig


def drawn_triplets(mining: str, x: Tensor, y: Tensor, seed: int, alpha: float = 0.2, pool_size: int = 1000):
    """What a miner draws after a seed, as a list of (positive, negative) per anchor; pairs may repeat."""
    distance = torch.tensor(distances_of(x), dtype=x.dtype)
    torch.manual_seed(seed)
    anchors, positives, negatives = MINERS[mining](distance, *pair_masks(y), MiningConfig(alpha, pool_size, x.shape[1]))
    mined: list[list[tuple]] = [[] for _ in y]
    for a, p, chosen in zip(anchors.tolist(), positives.tolist(), negatives.tolist(), strict=True):
        mined[a].extend((p, n) for n, wanted in enumerate(chosen) if wanted)
    return mined


@pytest.mark.parametrize("mining", ["distance", "pool"])
def test_drawn_triplets_are_an_anchor_its_own_class_and_another(mining):
    x, y = batch([0, 1, 0, 2, 1, 0, 3, 1, 2], dim=3, seed=3)
    mined = drawn_triplets(mining, x, y, seed=0)
    assert sum(map(len, mined)) > 5
    for a, found in enumerate(mined):
        for p, n in found:
            assert p != a
            assert y[p] == y[a] != y[n]


def test_distance_mining_draws_one_negative_for_every_positive_pair():
    x, y = batch([0, 1, 0, 2, 1, 0, 3], dim=3, seed=3)
    for a, found in enumerate(drawn_triplets("distance", x, y, seed=1)):
        assert sorted(p for p, _ in found) == [p for p in range(len(y)) if p != a and y[p] == y[a]]


def test_distance_mining_leaves_out_negatives_beyond_1_4_where_nearer_ones_exist():
    def point_at(degrees: float) -> list[float]:
        return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), 0.0]

    x = torch.tensor([point_at(0), point_at(5), point_at(60), point_at(170), point_at(180)], dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 1, 1])
    drawn = {n for seed in range(40) for _, n in drawn_triplets("distance", x, y, seed)[0]}
    assert drawn == {2}
    only_far = torch.tensor([0, 1, 2, 0, 3])
    assert drawn_triplets("distance", x[[0, 3, 4, 1, 3]], only_far, seed=0)[0] != []


def test_distance_mining_weighs_negatives_by_the_inverse_density_of_their_distance():
    dim, near, far = 6, 0.8, 1.1

    def point_at(chord: float, axis: int) -> list[float]:
        angle = 2 * math.asin(chord / 2)
        return [math.cos(angle), *(math.sin(angle) * (k == axis) for k in range(1, dim))]

    x = torch.tensor([point_at(0.0, 1), point_at(0.1, 3), point_at(near, 1), point_at(far, 2)], dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 2])
    inverse = [1 / (d ** (dim - 2) * (1 - d**2 / 4) ** ((dim - 3) / 2)) for d in (near, far)]
    expected = inverse[0] / sum(inverse)
    draws = 1500
    hits = sum(drawn_triplets("distance", x, y, seed)[0] == [(1, 2)] for seed in range(draws))
    assert abs(hits / draws - expected) < 4 * math.sqrt(expected * (1 - expected) / draws)


def test_pool_keeps_only_semihard_triplets_and_finds_them_all_in_a_large_pool():
    x, y = batch([0, 0, 1, 1, 2, 2, 3], dim=3, seed=1)
    distance = distances_of(x)
    semihard = triplets_by_loops(distance, y.tolist(), "semihard", 0.5)
    assert sum(map(len, semihard)) > 3
    mined = drawn_triplets("pool", x, y, seed=0, alpha=0.5, pool_size=5000)
    assert [set(found) for found in mined] == [set(found) for found in semihard]


@pytest.mark.parametrize("pool_size", [1, 7])
def test_pool_draws_no_more_than_its_size(pool_size):
    x, y = batch([0, 0, 1, 1, 2, 2, 3], dim=3, seed=1)
    found = {sum(map(len, drawn_triplets("pool", x, y, seed, alpha=4.0, pool_size=pool_size))) for seed in range(30)}
    assert max(found) <= pool_size
    assert found != {0}


@pytest.mark.parametrize("mining", ["distance", "pool"])
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_drawn_triplets_are_averaged_per_anchor(mining, alpha):
    x, y = batch([0, 1, 0, 2, 1, 0, 3, 1, 2], dim=3, seed=3)
    mined = drawn_triplets(mining, x, y, seed=11, alpha=alpha)
    torch.manual_seed(11)
    loss, stats = loss_and_stats(f"triplet(mining={mining}, alpha={alpha})", x, y)
    assert loss.tolist() == pytest.approx(mean_hinges(distances_of(x), mined, alpha), abs=1e-12)
    assert stats["triplets"] == sum(map(len, mined))
    assert stats["anchors_without"] == sum(not found for found in mined)


@pytest.mark.parametrize("mining", ["distance", "pool"])
def test_draws_follow_the_seed(mining):
    x, y = batch([0, 1, 0, 2, 1, 0, 3, 1, 2] * 2, dim=3, seed=3)
    pair_loss = wm.Triplet(mining=mining, alpha=1.0, pool_size=20)

    def loss_after_seed(seed: int) -> list[float]:
        torch.manual_seed(seed)
        return pair_loss(x, y).tolist()

    assert loss_after_seed(5) == loss_after_seed(5)
    assert len({tuple(loss_after_seed(seed)) for seed in range(6)}) > 1
