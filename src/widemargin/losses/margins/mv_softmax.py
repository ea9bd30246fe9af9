"""MV-Softmax (SV-AM, SV-Arc): hard classes, nearer than the target's margin allows, get a larger logit.

Formula: z_y = s ψ(θ_y) with ψ = cos θ − m (form=am) or cos(θ + m) (form=arc); z_j = s cos θ_j, or
s ((1 + t) cos θ_j + t) where cos θ_j > ψ(θ_y) (hard).
Domain: s > 0; 0 ≤ m ≤ 2 (am: subtracted from the cosine; arc: radians, below π/2); t ≥ 0. t = 0 is CosFace, or ArcFace
up to π − m. `easy=True` drops the margin where cos θ_y ≤ 0, as in the public code but not in the formula.
When: faces with many classes, where few classes are confused with each other.
Reference: Wang et al., MV-Softmax (arXiv 1912.00833), Eq. 7 and 8; t = 0.2, m = 0.35, s = 32 as in the authors' code.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.5, 0.4, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "mv_softmax(s=4)").item(), 4)
2.2509
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...io.errors import InputError
from ...numerics.angles import PI
from ..base import Number, option
from ..margin import Margin, SampleStatistics
from ..schedule import format_number


@dataclass(frozen=True, repr=False)
class MVSoftmax(Margin):
    name = "mv_softmax"
    reference = "Wang et al., MV-Softmax, arXiv 1912.00833, Eq. 7 and 8"
    group = "hard-classes"
    sample_fields = phi_sample_fields = ("threshold",)
    neutral = ({"m": 0.0, "t": 0.0}, "normface")

    s: Number = option(32.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: float = option(0.35, "margin: of the cosine (am) or in radians (arc)", low=0, high=2)
    t: Number = option(0.2, "how much more a hard class counts", low=0, allows_schedule=True)
    form: str = option("am", "how the margin enters", choices=("am", "arc"))
    easy: bool = option(False, "no margin where cos θ_y ≤ 0", hide_default=True)

    threshold: ClassVar[float | Tensor] = 2.0
    """Per sample: cosine above which a class is hard; at inference no class is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "arc" and self.m > PI / 2:
            raise InputError(f"mv_softmax: m={format_number(self.m)} is outside its domain with form=arc: at most π/2")

    @property
    def non_monotone(self) -> bool:  # type: ignore[override]
        return self.form == "arc" or self.easy  # cos(θ + m) increases again past π − m; an easy target's curve jumps

    def for_samples(self, samples: SampleStatistics) -> Self:
        return self.with_values(threshold=self._margin_curve(samples.theta()))

    def _margin_curve(self, theta: Tensor) -> Tensor:
        return torch.cos(theta) - self.m if self.form == "am" else torch.cos(theta + self.m)

    def psi(self, theta: Tensor) -> Tensor:
        curve = self._margin_curve(theta)
        return torch.where(theta < PI / 2, curve, torch.cos(theta)) if self.easy else curve

    def phi(self, cos: Tensor) -> Tensor:
        return torch.where(cos > self.threshold, (1.0 + self.t) * cos + self.t, cos)
