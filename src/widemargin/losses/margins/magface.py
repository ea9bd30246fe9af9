"""MagFace: the norm of an embedding sets its margin and is increased by a penalty, so that it measures quality.

Formula: z_y = s cos(θ_y + m(a)) as ArcFace, z_j = s cos θ_j, plus λ_g (1/a + a/u_a²), with a = ‖x‖ clipped to
[l_a, u_a] and m(a) = l_m + (u_m − l_m)(a − l_a)/(u_a − l_a). Both have a gradient in ‖x‖; none outside.
Domain: s > 0; 0 < l_a < u_a; 0 ≤ l_m ≤ u_m ≤ π/2; λ_g ≥ s (u_m − l_m)/(u_a − l_a) · u_a² l_a²/(u_a² − l_a²), below
which norms have no optimum. l_m = u_m with λ_g = 0 is ArcFace. `easy=True` drops the margin past 90°, where the
loss then jumps down, as in the public code.
When: faces whose quality is to be read from the embedding. A network trained with another loss keeps its old norms for
a long time: train from scratch.
Reference: Meng et al., MagFace (arXiv 2103.06627), Eq. 3 and 5; all numbers as in the authors' run.sh.

>>> import torch, widemargin as wm
>>> head = wm.Head(2, 3, "magface(s=4, lambda_g=2)", dtype=torch.float64)
>>> _ = head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
>>> short, long = torch.tensor([[6.0, 8.0]]), torch.tensor([[60.0, 80.0]])
>>> [round(head(x, torch.tensor([0])).item(), 3) for x in (short, long)]
[2.72, 3.75]
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...io.errors import InputError
from ...numerics.angles import PI
from ..base import option
from ..margin import Margin, SampleStatistics
from ..schedule import format_number
from .arcface import arc_curve


@dataclass(frozen=True, repr=False)
class MagFace(Margin):
    name = "magface"
    reference = "Meng et al., MagFace, arXiv 2103.06627, Eq. 3 and 5"
    group = "quality"
    sample_fields = ("magnitude",)
    neutral = ({"l_m": 0.0, "u_m": 0.0, "lambda_g": 0.0}, "normface")

    s: float = option(64.0, "scale", low=0, open_low=True)
    l_a: float = option(10.0, "norm from which the margin grows", low=0, open_low=True)
    u_a: float = option(110.0, "norm up to which it grows", low=0, open_low=True)
    l_m: float = option(0.45, "margin at the lower norm, in radians", low=0, high=PI / 2)
    u_m: float = option(0.8, "margin at the upper norm, in radians", low=0, high=PI / 2)
    lambda_g: float = option(35.0, "factor of the penalty on the norm", low=0)
    easy: bool = option(False, "no margin past 90°", hide_default=True)

    magnitude: ClassVar[float | Tensor | None] = None
    """`a` of each sample; the lower norm by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.l_a >= self.u_a or self.l_m > self.u_m:
            raise InputError("magface: l_a must be below u_a, and l_m at most u_m")
        low, high = self.l_a**2, self.u_a**2
        bound = self.s * (self.u_m - self.l_m) / (self.u_a - self.l_a) * (low * high / (high - low))
        if self.lambda_g < bound * (1 - 1e-7):
            raise InputError(
                f"magface: lambda_g={format_number(self.lambda_g)} is below {bound:.4g}, where norms have no "
                "optimum: raise it, or bring l_m and u_m closer"
            )

    @property
    def non_monotone(self) -> bool:  # type: ignore[override]
        return self.easy  # the target's curve jumps up at 90°

    def for_samples(self, samples: SampleStatistics) -> Self:
        return self.with_values(magnitude=samples.x_norm().clamp(self.l_a, self.u_a))

    def psi(self, theta: Tensor) -> Tensor:
        a = self.l_a if self.magnitude is None else self.magnitude
        curve = arc_curve(theta, self.l_m + (self.u_m - self.l_m) * (a - self.l_a) / (self.u_a - self.l_a))
        return torch.where(theta <= PI / 2, curve, torch.cos(theta)) if self.easy else curve

    def sample_penalty(self) -> Tensor | None:
        if not isinstance(self.magnitude, Tensor) or self.lambda_g == 0.0:
            return None
        return self.lambda_g * (1.0 / self.magnitude + self.magnitude / self.u_a**2)
