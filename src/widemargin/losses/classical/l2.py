"""L2: the squared error; smooth at 0 and sensitive to outliers.

Formula: ½ (y − ŷ)²; `half=False` drops the ½, as in the mean squared error.
Domain: any predictions and targets of one shape.
When: regression without outliers; the minimiser is the mean.
Reference: Gauss 1809; torch.nn.functional.mse_loss.

>>> import torch, widemargin as wm
>>> round(wm.L2(half=False)(torch.tensor([0.1]), torch.tensor([1.0])).item(), 2)
0.81
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ..base import option
from ..criterion import Criterion, check_target_shape


@dataclass(frozen=True, repr=False)
class L2(Criterion):
    name = "l2"
    reference = "torch.nn.functional.mse_loss"
    group = "classical"

    half: bool = option(True, "include the factor ½", hide_default=True)

    def elementwise_loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        squared = F.mse_loss(prediction, check_target_shape(self.name, prediction, target), reduction="none")
        return 0.5 * squared if self.half else squared
