"""SupCon: an anchor's own class against all other samples, averaged over the positives outside the logarithm.

Formula: per anchor −mean_{p ∈ P} [c_p/τ − log Σ_{j≠i} exp(c_j/τ)], c = cosines; anchors without a positive count 0 and
are reported (`stats["anchors_without"]`).
Domain: τ > 0.
When: pre-training or fine-tuning with several samples of a class in a batch, or several views of an image; large
batches.
Reference: Khosla et al., SupCon (arXiv 2004.11362), Eq. 2 (L_out); τ = 0.1 as in the paper. The authors' code also
multiplies by τ/0.07, and pytorch-metric-learning leaves anchors without a positive out of the mean.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("supcon(tau=0.5)")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.2333, 0.6271, 0.6271, 0.2333]
"""

from dataclasses import dataclass

from torch import Tensor

from ...numerics.log_sums import masked_logsumexp
from ..base import option
from ..margin import softplus
from ..pair_batch import PairBatch, PairList, logsumexp_of_pairs, mean_over_positives
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class SupCon(PairLoss):
    name = "supcon"
    reference = "Khosla et al., SupCon, arXiv 2004.11362, Eq. 2"
    group = "pairs"

    tau: float = option(0.1, "temperature", low=0, open_low=True)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        z = pairs.dots(1.0 / self.tau)
        same, different = pairs.masks()
        anchor, positive = PairList(same).find()
        own = z[anchor, positive]
        positives, negatives = logsumexp_of_pairs(own, anchor, pairs.count), masked_logsumexp(z, different)
        # log Σ over all, split at the positives: with one positive the loss is exact however small it is.
        spread = positives - mean_over_positives(own, anchor, pairs.count)
        loss = softplus(negatives - positives) + spread
        return loss.where(same.any(1), 0.0), pairs.statistics(same, different)
