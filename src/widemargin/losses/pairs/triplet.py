"""Triplet: an anchor must be nearer to its own class than to another by α.

Formula: per anchor the mean over its mined triplets of max(0, D_ap − D_an + α); anchors without one count 0 and are
reported (`stats["anchors_without"]`). D is the squared Euclidean distance, on unit embeddings unless
`normalize=False`.
Domain: α ≥ 0; mining = all, hard (farthest positive, nearest negative), semihard (D_ap < D_an < D_ap + α), distance
(distance-weighted draw, unit embeddings only) or pool (draw `pool_size` triplets, keep the semi-hard).
When: few samples per class, or identities that come and go; alone or together with a margin, and several samples of a
class in a batch.
Reference: FaceNet (arXiv 1503.03832), Eq. 3 and 4; distance weighting: arXiv 1706.07567, Eq. 4.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
>>> [round(v, 4) for v in wm.Triplet(mining="all")(x, torch.tensor([0, 0, 1])).tolist()]
[1.4, 1.8, 0.0]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...io.errors import InputError
from ..base import option
from ..pair_batch import PairBatch, PairList
from ..pair_loss import PairLoss
from ._mining import MINERS, MiningConfig


@dataclass(frozen=True, repr=False)
class Triplet(PairLoss):
    name = "triplet"
    reference = "Schroff et al., FaceNet, arXiv 1503.03832, Eq. 3 and 4"
    group = "pairs"

    alpha: float = option(0.2, "margin, a squared distance", low=0)
    mining: str = option("semihard", "which triplets to learn from", choices=tuple(sorted(MINERS)))
    pool_size: int = option(1000, "triplets drawn by mining=pool", low=1, kind=int, hide_default=True)
    normalize: bool = option(True, "put the embeddings on the unit sphere", hide_default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mining == "distance" and not self.normalize:
            raise InputError("triplet: mining=distance is defined for unit embeddings; use normalize=True")

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        same, different = pairs.masks()
        positives = PairList(same)
        distance = pairs.squared_distances(self.normalize, also_count=positives)
        config = MiningConfig(self.alpha, self.pool_size, pairs.x.shape[1], positives)
        anchor, positive, negatives = MINERS[self.mining](distance.detach(), same, different, config)
        hinge = torch.relu(distance[anchor, positive].unsqueeze(1) - distance[anchor] + self.alpha) * negatives
        zeros = distance.new_zeros(pairs.count)
        total = zeros.index_add(0, anchor, hinge.sum(1))
        count = zeros.index_add(0, anchor, negatives.sum(1).to(zeros.dtype))
        stats = {
            "triplets": negatives.sum(),
            "active": (hinge.detach() > 0).sum(),
            "anchors_without": (count == 0).sum(),
        }
        return total / count.clamp(min=1.0), stats
