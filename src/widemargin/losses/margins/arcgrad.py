"""ArcGrad: softmax over angles; no margin parameter, the scale alone makes a gradient margin.

Formula: z_j = −s θ_j for every class.
Domain: s > 0. Scale and gap are inversely proportional: of all scales, s = (W₀((C−1)/e) + 1)/gap moves samples of
that angular gap fastest, so a small s asks for a wide gap. `suggest_scale(num_classes, gap)` gives it; where a small s
starts slowly, `s=decay(40, 5, steps=…)`.
When: in doubt: one number, and a rule for it. Tables, images and open sets alike.
Reference: Wu and Wang, ArcGrad (IJCNN 2020, doi 10.1109/IJCNN48605.2020.9207251), Eq. 11.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "arcgrad(s=4)").item(), 4)
0.0429
"""

from dataclasses import dataclass

from torch import Tensor

from ...numerics.angles import safe_arccos
from ..base import Number, option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class ArcGrad(Margin):
    name = "arcgrad"
    reference = "Wu and Wang, ArcGrad, IJCNN 2020, Eq. 11"

    s: Number = option(10.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)

    def psi(self, theta: Tensor) -> Tensor:
        return -theta

    def phi(self, cos: Tensor) -> Tensor:
        return -safe_arccos(cos)
