"""Huber: L2 near 0 and L1 far from it.

Formula: ½ (y − ŷ)² where |y − ŷ| ≤ δ, else δ (|y − ŷ| − δ/2).
Domain: δ > 0.
When: regression with outliers and a smooth minimum; errors above δ count linearly.
Reference: Huber, Annals of Mathematical Statistics 35 (1964); torch.nn.functional.huber_loss.

>>> import torch, widemargin as wm
>>> wm.Huber()(torch.tensor([0.5, 3.0]), torch.tensor([0.0, 0.0])).tolist()
[0.125, 2.5]
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ..base import option
from ..criterion import Criterion, check_target_shape


@dataclass(frozen=True, repr=False)
class Huber(Criterion):
    name = "huber"
    reference = "Huber 1964; torch.nn.functional.huber_loss"
    group = "classical"

    delta: float = option(1.0, "error at which the square becomes linear", low=0, open_low=True)

    def elementwise_loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        target = check_target_shape(self.name, prediction, target)
        return F.huber_loss(prediction, target, reduction="none", delta=self.delta)
