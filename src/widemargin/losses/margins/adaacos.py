"""AdaAcos: ArcFace that sets its own margin from each batch.

Formula: ArcFace's curve with m̃ = clip(median_i(min_{j≠y} θ_ij − θ_iy), 0, π/2), of this batch (of all ranks),
without gradient, used in the same batch; evaluation keeps the last one. s = max(floor, log(C−1) / cos(π/2.3))
unless given.
Domain: s > 0, floor ≥ 0. For few classes give s (the author uses s ≈ 6 at C = 10); with two classes log(C−1) = 0
and it learns only with `s` or `floor`.
When: many classes, and no margin is to be chosen; with few classes give `s`.
Reference: the AdaAcos project's own description; the scale follows AdaCos (arXiv 1905.00292), Eq. 12.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3], [0.2, 0.9, 0.1], [0.5, 0.1, 0.4]])
>>> [round(v, 4) for v in wm.margin_softmax(cos, torch.tensor([0, 1, 2]), "adaacos(s=6)").tolist()]
[0.7375, 0.6475, 5.5134]
"""

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from ...numerics.angles import PI
from ..base import Number, option
from ..margin import BatchStatistics, Margin
from .arcface import arc_curve


@dataclass(frozen=True, repr=False)
class AdaAcos(Margin):
    name = "adaacos"
    reference = "AdaAcos, online computing of the ideal margin parameter; scale after arXiv 1905.00292, Eq. 12"
    group = "self-tuning"
    adaptive_fields = ("m",)
    neutral = ({"m": 0.0}, "normface")

    s: Number = option(
        None,
        "scale; log(C−1)/cos(π/2.3) by default",
        low=0,
        open_low=True,
        optional=True,
        allows_schedule=True,
        allows_learnable=True,
    )
    m: Number = option(0.0, "initial margin in radians", low=0, high=PI / 2, hide_default=True)
    floor: Number = option(0.0, "smallest default scale", low=0, hide_default=True)

    def _resolved_scale(self, num_classes: int) -> Number:
        """Return the given scale, or the default for this number of classes."""
        return max(self.floor, math.log(num_classes - 1) / math.cos(PI / 2.3)) if self.s is None else self.s

    def for_num_classes(self, num_classes: int) -> Self:
        resolved = super().for_num_classes(num_classes)
        return resolved if self.s is not None else resolved.with_values(s=self._resolved_scale(num_classes))

    def class_count_warnings(self, num_classes: int) -> list[str]:
        if self._resolved_scale(num_classes) != 0.0:
            return []
        return [f"adaacos with {num_classes} classes has a scale of 0 and cannot learn: set s, as in adaacos(s=6)"]

    def psi(self, theta: Tensor) -> Tensor:
        return arc_curve(theta, self.m)

    def adapt_to_batch(self, batch: BatchStatistics) -> Self:
        if batch.theta.numel() == 0:
            return self
        gap = batch.median(batch.nearest_other_theta() - batch.theta)
        return self.with_values(m=gap.clamp(0.0, PI / 2))
