"""UniFace (UCE): one threshold for all classes, with the target above it and every other class below.

Formula: loss = σ₊(b − s (cos θ_y − m)) + l Σ_{j≠y} σ₊(s cos θ_j − b), σ₊(z) = log(1 + e^z), with a learnt b.
Domain: s > 0; 0 ≤ m ≤ 2, in units of the cosine; l > 0. b starts at log(10 C).
When: open sets evaluated at one threshold on the cosine.
Reference: Zhou et al., UniFace (ICCV 2023), Eq. 10; m = 0.4, s = 64, l = 1 as in the authors' code, which clips both
arguments to ±s; here every sample keeps its gradient.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "uniface(s=4, b=1)").item(), 4)
0.9801
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..base import Number, option
from ..margin import Margin, softplus


@dataclass(frozen=True, repr=False)
class UniFace(Margin):
    name = "uniface"
    reference = "Zhou et al., UniFace, ICCV 2023, Eq. 10"
    group = "one-vs-all"
    one_vs_all = True
    allows_label_smoothing = False
    learnt_fields = ("b",)

    s: Number = option(64.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: Number = option(0.4, "margin, subtracted from the cosine", low=0, high=2, allows_schedule=True, per_class=True)
    l: float = option(1.0, "weight of the other classes", low=0, open_low=True, hide_default=True)  # noqa: E741
    b: Number = option(None, "initial threshold; log(10 C) by default", optional=True, hide_default=True)

    def for_num_classes(self, num_classes: int) -> Self:
        resolved = super().for_num_classes(num_classes)
        return resolved if self.b is not None else resolved.with_values(b=math.log(10.0 * num_classes))

    def psi(self, theta: Tensor) -> Tensor:
        curve: Tensor = torch.cos(theta) - self.m
        return curve

    def common_bias(self) -> Number:
        return -self.b

    def other_loss(self, z: Tensor) -> Tensor:
        return self.l * softplus(z)

    def combine(self, p: Tensor, others: Tensor) -> Tensor:
        return softplus(-p) + others
