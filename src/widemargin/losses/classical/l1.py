"""L1: the absolute error; outliers have no more influence than any other point.

Formula: |y − ŷ|.
Domain: any predictions and targets of one shape.
When: regression with outliers; the minimiser is the median.
Reference: Laplace 1774; torch.nn.functional.l1_loss.

>>> import torch, widemargin as wm
>>> wm.L1()(torch.tensor([0.25]), torch.tensor([1.0])).item()
0.75
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ..criterion import Criterion, check_target_shape


@dataclass(frozen=True, repr=False)
class L1(Criterion):
    name = "l1"
    reference = "torch.nn.functional.l1_loss"
    group = "classical"

    def elementwise_loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(prediction, check_target_shape(self.name, prediction, target), reduction="none")
