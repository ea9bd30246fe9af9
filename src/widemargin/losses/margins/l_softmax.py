"""L-Softmax: the target's angle is multiplied by m; norms of embeddings and weights are kept.

Formula: z_y = ‖W_y‖‖x‖ (λ cos θ_y + ψ(θ_y))/(1 + λ), z_j = ‖W_j‖‖x‖ cos θ_j,
ψ(θ) = (−1)^k cos(mθ) − 2k on [kπ/m, (k+1)π/m].
Domain: integer m ≥ 1, m = 1 is softmax; λ decreases during training (`lam=anneal(…)`), `lam=0` disables the
annealing and a number keeps it constant.
When: norms are to be kept and the margin is an integer factor of the angle; keep the annealing, or training starts
slowly.
Reference: L-Softmax (arXiv 1612.02295), Eq. 4 to 6.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "l_softmax(m=2, lam=0)", radius=torch.tensor([2.0])).item(), 4)
0.6987
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.angles import falling_cosine
from ..base import Number, option
from ..margin import Margin
from ..schedule import Anneal


def annealed_curve(theta: Tensor, m: int, lam: Number) -> Tensor:
    """The target curve of L- and A-Softmax: between cos θ (large λ) and ψ(θ) (λ = 0)."""
    curve: Tensor = (lam * torch.cos(theta) + falling_cosine(m * theta)) / (1.0 + lam)
    return curve


@dataclass(frozen=True, repr=False)
class LSoftmax(Margin):
    name = "l_softmax"
    reference = "Liu et al., L-Softmax, arXiv 1612.02295, Eq. 4 to 6"
    group = "margin"
    uses_x_norm = True
    uses_w_norm = True
    neutral = ({"m": 1}, "softmax")

    m: int = option(2, "integer factor of the target angle", low=1, kind=int)
    lam: Number = option(Anneal(), "λ of the annealing", low=0, allows_schedule=True, hide_default=True)

    @property
    def has_plain_target(self) -> bool:
        return self.m == 1  # for any λ

    def psi(self, theta: Tensor) -> Tensor:
        return annealed_curve(theta, self.m, self.lam)
