"""P2SGrad: the gradient of each cosine is its own error, independent of any scale.

Formula: loss = ½ [(1 − cos θ_y)² + Σ_{j≠y} cos² θ_j].
Domain: no parameters. `mean=True` multiplies by 2/C, as public code does (a mean squared error): then the
learning rate depends on the number of classes.
When: verification of speakers or detection of spoofed speech, if neither scale nor margin is to be chosen.
Reference: Zhang et al., P2SGrad (arXiv 1905.02479), Eq. 10; as a loss: Wang and Yamagishi (arXiv 2103.11326), Eq. 5.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "p2sgrad").item(), 4)
0.07
"""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from ..base import Number, option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class P2SGrad(Margin):
    name = "p2sgrad"
    reference = "Zhang et al., P2SGrad, arXiv 1905.02479, Eq. 10"
    group = "speakers"
    one_vs_all = True
    allows_label_smoothing = False

    mean: bool = option(False, "multiply by 2/C", hide_default=True)
    weight: float | None = option(
        None, "factor of the loss; 1, or 2/C with mean=True", low=0, open_low=True, optional=True, hide_default=True
    )

    def for_num_classes(self, num_classes: int) -> Self:
        default = 2.0 / num_classes if self.mean else 1.0
        resolved = super().for_num_classes(num_classes)
        return resolved if self.weight is not None else resolved.with_values(weight=default)

    def other_loss(self, z: Tensor) -> Tensor:
        return 0.5 * z.square()

    def combine(self, p: Tensor, others: Tensor) -> Tensor:
        return 0.5 * (p - 1.0).square() + others

    def loss_weight(self) -> Number:
        return 1.0 if self.weight is None else self.weight
