"""Recall@k surrogate: how many of a query's positives are among the first k, for several k, with sigmoids as steps.

Formula: per query 1 − mean over k = 1, 2, 4, … of min(k, Σ_{p ∈ P} sigmoid((k − r(p))/τ_k)) / min(k, |P|), with the
rank r(p) = 1 + Σ_{j≠i,p} sigmoid((c_j − c_p)/τ), c = cosines. A query without a positive counts 0 and is reported
(`stats["anchors_without"]`).
Domain: τ > 0; τ_k > 0; whole k ≥ 1, the largest one; the others are the powers of 2 below it.
When: retrieval judged by recall at k, with large batches (the paper's have 4,096 images).
Reference: Patel et al., Recall@k surrogate (arXiv 2108.11179); τ = 0.01, τ_k = 1 and k up to 16 as in the
paper. The authors' code counts the query itself in all ranks, so that no rank is below 2; here it is left out.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("recall_at_k(tau=0.5, k=2)")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.4358, 0.5163, 0.5163, 0.4358]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import option
from ..pair_batch import PairBatch, PairList, map_pairs
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class RecallAtK(PairLoss):
    name = "recall_at_k"
    reference = "Patel et al., Recall@k surrogate loss, arXiv 2108.11179"
    group = "pairs"

    k: int = option(16, "largest k", low=1, kind=int)
    tau: float = option(0.01, "temperature of the ranks", low=0, open_low=True)
    tau_k: float = option(1.0, "temperature of the step at k", low=0, open_low=True)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        cos = pairs.dots()
        same, different = pairs.masks()
        anchor, positive = PairList(same).find()
        ranked = same | different

        def rank(i: Tensor, p: Tensor) -> Tensor:
            step = torch.sigmoid((cos[i] - cos[i, p].unsqueeze(1)) / self.tau)
            return (step * ranked[i]).sum(1) + 0.5  # counts itself with sigmoid(0) = ½ in place of 1

        ranks = map_pairs(rank, anchor, positive, cos.shape[1])
        ks = [2**power for power in range(self.k.bit_length()) if 2**power < self.k] + [self.k]
        count = same.sum(1)
        recall = cos.new_zeros(pairs.count)
        for k in ks:
            within = torch.sigmoid((k - ranks) / self.tau_k)
            hits = cos.new_zeros(pairs.count).index_add(0, anchor, within)
            recall = recall + hits.clamp(max=k) / count.clamp(min=1, max=k)
        return (1.0 - recall / len(ks)).where(count > 0, 0.0), pairs.statistics(same, different)
