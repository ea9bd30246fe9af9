"""Circle loss on class weights: every cosine is weighted by its distance from its optimum.

Formula: z_y = s [1 + m − c_y]₊ (c_y − 1 + m), z_j = s [c_j + m]₊ (c_j − m), c = cos θ; the factors in [·]₊ have no
gradient.
Domain: s > 0; 0 < m < 1.
When: open sets; the gradient is weak near the optimum and strong far from it. s is large: 256 for faces, 128 for
re-identification, 80 with m = 0.4 for retrieval.
Reference: Sun et al., Circle loss (arXiv 2002.10857), Eq. 6 and 8, in its class-level form.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "circle(s=4)").item(), 4)
0.9764
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import Number, option
from ..margin import Margin
from .normface import NormFace


@dataclass(frozen=True, repr=False)
class Circle(Margin):
    name = "circle"
    reference = "Sun et al., Circle loss, arXiv 2002.10857, Eq. 6 and 8"
    group = "margin"
    detached = True
    non_monotone = True

    s: Number = option(256.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: Number = option(0.25, "relaxation", low=0, open_low=True, high=1 - 1e-6, allows_schedule=True)

    def psi(self, theta: Tensor) -> Tensor:
        cos = torch.cos(theta)
        curve: Tensor = (1.0 + self.m - cos).detach() * (cos - 1.0 + self.m)
        return curve

    def for_inference(self) -> Margin:
        return NormFace().with_values(s=self.s)

    def phi(self, cos: Tensor) -> Tensor:
        curve: Tensor = (cos + self.m).detach().clamp(min=0.0) * (cos - self.m)
        return curve
