"""N-pair: a sample shall know its partner among the partners of all other classes.

Formula: the 1st and 2nd, the 3rd and 4th … samples of a class in the batch are pairs (a, p), used from both ends: for a
log(1 + Σ_n exp(a·n − a·p)) over the p of other classes, for p the same over their a; plus ½ λ ‖x‖². Embeddings are not
normalised. A sample without a partner, or alone with its class, counts only its ½ λ ‖x‖² and is reported
(`stats["anchors_without"]`).
Domain: λ ≥ 0.
When: batches of two samples of each of many classes; N pairs give N (N − 1) comparisons.
Reference: Sohn, N-pair loss, NIPS 2016 (one direction); λ = 0.002 as in TensorFlow's npairs_loss.
pytorch-metric-learning 2.9 normalises the embeddings unless told otherwise and has no λ.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("n_pair(l2=0)")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.2204, 0.5981, 0.5981, 0.2204]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.log_sums import masked_logsumexp
from ..base import option
from ..margin import split_softmax
from ..pair_batch import PairBatch
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class NPair(PairLoss):
    name = "n_pair"
    reference = "Sohn, N-pair loss, NIPS 2016"
    group = "pairs"
    depends_on_order = True

    l2: float = option(0.002, "factor λ of the squared lengths", low=0)
    normalize: bool = option(False, "put the embeddings on the unit sphere", hide_default=True)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        z = pairs.dots(self.normalize)
        same, different = pairs.masks()
        batch = len(pairs.y)  # columns of the memory have no partners, and are negatives from both ends
        equal = pairs.y.unsqueeze(1) == pairs.y
        place = equal.tril(-1).sum(1)  # among the samples of its class: 0 and 1 are a pair, 2 and 3, …
        own_place = pairs.own_rows(place).unsqueeze(1)
        is_partner = same[:, :batch] & (place // 2 == own_place // 2)
        has_partner = (place % 2 == 1) | (place + 1 < equal.sum(1))
        opposite = (place % 2 != own_place % 2) & has_partner
        negative = different & torch.nn.functional.pad(opposite, (0, z.shape[1] - batch), value=True)
        used = is_partner.any(1) & negative.any(1)
        partner = (z[:, :batch] * is_partner).sum(1)
        loss = split_softmax(partner, masked_logsumexp(z, negative)).where(used, 0.0)
        stats = {"positive_pairs": is_partner.sum(), "anchors_without": (~used).sum()}
        return loss + 0.5 * self.l2 * pairs.own_rows(pairs.x).square().sum(1), stats
