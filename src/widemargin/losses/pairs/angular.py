"""Angular loss: the angle that a negative sees an anchor and its positive under shall be small.

Formula: per anchor mean_{p ∈ P} log(1 + Σ_{n ∈ N} exp(4 tan²α (a + p)·n − 2 (1 + tan²α) a·p)) with unit a, p, n.
Anchors without a positive or a negative count 0 and are reported (`stats["anchors_without"]`).
Domain: 0 < α < π/2 rad.
When: retrieval with several samples of a class in a batch; beside `n_pair` in the paper. Memory is (positive pairs) ×
N, in blocks.
Reference: Wang et al., Angular loss (arXiv 1708.01682), Eq. 7 and 8; α = 40° as in pytorch-metric-learning (the paper:
36° to 55°), here in radians. pytorch-metric-learning 2.9 leaves the negatives as long as they are.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("angular")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.3124, 0.3124, 0.3124, 0.3124]
"""

import math
from dataclasses import dataclass

from torch import Tensor

from ...numerics.angles import PI
from ...numerics.log_sums import masked_logsumexp
from ..base import option
from ..margin import split_softmax
from ..pair_batch import PairBatch, map_pairs, mean_over_positives
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class Angular(PairLoss):
    name = "angular"
    reference = "Wang et al., Angular loss, arXiv 1708.01682, Eq. 7 and 8"
    group = "pairs"

    alpha: float = option(round(math.radians(40.0), 4), "angle in radians", low=0, open_low=True, high=PI / 2 - 1e-3)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        dots = pairs.with_all_anchors().dots()
        same, different = pairs.masks()
        same = same[:, : len(pairs.y)]  # a positive in the memory has no row of its own
        anchor, positive = (same & different.any(1, keepdim=True)).nonzero(as_tuple=True)
        squared_tangent = math.tan(self.alpha) ** 2

        def loss_of_pair(i: Tensor, p: Tensor) -> Tensor:
            row = i + pairs.start
            negatives = masked_logsumexp(4.0 * squared_tangent * (dots[row] + dots[p]), different[i])
            return split_softmax(2.0 * (1.0 + squared_tangent) * dots[row, p], negatives)

        losses = map_pairs(loss_of_pair, anchor, positive, dots.shape[1])
        return mean_over_positives(losses, anchor, pairs.count), pairs.statistics(same, different)
