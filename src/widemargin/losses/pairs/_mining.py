"""Mining of triplets within a batch: one function per `mining`.

A miner gets the distances [N, M] without gradient and the two pair masks, and returns pairs
(anchor [P], positive [P]) with a mask [P, M] of the negatives chosen for each; pairs without a negative
cost nothing. No miner branches on values, so that each compiles with `fullgraph=True`. Adding a miner is
adding a function here: `MINERS` is this module's public functions.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..pair_batch import PairList

_MAX_DRAWN_ELEMENTS = 2**19


class MinedTriplets(NamedTuple):
    """Pairs and the negatives chosen for each."""

    anchor: Tensor
    positive: Tensor
    negatives: Tensor


class MiningConfig(NamedTuple):
    """Inputs of a miner besides the distances."""

    alpha: float
    pool_size: int
    embedding_dim: int
    positives: PairList | None = None
    """The pairs of one class, if they were counted before."""

    def positive_pairs(self, same: Tensor) -> PairList:
        """The pairs of one class."""
        return PairList(same) if self.positives is None else self.positives


def all(distance: Tensor, same: Tensor, different: Tensor, config: MiningConfig) -> MinedTriplets:  # noqa: A001
    """Every triplet."""
    anchor, positive = config.positive_pairs(same).find()
    return MinedTriplets(anchor, positive, different[anchor])


def hard(distance: Tensor, same: Tensor, different: Tensor, config: MiningConfig) -> MinedTriplets:
    """For each anchor its farthest positive and its nearest negative."""
    anchor = torch.arange(len(distance), device=distance.device)
    if not len(distance):
        return MinedTriplets(anchor, anchor, different)
    farthest = distance.masked_fill(~same, -torch.inf).argmax(1)
    nearest = distance.masked_fill(~different, torch.inf).argmin(1)
    usable = same.any(1, keepdim=True) & different.any(1, keepdim=True)
    return MinedTriplets(anchor, farthest, _one_hot_mask(nearest, distance.shape[1]) & usable)


def semihard(distance: Tensor, same: Tensor, different: Tensor, config: MiningConfig) -> MinedTriplets:
    """Every triplet whose negative is farther than the positive, but by less than α."""
    anchor, positive = config.positive_pairs(same).find()
    return _keep_semihard(MinedTriplets(anchor, positive, different[anchor]), distance, config.alpha)


def distance(distance: Tensor, same: Tensor, different: Tensor, config: MiningConfig) -> MinedTriplets:
    """One negative per pair, drawn so that all distances are equally likely (Wu et al. 2017).

    Random points on a sphere crowd at distance √2; each negative is weighted with the inverse of that
    density, cut off at 0.5, and those beyond 1.4 (which give no loss) are left out where others exist.
    """
    anchor, positive = config.positive_pairs(same).find()
    if not len(distance):
        return MinedTriplets(anchor, positive, different[anchor])
    d = distance.sqrt().clamp(0.5, 1.99)
    log_density = (config.embedding_dim - 2) * d.log() + (config.embedding_dim - 3) / 2 * (1.0 - d.square() / 4).log()
    near = different & (distance < 1.4**2)
    allowed = torch.where(near.any(1, keepdim=True), near, different)
    # An anchor without any negative has weights that are not numbers; the mask leaves out what it draws.
    weight = torch.softmax((-log_density).masked_fill(~allowed, -torch.inf), 1).nan_to_num_(0.0)
    drawn = _draw_columns(weight, anchor)
    return MinedTriplets(anchor, positive, _one_hot_mask(drawn, distance.shape[1]) & different[anchor])


def pool(distance: Tensor, same: Tensor, different: Tensor, config: MiningConfig) -> MinedTriplets:
    """Draw `pool_size` triplets, each as likely as any other, and keep the semi-hard ones."""
    if not len(distance):
        none = torch.arange(0, device=distance.device)
        return MinedTriplets(none, none, different)
    triplets = (same.sum(1) * different.sum(1)).to(distance.dtype)
    weight = torch.where(triplets.any(), triplets, torch.ones_like(triplets))  # what is drawn of none is masked below
    anchor = torch.multinomial(weight, config.pool_size, replacement=True)
    positive = _draw_columns(same.to(distance.dtype), anchor)
    negative = _draw_columns(different.to(distance.dtype), anchor)
    negatives = _one_hot_mask(negative, distance.shape[1]) & different[anchor] & same[anchor, positive].unsqueeze(1)
    return _keep_semihard(MinedTriplets(anchor, positive, negatives), distance, config.alpha)


def _draw_columns(weight: Tensor, rows: Tensor) -> Tensor:
    """One column for each of `rows` [P] of `weight` [N, M], as likely as its weight there.

    As `torch.multinomial(weight[rows], 1)` draws it, but P may be 0, and a row of zeros gives some column instead of an
    error. Rows are drawn in blocks: P×M numbers would be the largest tensor of a loss.
    """

    def draw(some: Tensor) -> Tensor:
        chance = torch.empty(len(some), weight.shape[1], dtype=weight.dtype, device=weight.device).exponential_(1.0)
        return torch.div(weight[some], chance, out=chance).argmax(1)

    size = max(1, _MAX_DRAWN_ELEMENTS // max(weight.shape[1], 1))
    if torch.compiler.is_compiling() or len(rows) <= size:
        return draw(rows)
    return torch.cat([draw(some) for some in torch.split(rows, size)])


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
