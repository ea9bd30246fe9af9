"""Angular loss: the angle at a negative between an anchor and its positive is made small.

Formula: per anchor mean_{p ∈ P} log(1 + Σ_{n ∈ N} exp(4 tan²α (a + p)·n − 2 (1 + tan²α) a·p)) with unit a, p, n.
Anchors without a positive or a negative count 0 and are reported (`stats["anchors_without"]`).
Domain: 0 < α ≤ 1.15 rad (66°).
When: retrieval with several samples of a class in a batch; beside `n_pair` in the paper.
Reference: Wang et al., Angular loss (arXiv 1708.01682), Eq. 8; α = 40° as in pytorch-metric-learning, here in radians.
The paper finds 36° to 55° equally good; public code has 40° or 45°. pytorch-metric-learning 2.9 leaves the negatives as
long as they are.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("angular")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.3124, 0.3124, 0.3124, 0.3124]
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import option
from ..pair_batch import PairBatch, PairList, mean_over_positives, softplus_of_pairs
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class Angular(PairLoss):
    name = "angular"
    reference = "Wang et al., Angular loss, arXiv 1708.01682"
    group = "pairs"

    alpha: float = option(round(math.radians(40.0), 4), "angle in radians", low=0, open_low=True, high=1.15)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        every = pairs.with_all_anchors()
        dots = every.dots()
        same, different = pairs.masks()
        same = same[:, : len(pairs.y)]  # a positive in the memory has no row of its own
        anchor, positive = PairList(same & different.any(1, keepdim=True)).find()
        row, squared_tangent = anchor + pairs.start, math.tan(self.alpha) ** 2
        # Σ_n exp(u_an) exp(u_pn) over the negatives that a and p share is a product of two matrices: N² in place of
        # (positive pairs) × N. The exponents differ by at most 16 tan²α, which the domain of α keeps in range.
        u = 4.0 * squared_tangent * dots
        peak = u.detach().amax(1, keepdim=True) if u.numel() else u.detach().sum(1, keepdim=True)
        exps = torch.exp(u - peak) * every.masks()[1]
        sums = (pairs.own_rows(exps) @ exps.T)[anchor, positive]
        negatives = torch.log(sums) + peak[row, 0] + peak[positive, 0]
        losses = softplus_of_pairs(negatives - 2.0 * (1.0 + squared_tangent) * dots[row, positive])
        return mean_over_positives(losses, anchor, pairs.count), pairs.statistics(same, different)
