"""LDAM: CosFace with a larger margin for rarer classes.

Formula: z_y = s (cos θ_y − m_y), z_j = s cos θ_j, m_c = max_m (n_c / min n)^(−1/4) with n_c samples of class c.
Domain: s > 0; 0 ≤ max_m ≤ 2; counts of at least 1, one per class. `train` fills the counts in; without counts all
classes have the margin max_m, which is CosFace.
When: long-tailed classes. The paper adds deferred re-weighting: class weights that start late in training,
`class_weight=effective` with `class_weight_start=0.8` in `train`.
Reference: Cao et al., LDAM (arXiv 1906.07413), Eq. 10 and 13; s = 30 as in the authors' code, where max_m is 0.3 for
iNaturalist.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "ldam(s=4, counts=[16, 1, 1])").item(), 4)
0.1812
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ..base import Number, PerClass, option
from ..class_counts import ldam_margins
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class LDAM(Margin):
    name = "ldam"
    reference = "Cao et al., LDAM, arXiv 1906.07413, Eq. 10 and 13"
    group = "long-tail"
    neutral = ({"max_m": 0.0}, "normface")

    s: Number = option(30.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    max_m: float = option(0.5, "margin of the rarest class, subtracted from the cosine", low=0, high=2)
    counts: Number = option(None, "samples of each class", low=1, optional=True, per_class=True)
    m: Number = option(
        None, "margins, instead of counts", low=0, high=2, optional=True, per_class=True, hide_default=True
    )

    def with_class_counts(self, counts: Sequence[int]) -> Self:
        is_needed = self.counts is None and self.m is None
        return replace(self, counts=PerClass(tuple(map(float, counts)))) if is_needed else self

    def for_num_classes(self, num_classes: int) -> Self:
        resolved = super().for_num_classes(num_classes)
        if self.m is not None:
            return resolved
        if not isinstance(self.counts, PerClass):
            return resolved.with_values(m=self.max_m)
        return resolved.with_values(m=PerClass(tuple(ldam_margins(self.counts.values, self.max_m))), counts=None)

    def class_count_warnings(self, num_classes: int) -> list[str]:
        if self.counts is not None or self.m is not None:
            return []
        return ["ldam without counts treats all classes as equally frequent: give counts=[…], one number per class"]

    def psi(self, theta: Tensor) -> Tensor:
        curve: Tensor = torch.cos(theta) - self.m
        return curve
