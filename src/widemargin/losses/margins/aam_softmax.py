"""AAM-Softmax as used in speaker recognition: ArcFace with sub-centres and a penalty on the nearest other classes.

Formula: z_y = s cos(θ_y + m) up to π − m, then s (cos θ_y − 1 + cos m), which continues it without a jump;
z_j = s cos(θ_j − penalty) for the `topk` nearest other classes of each sample, s cos θ_j for the rest. With k > 1,
θ is the angle to the nearest of k weights of a class.
Domain: s > 0; 0 ≤ m ≤ π/2 and 0 ≤ penalty ≤ π/2 radians; integer k ≥ 1; 0 ≤ topk < number of classes.
topk = 0 is ArcFace with the continuous curve.
When: speakers. Recipes let m rise, `m=warmup(0, 0.2, steps=…)`, and fine-tune with m = 0.5 and topk = 0.
Reference: Zhao et al., Multi-query multi-head attention pooling and inter-topK penalty (arXiv 2110.05042), Eq. 6 and 7;
s = 32, m = 0.2 and penalty = 0.06 as in wespeaker, whose recipes also have `k=3, topk=5` (here one weight and no
penalty by default) and let the penalty rise with the margin: `penalty=warmup(0, 0.06, steps=…)`.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3, 0.4]])
>>> specs = ("aam_softmax(s=4)", "aam_softmax(s=4, topk=1, penalty=0.1)")
>>> [round(wm.margin_softmax(cos, torch.tensor([0]), spec).item(), 4) for spec in specs]
[0.3867, 0.4833]
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...io.errors import InputError
from ...numerics.angles import PI, safe_sine
from ...numerics.precision import number_like
from ..base import Number, option
from ..margin import Margin, SampleStatistics, Subcenters


@dataclass(frozen=True, repr=False)
class AAMSoftmax(Margin):
    name = "aam_softmax"
    reference = "Zhao et al., inter-topK penalty, arXiv 2110.05042, Eq. 6 and 7"
    group = "speakers"
    phi_sample_fields = sample_fields = ("threshold",)
    neutral = ({"m": 0.0}, "normface")

    s: Number = option(32.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: Number = option(0.2, "margin in radians", low=0, high=PI / 2, allows_schedule=True, per_class=True)
    k: int = option(1, "weights per class", low=1, kind=int)
    topk: int = option(0, "nearest other classes that get the penalty", low=0, kind=int)
    penalty: Number = option(0.06, "angle subtracted from theirs, in radians", low=0, high=PI / 2, allows_schedule=True)

    threshold: ClassVar[float | Tensor] = 2.0
    """Per sample: cosine above which another class is among the nearest."""

    @property
    def subcenters(self) -> Subcenters | None:
        return Subcenters(self.k) if self.k > 1 else None

    @property
    def is_linear(self) -> bool:
        return self.topk == 0

    @property
    def has_plain_target(self) -> bool:
        return False

    @property
    def non_monotone(self) -> bool:  # type: ignore[override]
        return self.topk > 0  # cos(θ − penalty) increases up to the penalty

    def check_num_classes(self, num_classes: int) -> None:
        super().check_num_classes(num_classes)
        if self.topk >= num_classes:
            raise InputError(f"aam_softmax: topk={self.topk} must be below the number of classes, {num_classes}")

    def for_samples(self, samples: SampleStatistics) -> Self:
        if self.topk == 0:
            return self.with_values(threshold=torch.full_like(samples.x_norm().detach(), 2.0))
        # Midway between the last class that counts and the next, so that rounding does not decide; −∞ if all others
        # count.
        nearest = samples.largest_cosines(self.topk + 1)
        return self.with_values(threshold=nearest[..., -2:].mean(-1))

    def psi(self, theta: Tensor) -> Tensor:
        m = number_like(self.m, theta)
        return torch.where(theta <= PI - m, torch.cos(theta + m), torch.cos(theta) - 1.0 + torch.cos(m))

    def phi(self, cos: Tensor) -> Tensor:
        if self.topk == 0:
            return cos
        penalty = number_like(self.penalty, cos)
        nearer = cos * torch.cos(penalty) + safe_sine(cos) * torch.sin(penalty)  # cos(θ − penalty)
        return torch.where(cos > self.threshold, nearer, cos)
