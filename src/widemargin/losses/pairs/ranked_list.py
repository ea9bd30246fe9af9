"""Ranked list loss: positives within a ball, negatives out of a larger one, the nearest negatives with more weight.

Formula: d = Euclidean distance of unit embeddings; per anchor (1 − λ) mean_{p ∈ P*} (d_p − α + m) + λ Σ_{n ∈ N*} w_n (α
− d_n) / Σ w, with P* the positives farther than α − m, N* the negatives nearer than α, w_n = exp(T (α − d_n)) taken as
constants by the gradient. What has no P* or no N* counts 0 there; anchors without a positive or a negative are reported
(`stats["anchors_without"]`).
Domain: 0 < α ≤ 2; 0 ≤ m ≤ α; 0 ≤ λ ≤ 1; T ≥ 0.
When: retrieval with several samples of a class in a batch; classes need not become points.
Reference: Wang et al., Ranked list loss (arXiv 1903.03238), its RLL-simpler: no weights of the positives, λ = 0.5, α =
1 + m/2. m = 0.4 is the authors' setting for In-shop Clothes, where their files have T = 10 in the name and 12 inside;
for CUB α = 1.4, m = 0.2, T = 10. pytorch-metric-learning has no default m and T, and differentiates the weights too.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("ranked_list")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.0, 0.1528, 0.1528, 0.0]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...io.errors import InputError
from ...numerics.log_sums import EMPTY_LOG_SUM
from ..base import option
from ..pair_batch import PairBatch
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class RankedList(PairLoss):
    name = "ranked_list"
    reference = "Wang et al., Ranked list loss, arXiv 1903.03238"
    group = "pairs"
    detached = True

    alpha: float = option(1.2, "distance that negatives shall keep", low=0, open_low=True, high=2)
    m: float = option(0.4, "positives shall be nearer than alpha − m", low=0)
    temperature: float = option(10.0, "T: how much more near negatives count", low=0)
    lam: float = option(0.5, "share of the negatives", low=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m > self.alpha:
            raise InputError(
                f"ranked_list(m={self.m:g}): m must be at most alpha={self.alpha:g}, else no positive is near enough"
            )

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        distance = pairs.distances()
        same, different = pairs.masks()
        too_far, too_near = distance - (self.alpha - self.m), self.alpha - distance
        far, near = same & (too_far.detach() > 0), different & (too_near.detach() > 0)
        positive = (too_far * far).sum(1) / far.sum(1).clamp(min=1)
        weight = torch.softmax((self.temperature * too_near.detach()).masked_fill(~near, EMPTY_LOG_SUM), 1) * near
        negative = (weight * too_near).sum(1)
        stats = pairs.statistics(same, different) | {"active": far.sum() + near.sum()}
        return (1.0 - self.lam) * positive + self.lam * negative, stats
