"""Sub-centre ArcFace: K weights per class, of which the nearest one counts.

Formula: cos θ_j = max_k ŵ_jk · x̂, then ArcFace: z_y = s cos(θ_y + m), z_j = s cos θ_j.
Domain: s > 0; 0 ≤ m ≤ π/2 radians, m may differ per class; integer k ≥ 1. k = 1 is ArcFace.
When: labels are noisy or classes have several modes: clean samples gather at one sub-centre, and mislabelled samples
at the others. `subcenter_outliers(head, x, y)` finds those samples; then train again with k = 1 without them.
Reference: Deng et al., Sub-center ArcFace (ECCV 2020), Eq. 4; k = 3, s = 64, m = 0.5 as in the authors' code.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])  # of the nearest sub-centre of each class
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "subcenter_arcface(s=4, m=0.5)").item(), 4)
0.294
"""

from dataclasses import dataclass

from ..base import option
from ..margin import Subcenters
from .arcface import ArcFace


@dataclass(frozen=True, repr=False)
class SubcenterArcFace(ArcFace):
    name = "subcenter_arcface"
    reference = "Deng et al., Sub-center ArcFace, ECCV 2020, Eq. 4"
    group = "noisy-labels"
    neutral = ({"m": 0.0, "k": 1}, "normface")

    k: int = option(3, "weights per class", low=1, kind=int)

    @property
    def subcenters(self) -> Subcenters | None:
        return Subcenters(self.k) if self.k > 1 else None
