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


class Mined(NamedTuple):
    """Pairs and the negatives chosen for each."""

    anchor: Tensor
    positive: Tensor
    negatives: Tensor


class Setting(NamedTuple):
    """What a miner may need besides the distances."""

    alpha: float
    pool_size: int
    dim: int


def all(distance: Tensor, same: Tensor, different: Tensor, setting: Setting) -> Mined:  # noqa: A001
    """Every triplet."""
    anchor, positive = same.nonzero(as_tuple=True)
    return Mined(anchor, positive, different[anchor])


def hard(distance: Tensor, same: Tensor, different: Tensor, setting: Setting) -> Mined:
    """For each anchor its farthest positive and its nearest negative."""
    anchor = (same.any(1) & different.any(1)).nonzero().squeeze(1)
    if not len(anchor):
        return Mined(anchor, anchor, different[anchor])
    farthest = distance.masked_fill(~same, -torch.inf)[anchor].argmax(1)
    nearest = distance.masked_fill(~different, torch.inf)[anchor].argmin(1)
    return Mined(anchor, farthest, _one_each(nearest, len(distance)))


def semihard(distance: Tensor, same: Tensor, different: Tensor, setting: Setting) -> Mined:
    """Every triplet whose negative is farther than the positive, but by less than α."""
    anchor, positive = same.nonzero(as_tuple=True)
    return _semihard_of(Mined(anchor, positive, different[anchor]), distance, setting.alpha)


def distance(distance: Tensor, same: Tensor, different: Tensor, setting: Setting) -> Mined:
    """One negative per pair, drawn so that all distances are equally likely (Wu et al. 2017).

    Random points on a sphere crowd at distance √2; each negative is weighted with the inverse of that
    density, cut off at 0.5, and those beyond 1.4 (which give no loss) are left out where others exist.
    """
    anchor, positive = same.nonzero(as_tuple=True)
    usable = different.any(1)[anchor]
    anchor, positive = anchor[usable], positive[usable]
    if not len(anchor):
        return Mined(anchor, positive, different[anchor])
    d = distance.sqrt().clamp(0.5, 1.99)
    log_density = (setting.dim - 2) * d.log() + (setting.dim - 3) / 2 * (1.0 - d.square() / 4).log()
    near = different & (distance < 1.4**2)
    allowed = torch.where(near.any(1, keepdim=True), near, different)
    weight = torch.softmax((-log_density).masked_fill(~allowed, -torch.inf), 1)
    drawn = torch.multinomial(weight[anchor], 1).squeeze(1)
    return Mined(anchor, positive, _one_each(drawn, len(distance)))


def pool(distance: Tensor, same: Tensor, different: Tensor, setting: Setting) -> Mined:
    """Draw `pool_size` triplets, each as likely as any other, and keep the semi-hard ones."""
    triplets = same.sum(1) * different.sum(1)
    if not triplets.any():
        none = triplets.nonzero().squeeze(1)
        return Mined(none, none, different[none])
    anchor = torch.multinomial(triplets.to(distance.dtype), setting.pool_size, replacement=True)
    positive = torch.multinomial(same[anchor].to(distance.dtype), 1).squeeze(1)
    negative = torch.multinomial(different[anchor].to(distance.dtype), 1).squeeze(1)
    return _semihard_of(Mined(anchor, positive, _one_each(negative, len(distance))), distance, setting.alpha)


def _one_each(index: Tensor, columns: int) -> Tensor:
    mask = torch.zeros(len(index), columns, dtype=torch.bool, device=index.device)
    return mask.scatter_(1, index.unsqueeze(1), True)


def _semihard_of(mined: Mined, distance: Tensor, alpha: float) -> Mined:
    to_positive = distance[mined.anchor, mined.positive].unsqueeze(1)
    to_others = distance[mined.anchor]
    chosen = (to_others > to_positive) & (to_others < to_positive + alpha)
    return mined._replace(negatives=mined.negatives & chosen)


Miner = Callable[[Tensor, Tensor, Tensor, Setting], Mined]
MINERS: dict[str, Miner] = {
    name: function
    for name, function in inspect.getmembers(sys.modules[__name__], inspect.isfunction)
    if not name.startswith("_") and function.__module__ == __name__
}
