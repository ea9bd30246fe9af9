"""Combined margin: a factor, an added angle and a subtracted cosine in one curve.

Formula: z_y = s (g(m1 θ_y + m2) − m3), g(t) = (−1)^k cos t − 2k with k = ⌊t/π⌋; z_j = s cos θ_j.
Domain: s > 0, m1 ≥ 1, 0 ≤ m2 ≤ π/2, 0 ≤ m3 ≤ 2. (1, 0, m) is CosFace, an integer (m1, 0, 0) is ψ, (1, m, 0) is ArcFace
up to π − m; past it this curve is continuous where ArcFace's jumps. m2 and m3 may differ per class.
`gradient=straight_through` has the same loss with the gradient of cos θ, as insightface trains its combined margin; the
default is the gradient of the loss.
When: to mix the three margins, or to use a setting written in these three numbers elsewhere.
Reference: ArcFace (arXiv 1801.07698), Eq. 4.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "combined(s=4, m1=1, m2=0.3, m3=0.2)").item(), 4)
0.3231
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.angles import PI, falling_cosine
from ..base import Number, option
from ..margin import Margin
from .arcface import straight_through


@dataclass(frozen=True, repr=False)
class Combined(Margin):
    name = "combined"
    reference = "Deng et al., ArcFace, arXiv 1801.07698, Eq. 4"
    group = "margin"
    neutral = ({"m1": 1.0, "m2": 0.0, "m3": 0.0}, "normface")

    s: Number = option(64.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m1: Number = option(1.0, "factor of the target angle", low=1, allows_schedule=True)
    m2: Number = option(0.5, "added angle in radians", low=0, high=PI / 2, allows_schedule=True, per_class=True)
    m3: Number = option(0.0, "subtracted cosine", low=0, high=2, allows_schedule=True, per_class=True)

    gradient: str = option(
        "exact", "gradient used in training", choices=("exact", "straight_through"), hide_default=True
    )

    @property
    def detached(self) -> bool:  # type: ignore[override]
        return self.gradient == "straight_through"

    def psi(self, theta: Tensor) -> Tensor:
        curve: Tensor = falling_cosine(self.m1 * theta + self.m2) - self.m3
        return straight_through(curve, torch.cos(theta)) if self.gradient == "straight_through" else curve
