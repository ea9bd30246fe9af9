"""NT-Xent (InfoNCE): each positive pair against the negatives of its anchor.

Formula: per anchor mean_{p ∈ P} log(1 + Σ_{n ∈ N} exp((c_n − c_p)/τ)), c = cosines. Other positives are left out, where
`supcon` has them in the sum. Anchors without a positive count 0 and are reported (`stats["anchors_without"]`).
Domain: τ > 0.
When: two views of every image (give both the image's number as label), without classes; large batches.
Reference: Chen et al., SimCLR (arXiv 2002.05709), Eq. 1; Oord et al., InfoNCE (arXiv 1807.03748), Eq. 4. τ = 0.07 as in
MoCo (arXiv 1911.05722) and pytorch-metric-learning, whose version 2.9 saturates near −log of the smallest number.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("nt_xent(tau=0.5)")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.2333, 0.6271, 0.6271, 0.2333]
"""

from dataclasses import dataclass

from torch import Tensor

from ...numerics.log_sums import masked_logsumexp
from ..base import option
from ..pair_batch import PairBatch, PairList, mean_over_positives, softplus_of_pairs
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class NTXent(PairLoss):
    name = "nt_xent"
    aliases = ("infonce",)
    reference = "Chen et al., SimCLR, arXiv 2002.05709, Eq. 1"
    group = "pairs"

    tau: float = option(0.07, "temperature", low=0, open_low=True)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        z = pairs.dots(1.0 / self.tau)
        same, different = pairs.masks()
        negatives = masked_logsumexp(z, different)
        anchor, positive = PairList(same).find()
        losses = softplus_of_pairs(negatives[anchor] - z[anchor, positive])
        return mean_over_positives(losses, anchor, pairs.count), pairs.statistics(same, different)
