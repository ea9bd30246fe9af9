"""Circle loss on pairs: every pair is weighted by its distance from its optimum.

Formula: per anchor log(1 + Σ_{n ∈ N} exp(s a_n (c_n − m)) Σ_{p ∈ P} exp(−s a_p (c_p − 1 + m))), c = cosines, with a_p =
max(0, 1 + m − c_p) and a_n = max(0, c_n + m) taken as constants by the gradient. Anchors without a positive or a
negative count 0 and are reported (`stats["anchors_without"]`). `circle` is its form with class weights.
Domain: s > 0; 0 < m < 1.
When: retrieval with several samples of a class in a batch, where positives and negatives converge at different speeds.
Reference: Sun et al., Circle loss (arXiv 2002.10857), Eq. 4 to 6; s = 80, m = 0.4 as the paper's fine-grained
retrieval. Code that takes the whole batch as one anchor computes something else.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("circle_pairs(s=4)")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.6653, 0.9945, 0.9945, 0.6653]
"""

from dataclasses import dataclass

from torch import Tensor

from ...numerics.log_sums import masked_logsumexp
from ..base import option
from ..margin import softplus
from ..pair_batch import PairBatch
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class CirclePairs(PairLoss):
    name = "circle_pairs"
    reference = "Sun et al., Circle loss, arXiv 2002.10857, Eq. 4 to 6"
    group = "pairs"
    detached = True

    s: float = option(80.0, "scale", low=0, open_low=True)
    m: float = option(0.4, "relaxation", low=0, open_low=True, high=1 - 1e-6)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        cos = pairs.dots()
        same, different = pairs.masks()
        of_positives = -self.s * (1.0 + self.m - cos.detach()).clamp(min=0.0) * (cos - 1.0 + self.m)
        of_negatives = self.s * (cos.detach() + self.m).clamp(min=0.0) * (cos - self.m)
        total = masked_logsumexp(of_negatives, different) + masked_logsumexp(of_positives, same)
        return softplus(total), pairs.statistics(same, different)
