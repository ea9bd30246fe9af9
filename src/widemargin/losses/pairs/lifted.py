"""Lifted structure: each positive pair against the negatives of both of its ends.

Formula: d = Euclidean distance. `form=song`: per anchor mean_{p ∈ P} ½ max(0, log(Σ_{n ∈ N_a} e^{m − d_an} + Σ_{n ∈
N_p} e^{m − d_pn}) + d_ap)². `form=generalized`: per anchor max(0, log Σ_{p ∈ P} e^{d_p} + log Σ_{n ∈ N} e^{m − d_n}).
On unit embeddings unless `normalize=False`. Anchors without a positive or a negative count 0 and are reported
(`stats["anchors_without"]`).
Domain: m > 0, a distance.
When: results of that paper are to be made again; `form=generalized` takes all positives of an anchor at once.
Reference: Oh Song et al., Lifted structured embedding (arXiv 1511.06452); Hermans et al., In defense of the
triplet loss (arXiv 1703.07737); m = 1 in both. Distances are not squared.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("lifted")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[1.4328, 1.4328, 1.4328, 1.4328]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.log_sums import masked_logsumexp
from ..base import option
from ..pair_batch import PairBatch, PairList, mean_over_positives
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class Lifted(PairLoss):
    name = "lifted"
    reference = "Oh Song et al., Lifted structured embedding, arXiv 1511.06452"
    group = "pairs"

    m: float = option(1.0, "distance that pairs of two classes shall keep", low=0, open_low=True)
    form: str = option("song", "sum over positives", choices=("song", "generalized"), hide_default=True)
    normalize: bool = option(True, "put the embeddings on the unit sphere", hide_default=True)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        same, different = pairs.masks()
        if self.form == "generalized":
            distance = pairs.distances(self.normalize)
            total = masked_logsumexp(distance, same) + masked_logsumexp(self.m - distance, different)
            return torch.relu(total), pairs.statistics(same, different)
        every = pairs.with_all_anchors()  # a positive's own negatives count too
        own = same[:, : len(pairs.y)]  # a positive in the memory has no row of its own
        lifted_pairs = PairList(own & different.any(1, keepdim=True))
        distance = every.distances(self.normalize, also_count=lifted_pairs)
        negatives = masked_logsumexp(self.m - distance, every.masks()[1])
        anchor, positive = lifted_pairs.find()
        row = anchor + pairs.start
        lifted = torch.relu(torch.logaddexp(negatives[row], negatives[positive]) + distance[row, positive])
        return mean_over_positives(0.5 * lifted.square(), anchor, pairs.count), pairs.statistics(same, different)
