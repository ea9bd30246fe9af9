"""Tuplet margin loss: each positive pair against all negatives of its anchor, with slack for positives that are near.

Formula: per anchor mean_{p ∈ P} log(1 + Σ_{n ∈ N} exp(s (c_n − cos(θ_p − m)))), θ_p = angle of the positive pair.
Anchors without a positive count 0 and are reported (`stats["anchors_without"]`).
Domain: s > 0; 0 ≤ m ≤ π/2 rad. m makes positives easier, so that they need not coincide.
When: retrieval with several samples of a class in a batch and classes of some variety.
Reference: Yu and Tao, Tuplet margin loss, ICCV 2019; s = 64 and m = 0.1 rad (5.73° in pytorch-metric-learning).

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("tuplet(s=4)")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.0349, 0.3307, 0.3307, 0.0349]
"""

import math
from dataclasses import dataclass

from torch import Tensor

from ...numerics.angles import PI, safe_sine
from ...numerics.log_sums import masked_logsumexp
from ..base import option
from ..pair_batch import PairBatch, PairList, mean_over_positives, softplus_of_pairs
from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class Tuplet(PairLoss):
    name = "tuplet"
    reference = "Yu and Tao, Deep metric learning with tuplet margin loss, ICCV 2019"
    group = "pairs"

    s: float = option(64.0, "scale", low=0, open_low=True)
    m: float = option(0.1, "slack of positives, an angle in radians", low=0, high=PI / 2)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        cos = pairs.dots()
        same, different = pairs.masks()
        negatives = masked_logsumexp(self.s * cos, different)
        anchor, positive = PairList(same).find()
        own = cos[anchor, positive]
        eased = math.cos(self.m) * own + math.sin(self.m) * safe_sine(own)  # cos(θ − m) without the angle
        losses = softplus_of_pairs(negatives[anchor] - self.s * eased)
        return mean_over_positives(losses, anchor, pairs.count), pairs.statistics(same, different)
