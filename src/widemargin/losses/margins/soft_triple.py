"""SoftTriple: several weights per class, averaged by similarity, with a penalty that merges superfluous ones.

Formula: S_c = Σ_k softmax_k(cos θ_ck / γ) cos θ_ck, z_y = s (S_y − m), z_j = s S_j, plus the penalty
τ / (C K (K − 1)) Σ_c Σ_{k<l} √(2 + 10⁻⁵ − 2 ŵ_ck · ŵ_cl), which pulls the weights of a class together.
Domain: s > 0; 0 ≤ m ≤ 2; γ > 0; integer k ≥ 1; τ ≥ 0. k = 1 is CosFace.
When: retrieval with few classes that have several modes each.
Reference: Qian et al., SoftTriple (arXiv 1909.05235), Eq. 8 to 10; s = 20, m = 0.01, γ = 0.1, k = 10, τ = 0.2 as in the
authors' code.

>>> import torch, widemargin as wm
>>> head = wm.Head(2, 2, "soft_triple(s=4, k=2)", dtype=torch.float64)
>>> _ = head.weight.data.copy_(torch.tensor([[[1.0, 0.0], [0.6, 0.8]], [[-1.0, 0.0], [0.0, -1.0]]]))
>>> round(head(torch.tensor([[2.0, 1.0]]), torch.tensor([0])).item(), 4)
0.1202
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import Number, option
from ..margin import Margin, Subcenters

_DISTANCE_OFFSET = 1e-5


@dataclass(frozen=True, repr=False)
class SoftTriple(Margin):
    name = "soft_triple"
    reference = "Qian et al., SoftTriple, arXiv 1909.05235, Eq. 8 to 10"
    group = "proxies"
    neutral = ({"m": 0.0, "k": 1}, "normface")

    s: Number = option(20.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
    m: Number = option(0.01, "margin, subtracted from the cosine", low=0, high=2, allows_schedule=True, per_class=True)
    gamma: float = option(0.1, "temperature of the average", low=0, open_low=True)
    k: int = option(10, "weights per class", low=1, kind=int)
    tau: Number = option(0.2, "factor of the penalty", low=0, allows_schedule=True)

    @property
    def subcenters(self) -> Subcenters | None:
        return Subcenters(self.k, self.gamma) if self.k > 1 else None

    @property
    def has_weight_penalty(self) -> bool:
        return self.k > 1

    def offset(self) -> Number:
        return self.s * self.m

    def weight_penalty(self, cos: Tensor) -> Tensor:
        first, second = torch.triu_indices(self.k, self.k, 1, device=cos.device)
        distances = (2.0 + _DISTANCE_OFFSET - 2.0 * cos[:, first, second]).clamp(min=_DISTANCE_OFFSET).sqrt()
        penalty: Tensor = self.tau * distances.sum(1) / (self.k * (self.k - 1))
        return penalty
