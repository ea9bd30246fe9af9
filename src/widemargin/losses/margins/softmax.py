"""Softmax: cross-entropy over inner products, the baseline of all margin losses.

Formula: z_j = W_j·x (+ b_j) = ‖W_j‖‖x‖ cos θ_j (+ b_j).
Domain: no parameters; `bias=True` adds b. Without bias it is the paper's "Soft".
When: as the baseline, or if norms are meaningful (quality, confidence).
Reference: ArcGrad (IJCNN 2020), Eq. 3 with bias and Eq. 4 without.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "softmax", radius=torch.tensor([2.0])).item(), 4)
0.3056
"""

from dataclasses import dataclass

from ..base import option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class Softmax(Margin):
    name = "softmax"
    reference = "Wu and Wang, ArcGrad, IJCNN 2020, Eq. 3 and 4"
    group = "softmax"
    uses_x_norm = True
    uses_w_norm = True

    bias: bool = option(False, "add a bias per class", hide_default=True)
