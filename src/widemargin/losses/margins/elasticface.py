"""ElasticFace: the margin of every sample is drawn at random in every step.

Formula: z_y = s cos(θ_y + m_i) (form=arc) or s (cos θ_y − m_i) (form=cos), z_j = s cos θ_j, m_i drawn from N(m, σ²).
With plus=True the draws of a batch are sorted, so that the sample with the smallest cos θ_y gets the largest margin.
Domain: s > 0; m ≥ 0 (default 0.5 radians for arc, 0.35 for cos); σ ≥ 0. σ = 0 is CosFace, or ArcFace up
to π − m. Evaluation uses m itself. Draws come from torch's global generator, one for each sample.
Several processes sort the draws of their own samples each.
When: faces, if a fixed margin is too large for some classes and too small for others.
Reference: Boutros et al., ElasticFace (arXiv 2109.09416), Eq. 4 to 6; σ = 0.05 by default, with plus=True 0.0175 (arc)
and 0.02 (cos). The authors' code of plus=True sorts by the inverse permutation, so that margins go to random samples;
here they go where the paper says.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "elasticface(s=4, sigma=0)").item(), 4)
0.294
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..base import Number, option
from ..margin import Margin, SampleStatistics

DEFAULT_MARGINS = {"arc": 0.5, "cos": 0.35}
DEFAULT_SIGMA = 0.05
DEFAULT_SIGMAS_PLUS = {"arc": 0.0175, "cos": 0.02}


@dataclass(frozen=True, repr=False)
class ElasticFace(Margin):
    name = "elasticface"
    reference = "Boutros et al., ElasticFace, arXiv 2109.09416, Eq. 4 to 6"
    group = "margin"
    sample_fields = ("drawn",)
    neutral = ({"m": 0.0, "sigma": 0.0}, "normface")

    s: Number = option(64.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: Number = option(None, "mean margin; 0.5 (arc) or 0.35 (cos) by default", low=0, high=2, optional=True)
    sigma: Number = option(
        None,
        "standard deviation of the margin; 0.05, with plus=True 0.0175 (arc) or 0.02 (cos), by default",
        low=0,
        optional=True,
        allows_schedule=True,
    )
    form: str = option("arc", "how the margin enters", choices=("arc", "cos"))
    plus: bool = option(False, "give the largest margin to the smallest cosine", hide_default=True)

    drawn: ClassVar[Tensor | None] = None
    """Margin of each sample, in training."""

    @property
    def non_monotone(self) -> bool:  # type: ignore[override]
        return self.form == "arc"  # cos(θ + m) increases again past π − m

    def for_num_classes(self, num_classes: int) -> Self:
        defaults = {
            "m": DEFAULT_MARGINS[self.form],
            "sigma": DEFAULT_SIGMAS_PLUS[self.form] if self.plus else DEFAULT_SIGMA,
        }
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return super().for_num_classes(num_classes).with_values(**missing)

    def for_samples(self, samples: SampleStatistics) -> Self:
        if not samples.training:
            return self
        theta = samples.theta()
        # One draw per sample also if K models train as one stack, so that each model is the same as when trained alone.
        noise = torch.randn(theta.shape[-1], dtype=theta.dtype, device=theta.device).expand(theta.shape)
        drawn = self.m + self.sigma * noise
        if self.plus:
            order = theta.argsort(-1, descending=True)
            drawn = torch.zeros_like(drawn).scatter(-1, order, drawn.sort(-1, descending=True).values)
        return self.with_values(drawn=drawn)

    def psi(self, theta: Tensor) -> Tensor:
        m = self.m if self.drawn is None else self.drawn
        curve: Tensor = torch.cos(theta + m) if self.form == "arc" else torch.cos(theta) - m
        return curve
