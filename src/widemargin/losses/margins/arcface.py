"""ArcFace: a margin added to the target's angle.

Formula: z_y = s cos(θ_y + m) for θ_y ≤ π − m, else s (cos θ_y − m sin m); z_j = s cos θ_j.
Domain: s > 0; 0 ≤ m ≤ π/2 radians; m may differ per class. m = 0 is NormFace. Past π − m the curve jumps down
(the usual form) and keeps decreasing, so that the gradient never changes sign.
`gradient=straight_through` has the same loss but back-propagates as if there were no margin (the derivative of
cos θ), as insightface does. The default is the gradient of the loss.
When: open sets with many classes, where it is the usual choice; with few classes use a smaller s (5 to 20) and m (0.1
to 0.3).
Reference: ArcFace (arXiv 1801.07698), Eq. 3.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "arcface(s=4, m=0.5)").item(), 4)
0.294
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.angles import PI, is_eager_cpu
from ...numerics.precision import number_like
from ..base import Number, option
from ..margin import Margin


def arc_curve(theta: Tensor, m: Number) -> Tensor:
    """cos(θ + m) up to π − m, then cos θ − m sin m; `m` is a number or a tensor."""
    if not isinstance(m, Tensor) and is_eager_cpu(theta, "arc_curve") and theta.detach().amax().item() <= PI - m:
        return torch.cos(theta + m)  # the usual case, with a fifth of the operations
    lowered = torch.cos(theta) - m * torch.sin(number_like(m, theta))
    return torch.where(theta <= PI - m, torch.cos(theta + m), lowered)


def straight_through(curve: Tensor, slope_of: Tensor) -> Tensor:
    """Return the values of one curve with the gradient of another."""
    return slope_of + (curve - slope_of).detach()


@dataclass(frozen=True, repr=False)
class ArcFace(Margin):
    name = "arcface"
    reference = "Deng et al., ArcFace, arXiv 1801.07698, Eq. 3"
    group = "margin"
    neutral = ({"m": 0.0}, "normface")

    s: Number = option(64.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: Number = option(0.5, "margin in radians", low=0, high=PI / 2, allows_schedule=True, per_class=True)
    gradient: str = option(
        "exact", "gradient used in training", choices=("exact", "straight_through"), hide_default=True
    )

    @property
    def detached(self) -> bool:  # type: ignore[override]
        return self.gradient == "straight_through"

    def psi(self, theta: Tensor) -> Tensor:
        curve = arc_curve(theta, self.m)
        return straight_through(curve, torch.cos(theta)) if self.gradient == "straight_through" else curve
