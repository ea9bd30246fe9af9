"""N-pair: each sample is classified to its partner among the partners of all classes.

Formula: the 1st and 2nd, the 3rd and 4th … samples of a class in the batch are pairs (a, p), and both are given the
loss log(1 + Σ_n exp(a·n − a·p)) over the p of all pairs of other classes; plus ½ λ ‖x‖². Embeddings are not normalised.
A sample without a partner, or alone with its class, counts only its ½ λ ‖x‖² and is reported
(`stats["anchors_without"]`).
Domain: λ ≥ 0.
When: batches of two samples of each of many classes; N pairs give N (N − 1) comparisons.
Reference: Sohn, N-pair loss, NIPS 2016; λ = 0.002 as in TensorFlow's npairs_loss. pytorch-metric-learning 2.9
normalises the embeddings unless told otherwise and has no λ.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("n_pair(l2=0)")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.2204, 0.2204, 0.5981, 0.5981]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics import angles
from ...numerics.log_sums import masked_logsumexp
from ..base import option
from ..margin import softplus
from ..pair_batch import EMPTY_LABEL, PairBatch
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
        x = angles.unit_and_norm(pairs.x)[0] if self.normalize else pairs.x
        first, second, exists = _partners(pairs.y)
        ends = torch.cat([first, second])
        anchors, partners = x.index_select(0, ends).chunk(2)
        dots = anchors @ partners.T
        labels = pairs.y[first]
        negative = (labels.unsqueeze(1) != labels) & exists & exists.unsqueeze(1)
        log_sums, used = masked_logsumexp(dots, negative), negative.any(1)
        if pairs.memory is not None and pairs.memory_labels is not None:
            memory = pairs.memory.to(x.dtype)
            memory = angles.unit_and_norm(memory)[0] if self.normalize else memory
            old = (labels.unsqueeze(1) != pairs.memory_labels) & (pairs.memory_labels != EMPTY_LABEL)
            log_sums, used = torch.logaddexp(log_sums, masked_logsumexp(anchors @ memory.T, old)), used | old.any(1)
        used &= exists
        loss_of_pair = softplus(log_sums - dots.diagonal()).where(used, 0.0)
        loss = pairs.own_rows(x.new_zeros(len(x)).index_add(0, ends, loss_of_pair.repeat(2)))
        is_used = pairs.own_rows(torch.zeros_like(pairs.y).index_add(0, ends, used.long().repeat(2)))
        stats = {"positive_pairs": exists.sum(), "anchors_without": (is_used == 0).sum()}
        if self.l2:
            loss = loss + 0.5 * self.l2 * pairs.own_rows(pairs.x).square().sum(1)
        return loss, stats


def _partners(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of the first and second ends of up to N // 2 pairs, and which of these places hold a pair.

    Of a fixed number of places, so that it compiles: where there is no pair, the indices mean nothing.
    """
    ordered, order = y.sort(stable=True)
    start, stop = torch.searchsorted(ordered, ordered), torch.searchsorted(ordered, ordered, right=True)
    place = torch.arange(len(y), device=y.device) - start  # among the samples of its class
    is_first = (place % 2 == 0) & (place + 1 < stop - start)
    most = len(y) // 2
    first, second = (order[(~mask).long().argsort(stable=True)[:most]] for mask in (is_first, place % 2 == 1))
    return first, second, torch.arange(most, device=y.device) < is_first.sum()
