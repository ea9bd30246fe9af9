"""SphereFace-R: SphereFace's factor on the angle, with unit embeddings and without annealing.

Formula: version=v1: z_y = s cos(min(m θ_y, π)), z_j = s cos θ_j; version=v2: z_y = s cos θ_y, z_j = s cos(θ_j / m).
Domain: s > 0; m ≥ 1. m = 1 is NormFace. `gradient=detached` has the same values with the gradient of the plain cosine
(the paper's characteristic gradient detachment); `weight=50` multiplies the loss by 50/s as in the authors' code.
When: a multiplied angle without SphereFace's annealing; v1 has no gradient past π/m, v2 has one everywhere.
Reference: Liu et al., SphereFace Revived (arXiv 2109.05565), Eq. 7, 9 and 13. The defaults s = 30 and m = 1.5 are the
authors' for v1; theirs for v2 are s = 60 and m = 1.4: `sphereface_r(version=v2, s=60, m=1.4)`.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> specs = ("sphereface_r(s=4, m=1.5)", "sphereface_r(s=4, m=1.5, version=v2)")
>>> [round(wm.margin_softmax(cos, torch.tensor([0]), spec).item(), 4) for spec in specs]
[0.1689, 0.4197]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.angles import PI, safe_arccos
from ..base import Number, option
from ..margin import Margin
from .arcface import straight_through
from .normface import NormFace


@dataclass(frozen=True, repr=False)
class SphereFaceR(Margin):
    name = "sphereface_r"
    reference = "Liu et al., SphereFace Revived, arXiv 2109.05565, Eq. 7, 9 and 13"
    group = "margin"
    neutral = ({"m": 1.0}, "normface")

    s: Number = option(30.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: Number = option(1.5, "factor of the angle", low=1, allows_schedule=True)
    version: str = option("v1", "v1 multiplies the target's angle, v2 divides the others'", choices=("v1", "v2"))
    weight: float | None = option(
        None, "the loss is multiplied by weight/s", low=0, open_low=True, optional=True, hide_default=True
    )
    gradient: str = option("exact", "gradient used in training", choices=("exact", "detached"), hide_default=True)

    @property
    def detached(self) -> bool:  # type: ignore[override]
        return self.gradient == "detached"

    @property
    def is_linear(self) -> bool:
        return self.version == "v1"

    @property
    def has_plain_target(self) -> bool:
        return False

    def loss_weight(self) -> Number:
        return 1.0 if self.weight is None else self.weight / self.s

    def psi(self, theta: Tensor) -> Tensor:
        plain = torch.cos(theta)
        if self.version == "v2":
            return plain
        curve = torch.cos((self.m * theta).clamp(max=PI))
        return straight_through(curve, plain) if self.gradient == "detached" else curve

    def for_inference(self) -> Margin:
        return NormFace().with_values(s=self.s) if self.version == "v2" else self

    def phi(self, cos: Tensor) -> Tensor:
        if self.version == "v1":
            return cos
        curve = torch.cos(safe_arccos(cos) / self.m)
        return straight_through(curve, cos) if self.gradient == "detached" else curve
