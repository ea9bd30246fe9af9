"""ArcGrad: softmax over angles; it needs no margin parameter, because the scale creates a gradient margin.

Formula: z_y = −s (θ_y + m), z_j = −s θ_j; m = 0 unless given.
Domain: s > 0; 0 ≤ m ≤ π/2 radians, m may differ per class. Scale and gap are inversely proportional: among all scales,
s = (W₀((C−1)/e) + 1)/gap moves samples with that angular gap fastest, so a small s favours a wide gap.
`suggest_scale(num_classes, gap)` computes it; if a small s starts slowly, use `s=decay(40, 5, steps=…)`.
With a margin it is Li-ArcFace (AirFace, arXiv 1907.12256): s′ (1 − 2(θ + m)/π) is `arcgrad(s=2s′/π, m=m)`.
When: a good default: one number, with a rule for it. For tables, images and open sets.
Reference: Wu and Wang, ArcGrad (IJCNN 2020, doi 10.1109/IJCNN48605.2020.9207251), Eq. 11.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "arcgrad(s=4)").item(), 4)
0.0429
"""

from dataclasses import dataclass

from torch import Tensor

from ...numerics.angles import PI, safe_arccos
from ..base import Number, option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class ArcGrad(Margin):
    name = "arcgrad"
    reference = "Wu and Wang, ArcGrad, IJCNN 2020, Eq. 11"
    group = "margin"

    s: Number = option(10.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)

    m: Number = option(
        0.0, "margin in radians", low=0, high=PI / 2, allows_schedule=True, per_class=True, hide_default=True
    )

    def psi(self, theta: Tensor) -> Tensor:
        curve: Tensor = -(theta + self.m)
        return curve

    def phi(self, cos: Tensor) -> Tensor:
        return -safe_arccos(cos)
