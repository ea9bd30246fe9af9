"""FastAP: average precision from histograms of the distances, with linear bins.

Formula: per query 1 − (1/|P|) Σ_b h⁺_b H⁺_b / H_b over the edges of L bins of the squared distance (0 to 4): h⁺ = soft
histogram of the positives, H⁺ and H = cumulated histograms of the positives and of all. A query without a positive
counts 0 and is reported (`stats["anchors_without"]`).
Domain: whole L ≥ 1.
When: retrieval judged by mean average precision, with large batches.
Reference: Cakir et al., FastAP, CVPR 2019; L = 10 as in the authors' code.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("fast_ap")(x, torch.tensor([0, 1, 0, 1])).tolist()]
[0.5, 0.6667, 0.6667, 0.5]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import option
from ..pair_batch import PairBatch
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class FastAP(PairLoss):
    name = "fast_ap"
    reference = "Cakir et al., FastAP, CVPR 2019"
    group = "pairs"

    bins: int = option(10, "bins of the squared distance", low=1, high=10_000, kind=int)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        place = pairs.squared_distances() * (self.bins / 4.0)
        same, different = pairs.masks()
        left = place.detach().floor().clamp(max=self.bins - 1)
        share = (place - left).clamp(max=1.0)  # of the edge to the right; the rest is of the one to the left
        edge = left.long()

        def histogram(mask: Tensor) -> Tensor:
            empty = place.new_zeros(pairs.count, self.bins + 1)
            right = share * mask
            return empty.scatter_add(1, edge, mask - right).scatter_add(1, edge + 1, right)

        positives, negatives = histogram(same.to(place.dtype)), histogram(different.to(place.dtype))
        up_to = positives.cumsum(1)
        every = up_to + negatives.cumsum(1)
        precision = up_to / torch.where(every > 0, every, 1.0)
        count = same.sum(1)
        average = (positives * precision).sum(1) / count.clamp(min=1)
        return (1.0 - average).where(count > 0, 0.0), pairs.statistics(same, different)
