"""A-Softmax (SphereFace): L-Softmax's curve with class weights of unit norm.

Formula: z_y = ‖x‖ (λ cos θ_y + ψ(θ_y))/(1 + λ), z_j = ‖x‖ cos θ_j, ψ as in L-Softmax.
Domain: integer m ≥ 1, m = 1 is modified softmax; `lam` as in L-Softmax. With `lam=0` and every training sample
classified correctly, classes θ₁₂ apart have an angular margin of (m−1)/(m+1) θ₁₂; the annealed curve has less.
When: open sets with SphereFace's factor on the angle, or to reproduce its results. CosFace and ArcFace need no
annealing.
Reference: SphereFace (arXiv 1704.08063), Eq. 7.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "sphereface(m=2, lam=0)", radius=torch.tensor([2.0])).item(), 4)
0.6987
"""

from dataclasses import dataclass

from torch import Tensor

from ..base import Number, option
from ..margin import Margin
from ..schedule import Anneal
from .l_softmax import annealed_curve


@dataclass(frozen=True, repr=False)
class ASoftmax(Margin):
    name = "a_softmax"
    aliases = ("sphereface",)
    reference = "Liu et al., SphereFace, arXiv 1704.08063, Eq. 7"
    group = "margin"
    uses_x_norm = True
    neutral = ({"m": 1}, "modified_softmax")

    m: int = option(4, "integer factor of the target angle", low=1, kind=int)
    lam: Number = option(Anneal(), "λ of the annealing", low=0, allows_schedule=True, hide_default=True)

    @property
    def has_plain_target(self) -> bool:
        return self.m == 1  # for any λ

    def psi(self, theta: Tensor) -> Tensor:
        return annealed_curve(theta, self.m, self.lam)
