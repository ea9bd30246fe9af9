"""CosFace (AM-Softmax): a margin subtracted from the target's cosine.

Formula: z_y = s (cos θ_y − m), z_j = s cos θ_j.
Domain: s > 0; 0 ≤ m ≤ 2, in units of the cosine; m may differ per class. m = 0 is NormFace.
When: open sets, and a margin without annealing; m from 0.1 to 0.35, with `m=warmup(…)` if training does not start.
Reference: CosFace (arXiv 1801.09414), Eq. 4; AM-Softmax (arXiv 1801.05599), Eq. 6.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "cosface(s=4, m=0.35)").item(), 4)
0.2596
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import Number, option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class CosFace(Margin):
    name = "cosface"
    aliases = ("am_softmax",)
    reference = "Wang et al., CosFace, arXiv 1801.09414, Eq. 4"
    group = "margin"
    neutral = ({"m": 0.0}, "normface")

    s: Number = option(64.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: Number = option(0.35, "margin, subtracted from the cosine", low=0, high=2, allows_schedule=True, per_class=True)

    def psi(self, theta: Tensor) -> Tensor:
        curve: Tensor = torch.cos(theta) - self.m
        return curve
