"""SphereFace2: a binary classifier for every class instead of one softmax over all.

Formula: loss = (weight/s) [λ σ₊(−s (g(cos θ_y) − m) − b) + (1 − λ) Σ_{j≠y} σ₊(s (g(cos θ_j) + m) + b)] with
σ₊(z) = log(1 + e^z), g(c) = 2 ((c + 1)/2)^t − 1 and a learnt bias b (form=c). form=a: the target has g(cos(θ_y + m)),
form=m: g(cos(m θ_y)), with the angle clipped to π; the others have no margin.
Domain: s > 0; m ≥ 0 (form=m: m ≥ 1); 0 < λ < 1; t ≥ 1. b starts where its gradient is 0 if all angles are 90°.
When: open sets with noisy labels or small batches: classes do not compete. b is not a threshold for verification.
Reference: Wen et al., SphereFace2 (arXiv 2108.01513), Eq. 5 and 6; λ = 0.7, s = 40, m = 0.4, t = 3 as in the authors'
code, which multiplies by weight=50 and detaches g; here the gradient is that of the loss.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "sphereface2(s=4, b=0)").item(), 4)
0.1333
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ...io.errors import InputError
from ...numerics.angles import PI
from ..base import Number, option
from ..margin import Margin, softplus


@dataclass(frozen=True, repr=False)
class SphereFace2(Margin):
    name = "sphereface2"
    reference = "Wen et al., SphereFace2, arXiv 2108.01513, Eq. 5 and 6"
    group = "one-vs-all"
    one_vs_all = True
    allows_label_smoothing = False
    learnt_fields = ("b",)

    s: float = option(40.0, "scale", low=0, open_low=True)
    m: float = option(0.4, "margin: of the cosine (c), in radians (a), a factor of the angle (m)", low=0)
    lam: float = option(0.7, "weight of the target, λ", low=0, open_low=True, high=1 - 1e-6)
    t: float = option(3.0, "exponent of g", low=1)
    form: str = option("c", "how the margin enters", choices=("c", "a", "m"))
    weight: float = option(1.0, "factor of the loss", low=0, open_low=True, hide_default=True)
    b: Number = option(None, "initial bias; see above", optional=True, hide_default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "m" and self.m < 1:
            raise InputError("sphereface2: with form=m the margin is a factor of the angle: m must be at least 1")

    def for_num_classes(self, num_classes: int) -> Self:
        resolved = super().for_num_classes(num_classes)
        return resolved if self.b is not None else resolved.with_values(b=self._initial_bias(num_classes))

    def _initial_bias(self, num_classes: int) -> float:
        """Bias at which λ σ(−p) = (1 − λ)(C − 1) σ(z): a quadratic equation in e^b, solved without overflow."""
        right_angle = torch.tensor(PI / 2, dtype=torch.float64)
        other = self.s * float(self.phi(torch.cos(right_angle))) + self._other_margin()
        own = self.s * float(self.psi(right_angle))
        ratio = self.lam / ((1.0 - self.lam) * (num_classes - 1))
        root = math.sqrt((1.0 - ratio) ** 2 + 4.0 * ratio * math.exp(own - other))
        # The form of the root that does not subtract nearly equal numbers.
        if ratio <= 1.0:
            return math.log(2.0 * ratio) - other - math.log(1.0 - ratio + root)
        return math.log(ratio - 1.0 + root) - math.log(2.0) - own

    def _other_margin(self) -> float:
        return self.s * self.m if self.form == "c" else 0.0

    def psi(self, theta: Tensor) -> Tensor:
        if self.form == "c":
            return self.phi(torch.cos(theta)) - self.m
        turned = theta + self.m if self.form == "a" else self.m * theta
        return self.phi(torch.cos(turned.clamp(max=PI)))

    def phi(self, cos: Tensor) -> Tensor:
        exponent: Number = int(self.t) if self.t == int(self.t) else self.t  # an integer power is a few multiplications
        if torch.compiler.is_compiling():  # with dynamic=True a symbol, which torch 2.13 cannot take to a power
            exponent = torch.as_tensor(self.t, dtype=cos.dtype, device=cos.device)
        curve: Tensor = 2.0 * ((cos + 1.0) / 2.0).clamp(min=0.0) ** exponent - 1.0
        return curve

    def common_bias(self) -> Number:
        return self.b

    def other_loss(self, z: Tensor) -> Tensor:
        return (1.0 - self.lam) * softplus(z + self._other_margin())

    def combine(self, p: Tensor, others: Tensor) -> Tensor:
        return self.lam * softplus(-p) + others

    def loss_weight(self) -> Number:
        return self.weight / self.s
