"""AdaCos: a cosine softmax that sets its own scale from each batch.

Formula: z_j = s̃ cos θ_j. The first training batch uses s̃ = √2 log(C−1); from the second on s̃ = max(floor, log
B_avg / cos(min(π/4, θ_med))), B_avg = mean_i Σ_{j≠y} exp(s̃_prev cos θ_ij), θ_med the median target angle, both of
this batch (of all ranks), without gradient.
Domain: floor ≥ 0, from the first batch on; `fixed=True` keeps the first s̃; `s` is another initial value. With
two classes log(C−1) = 0: the scale starts at 0 and the loss has no gradient, so the paper's AdaCos is at chance on
binary sets; a `floor` above 0 avoids this. With embeddings of very few dimensions (2 to 4) the scale can grow without
bound: give a `ceiling`.
When: many classes, and no scale is to be chosen; not for two classes without a `floor`.
Reference: AdaCos (arXiv 1905.00292), Eq. 13 and 15; ArcGrad (IJCNN 2020), Eq. 10 (its θ_mod is the median).

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "adacos").item(), 4)  # s = √2 log 2
0.6118
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch

from ...io.errors import InputError
from ...numerics.angles import PI
from ...numerics.precision import number_like
from ..base import Number, option
from ..margin import BatchStatistics, Margin
from ..schedule import format_number


@dataclass(frozen=True, repr=False)
class AdaCos(Margin):
    name = "adacos"
    reference = "Zhang et al., AdaCos, arXiv 1905.00292, Eq. 13 and 15"
    group = "self-tuning"
    adaptive_fields = ("s",)

    s: Number = option(None, "initial scale; √2 log(C−1) by default", low=0, optional=True)
    fixed: bool = option(False, "keep the first scale", hide_default=True)
    floor: Number = option(0.0, "smallest scale", low=0, hide_default=True)
    ceiling: Number = option(None, "largest scale; none by default", low=0, open_low=True, optional=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ceiling is not None and self.ceiling < self.floor:
            raise InputError(
                f"adacos: ceiling={format_number(self.ceiling)} is below floor={format_number(self.floor)}"
            )

    def _initial_scale(self, num_classes: int) -> float:
        return math.sqrt(2.0) * math.log(num_classes - 1) if self.s is None else self.s

    def for_num_classes(self, num_classes: int) -> Self:
        start = max(self.floor, self._initial_scale(num_classes))
        start = start if self.ceiling is None else min(start, self.ceiling)
        return replace(super().for_num_classes(num_classes), s=start)

    def class_count_warnings(self, num_classes: int) -> list[str]:
        learns = self.floor > 0.0 or (self.fixed and self._initial_scale(num_classes) > 0.0)
        if num_classes != 2 or learns:
            return []
        return ["adacos with 2 classes has a scale of 0 and cannot learn: set a floor, as in adacos(floor=2)"]

    def adapt_to_batch(self, batch: BatchStatistics) -> Self:
        if self.fixed or batch.theta.numel() == 0:
            return self
        log_mean = batch.log_mean_exp(batch.logsumexp_others(self))
        median = batch.median(batch.theta).clamp(max=PI / 4)
        new_scale = (log_mean / torch.cos(median)).clamp(min=self.floor, max=self.ceiling)
        previous_scale = number_like(self.s, new_scale)
        return self.with_values(s=torch.where(batch.step == 0, previous_scale, new_scale))
