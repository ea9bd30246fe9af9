"""AdaFace: the norm of an embedding estimates the quality of its image, and good images get the larger margin.

Formula: z_y = s (cos(θ_y − m q) − (m + m q)), z_j = s cos θ_j, with q = clip(h (‖x‖ − μ)/(σ + 0.001), −1, 1) of each
sample, without gradient; θ − m q is kept within [0, π]. μ and σ are running mean and standard deviation of ‖x‖
(between 0.001 and 100), moved by α towards those of the batch (of all ranks) before they are used.
Domain: s > 0; 0 ≤ m ≤ 1; h ≥ 0; 0 ≤ α ≤ 1. h = 0 is CosFace. A single sample does not change σ. Evaluation keeps μ, σ.
When: images of very different quality, with an embedding whose norm reflects it (a network without a final
normalisation); on small sets it often does not.
Reference: Kim et al., AdaFace (arXiv 2204.00964), Eq. 9 to 12; m = 0.4, h = 0.333, α = 0.01, initial μ = 20, σ = 100
as in the authors' scripts. Their code also clips every cosine to ±0.999; here no gradient is lost.

>>> import torch, widemargin as wm
>>> head = wm.Head(2, 3, "adaface(s=4)", dtype=torch.float64)
>>> _ = head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
>>> short, long = torch.tensor([[3.0, 4.0]]), torch.tensor([[60.0, 80.0]])
>>> [round(head.eval()(x, torch.tensor([0])).item(), 3) for x in (short, long)]
[2.476, 2.582]
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...numerics.angles import PI
from ..base import Number, option
from ..margin import BatchStatistics, Margin, SampleStatistics

_MIN_NORM, _MAX_NORM, _STD_OFFSET = 1e-3, 100.0, 1e-3


@dataclass(frozen=True, repr=False)
class AdaFace(Margin):
    name = "adaface"
    reference = "Kim et al., AdaFace, arXiv 2204.00964, Eq. 9 to 12"
    group = "quality"
    adaptive_fields = ("mean", "std")
    sample_fields = ("quality",)
    neutral = ({"m": 0.0}, "normface")

    s: Number = option(64.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: Number = option(0.4, "margin", low=0, high=1, allows_schedule=True)
    h: float = option(0.333, "how strongly the margin follows the norm", low=0)
    alpha: float = option(0.01, "weight of a batch in mean and std", low=0, high=1, hide_default=True)
    mean: Number = option(20.0, "initial mean norm", low=0, hide_default=True)
    std: Number = option(100.0, "initial standard deviation of the norms", low=0, hide_default=True)

    quality: ClassVar[float | Tensor] = 0.0
    """`q` of each sample; 0 for a norm equal to the mean."""

    def adapt_to_batch(self, batch: BatchStatistics) -> Self:
        norms = batch.x_norm().clamp(_MIN_NORM, _MAX_NORM)
        if norms.numel() == 0:
            return self
        old, new = 1.0 - self.alpha, self.alpha
        std = self.std if norms.shape[-1] < 2 else new * batch.std(norms) + old * self.std
        return self.with_values(mean=new * batch.mean(norms) + old * self.mean, std=std)

    def for_samples(self, samples: SampleStatistics) -> Self:
        norms = samples.x_norm().detach().clamp(_MIN_NORM, _MAX_NORM)
        return self.with_values(quality=(self.h * (norms - self.mean) / (self.std + _STD_OFFSET)).clamp(-1.0, 1.0))

    def psi(self, theta: Tensor) -> Tensor:
        turned = (theta - self.m * self.quality).clamp(0.0, PI)
        curve: Tensor = torch.cos(turned) - (self.m + self.m * self.quality)
        return curve
