"""SmoothAP: the average precision of the ranking that each sample gives of the batch, with sigmoids for the steps.

Formula: per query 1 − mean_{p ∈ P} r(p, P) / r(p, all), r(p, S) = 1 + Σ_{j ∈ S, j≠p} sigmoid((c_j − c_p)/τ), c =
cosines. With `include_query=True`, as in the authors' code, the query itself is ranked too and is one of P; then a
query without another sample of its class has precision 1. Otherwise it counts 0 and is reported
(`stats["anchors_without"]`).
Domain: τ > 0.
When: retrieval judged by mean average precision; many samples of a class in a batch.
Reference: Brown et al., Smooth-AP (arXiv 2007.12163); τ = 0.01. Memory is (positive pairs) × N in blocks, not
N³. pytorch-metric-learning 2.9 computes something else unless there are as many classes as samples of each.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("smooth_ap(tau=0.5)")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.1125, 0.2485, 0.2485, 0.1125]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import option
from ..pair_batch import PairBatch, PairList, map_pairs, mean_over_positives
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class SmoothAP(PairLoss):
    name = "smooth_ap"
    reference = "Brown et al., Smooth-AP, arXiv 2007.12163"
    group = "pairs"

    tau: float = option(0.01, "temperature of the steps", low=0, open_low=True)
    include_query: bool = option(True, "rank the query itself too, as the authors' code does", hide_default=True)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        cos = pairs.dots()
        same, different = pairs.masks()
        relevant = same | pairs.itself() if self.include_query else same
        ranked = relevant | different
        anchor, positive = PairList(relevant).find()

        def precision(i: Tensor, p: Tensor) -> Tensor:
            step = torch.sigmoid((cos[i] - cos[i, p].unsqueeze(1)) / self.tau)
            among_all = (step * ranked[i]).sum(1)
            among_own = (step * relevant[i]).sum(1)
            return (among_own + 0.5) / (among_all + 0.5)  # each counts itself with sigmoid(0) = ½ in place of 1

        found = map_pairs(precision, anchor, positive, cos.shape[1])
        loss = 1.0 - mean_over_positives(found, anchor, pairs.count)
        return loss.where(relevant.any(1), 0.0), pairs.statistics(same, different)
