"""Contrastive: pairs of one class together, pairs of two classes at least m apart.

Formula: per anchor the mean over its pairs; a pair of one class costs D, a pair of two classes max(0, m² − D)
(`form=squared`) or max(0, m − √D)² (`form=hadsell`). D is the squared Euclidean distance, on
unit embeddings unless `normalize=False`.
Domain: m > 0, a distance; on the unit sphere distances end at 2.
When: only pairs are known to be alike or not, or together with a margin, and several samples of a class in a batch.
Reference: `form=hadsell` is Eq. 4 of Hadsell, Chopra and LeCun, CVPR 2006, up to its factor ½. The default,
`form=squared`, has the same cost of pairs of one class and a hinge on the squared distance in place of that on the
distance; both are 0 from distance m on and m² at distance 0.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
>>> [round(v, 4) for v in wm.Contrastive()(x, torch.tensor([0, 0, 1])).tolist()]
[1.3, 1.1, 0.4]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import option
from ..pair_batch import PairBatch, map_rows, safe_sqrt
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class Contrastive(PairLoss):
    name = "contrastive"
    reference = "form=hadsell: Hadsell, Chopra and LeCun, CVPR 2006, Eq. 4; default: its hinge on squared distances"
    group = "pairs"

    m: float = option(1.0, "distance that pairs of two classes shall keep", low=0, open_low=True)
    form: str = option("squared", "hinge of pairs of two classes", choices=("squared", "hadsell"), hide_default=True)
    normalize: bool = option(True, "put the embeddings on the unit sphere", hide_default=True)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        distance = pairs.squared_distances(self.normalize)
        same, different = pairs.masks()
        total, active = map_rows(self._sum_over_pairs, distance, same, different)
        stats = {
            "positive_pairs": same.sum() // 2,
            "negative_pairs": different.sum() // 2,
            "active": active.sum() // 2,
        }
        return total / pairs.pairs_per_anchor(), stats

    def _sum_over_pairs(self, distance: Tensor, same: Tensor, different: Tensor) -> tuple[Tensor, Tensor]:
        """Of each anchor the cost of its pairs, and how many pairs of two classes cost anything."""
        if self.form == "hadsell":
            hinge = torch.relu(self.m - safe_sqrt(distance)).square()
        else:
            hinge = torch.relu(self.m**2 - distance)
        cost = torch.where(same, distance, hinge).masked_fill(~(same | different), 0.0)
        return cost.sum(1), ((hinge.detach() > 0) & different).sum(1)
