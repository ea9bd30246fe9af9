"""MultiSimilarity: pairs are weighted by their own similarity and by that of the anchor's other pairs; with its miner.

Formula: per anchor (1/α) log(1 + Σ_{p ∈ P} exp(−α (c_p − λ))) + (1/β) log(1 + Σ_{n ∈ N} exp(β (c_n − λ))), c = cosines,
over the mined pairs: positives with c_p < max_N c + ε, negatives with c_n > min_P c − ε. Anchors without mined pairs
count 0 and are reported (`stats["anchors_without"]`).
Domain: α > 0; β > 0; λ in [−1, 1]; ε ≥ 0, or None for all pairs (then an anchor without positives has its negatives).
When: retrieval with several samples of a class in a batch; a common baseline of deep metric learning.
Reference: Wang et al., Multi-Similarity (arXiv 1904.06627); α = 2, β = 50, ε = 0.1 as in the paper,
and λ = 0.5 as in the authors' code, which has β = 40 and leaves out positives with c > 1 − 10⁻⁵.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("multi_similarity(beta=4)")(x, torch.tensor([0, 1, 0, 1])).tolist()]
[1.0225, 1.0966, 1.0966, 1.0225]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.log_sums import masked_logsumexp
from ..base import option
from ..margin import softplus
from ..pair_batch import PairBatch
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class MultiSimilarity(PairLoss):
    name = "multi_similarity"
    reference = "Wang et al., Multi-Similarity, arXiv 1904.06627"
    group = "pairs"

    alpha: float = option(2.0, "scale of positives", low=0, open_low=True)
    beta: float = option(50.0, "scale of negatives", low=0, open_low=True)
    lam: float = option(0.5, "cosine that pairs are measured from", low=-1, high=1)
    epsilon: float | None = option(0.1, "slack of the miner; None: all pairs", low=0, optional=True)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        cos = pairs.dots()
        same, different = pairs.masks()
        stats = pairs.statistics(same, different)
        if self.epsilon is not None and cos.numel():
            least = cos.detach().masked_fill(~same, torch.inf).amin(1, keepdim=True)
            most = cos.detach().masked_fill(~different, -torch.inf).amax(1, keepdim=True)
            same, different = same & (cos < most + self.epsilon), different & (cos > least - self.epsilon)
            stats["anchors_without"] = (~same.any(1)).sum()
        stats["active"] = same.sum() + different.sum()
        positive = softplus(masked_logsumexp(-self.alpha * (cos - self.lam), same)) / self.alpha
        negative = softplus(masked_logsumexp(self.beta * (cos - self.lam), different)) / self.beta
        return positive + negative, stats
