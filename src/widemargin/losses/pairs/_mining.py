"""Which triplets of a batch to learn from: one function per `mining`.

A miner gets the distances [N, N] without gradient and the two pair masks, and returns pairs
(anchor [P], positive [P]) with a mask [P, N] of the negatives chosen for each. Adding a miner is
adding a function here: `MINERS` is this module's public functions.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class MinedTriplets(NamedTuple):
    """Pairs and the negatives chosen for each."""

    anchor: Tensor
    positive: Tensor
    negatives: Tensor


class MiningConfig(NamedTuple):
    """What a miner may need besides the distances."""

    alpha: float
    pool_size: int
    embedding_dim: int


def all(distance: Tensor, same: Tensor, different: Tensor, config: MiningConfig) -> MinedTriplets:  # noqa: A001
    """Every triplet."""
    anchor, positive = same.nonzero(as_tuple=True)
    return MinedTriplets(anchor, positive, different[anchor])


def hard(distance: Tensor, same: Tensor, different: Tensor, config: MiningConfig) -> MinedTriplets:
    """For each anchor its farthest positive and its nearest negative."""
    anchor = (same.any(1) & different.any(1)).nonzero().squeeze(1)
    if not len(anchor):
        return MinedTriplets(anchor, anchor, different[anchor])
    farthest = distance.masked_fill(~same, -torch.inf)[anchor].argmax(1)
    nearest = distance.masked_fill(~different, torch.inf)[anchor].argmin(1)
    return MinedTriplets(anchor, farthest, _one_hot_mask(nearest, len(distance)))


def semihard(distance: Tensor, same: Tensor, different: Tensor, config: MiningConfig) -> MinedTriplets:
    """Every triplet whose negative is farther than the positive, but by less than α."""
    anchor, positive = same.nonzero(as_tuple=True)
    return _keep_semihard(MinedTriplets(anchor, positive, different[anchor]), distance, config.alpha)


def distance(distance: Tensor, same: Tensor, different: Tensor, config: MiningConfig) -> MinedTriplets:
    """One negative per pair, drawn so that all distances are equally likely (Wu et al. 2017).

    Random points on a sphere crowd at distance √2; each negative is weighted with the inverse of that
    density, cut off at 0.5, and those beyond 1.4 (which give no loss) are left out where others exist.
    """
    anchor, positive = same.nonzero(as_tuple=True)
    usable = different.any(1)[anchor]
    anchor, positive = anchor[usable], positive[usable]
    if not len(anchor):
        return MinedTriplets(anchor, positive, different[anchor])
    d = distance.sqrt().clamp(0.5, 1.99)
    log_density = (config.embedding_dim - 2) * d.log() + (config.embedding_dim - 3) / 2 * (1.0 - d.square() / 4).log()
    near = different & (distance < 1.4**2)
    allowed = torch.where(near.any(1, keepdim=True), near, different)
    weight = torch.softmax((-log_density).masked_fill(~allowed, -torch.inf), 1)
    drawn = torch.multinomial(weight[anchor], 1).squeeze(1)
    return MinedTriplets(anchor, positive, _one_hot_mask(drawn, len(distance)))


def pool(distance: Tensor, same: Tensor, different: Tensor, config: MiningConfig) -> MinedTriplets:
    """Draw `pool_size` triplets, each as likely as any other, and keep the semi-hard ones."""
    triplets = same.sum(1) * different.sum(1)
    if not triplets.any():
        none = triplets.nonzero().squeeze(1)
        return MinedTriplets(none, none, different[none])
    anchor = torch.multinomial(triplets.to(distance.dtype), config.pool_size, replacement=True)
    positive = torch.multinomial(same[anchor].to(distance.dtype), 1).squeeze(1)
    negative = torch.multinomial(different[anchor].to(distance.dtype), 1).squeeze(1)
    return _keep_semihard(
        MinedTriplets(anchor, positive, _one_hot_mask(negative, len(distance))), distance, config.alpha
    )


def _one_hot_mask(index: Tensor, columns: int) -> Tensor:
    mask = torch.zeros(len(index), columns, dtype=torch.bool, device=index.device)
    return mask.scatter_(1, index.unsqueeze(1), True)


def _keep_semihard(mined: MinedTriplets, distance: Tensor, alpha: float) -> MinedTriplets:
    to_positive = distance[mined.anchor, mined.positive].unsqueeze(1)
    to_others = distance[mined.anchor]
    chosen = (to_others > to_positive) & (to_others < to_positive + alpha)
    return mined._replace(negatives=mined.negatives & chosen)


Miner = Callable[[Tensor, Tensor, Tensor, MiningConfig], MinedTriplets]
MINERS: dict[str, Miner] = {
    name: function
    for name, function in inspect.getmembers(sys.modules[__name__], inspect.isfunction)
    if not name.startswith("_") and function.__module__ == __name__
}
