"""CurricularFace: hard classes, nearer than the target's margin allows, count more, increasingly so during training.

Formula: z_y = s cos(θ_y + m) as ArcFace; z_j = s c_j, or s c_j (t + c_j) where c_j = cos θ_j > cos(θ_y + m) (hard).
t ← α mean cos θ_y + (1 − α) t over the batch (of all ranks), without gradient, updated before it is used.
Domain: s > 0; 0 ≤ m ≤ π/2 radians; 0 ≤ α ≤ 1; initial t in [−1, 1]. Evaluation keeps the last t.
When: faces with many classes and clean labels; easy classes come first. A hard class with c_j < −t/2 is pulled towards
the sample: the derivative of c_j (t + c_j) is negative there, as in the paper.
Reference: Huang et al., CurricularFace (arXiv 2004.00288), Eq. 5 to 8; α = 0.01 as in the authors' code (the paper
exchanges α and 1 − α).

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.5, 0.4, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "curricularface(s=4, m=0.5)").item(), 4)
1.1031
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...numerics.angles import PI
from ..base import Number, option
from ..margin import BatchStatistics, Margin, SampleStatistics
from .arcface import arc_curve


@dataclass(frozen=True, repr=False)
class CurricularFace(Margin):
    name = "curricularface"
    reference = "Huang et al., CurricularFace, arXiv 2004.00288, Eq. 5 to 8"
    group = "hard-classes"
    adaptive_fields = ("t",)
    sample_fields = phi_sample_fields = ("threshold",)
    non_monotone = True

    s: Number = option(64.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: Number = option(0.5, "margin in radians", low=0, high=PI / 2, allows_schedule=True)
    alpha: float = option(0.01, "weight of a batch's mean cosine in t", low=0, high=1, hide_default=True)
    t: Number = option(0.0, "initial t", low=-1, high=1, hide_default=True)

    threshold: ClassVar[float | Tensor] = 2.0
    """Per sample: cosine above which a class is hard; at inference no class is."""

    def adapt_to_batch(self, batch: BatchStatistics) -> Self:
        if batch.theta.numel() == 0:
            return self
        return self.with_values(t=self.alpha * batch.mean(torch.cos(batch.theta)) + (1.0 - self.alpha) * self.t)

    def for_samples(self, samples: SampleStatistics) -> Self:
        return self.with_values(threshold=torch.cos(samples.theta() + self.m))

    def psi(self, theta: Tensor) -> Tensor:
        return arc_curve(theta, self.m)

    def phi(self, cos: Tensor) -> Tensor:
        return torch.where(cos > self.threshold, cos * (self.t + cos), cos)
