"""Modified softmax: class weights of unit length, so that the boundary is the bisector.

Formula: z_j = ‖x‖ cos θ_j.
Domain: no number to choose; the length of the embedding plays the scale.
When: to see what unit class weights do by themselves; an intermediate step more than a first choice.
Reference: SphereFace (arXiv 1704.08063), Eq. 4.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "modified_softmax", radius=torch.tensor([2.0])).item(), 4)
0.3056
"""

from dataclasses import dataclass

from ..margin import Margin


@dataclass(frozen=True, repr=False)
class ModifiedSoftmax(Margin):
    name = "modified_softmax"
    reference = "Liu et al., SphereFace, arXiv 1704.08063, Eq. 4"
    group = "softmax"
    uses_x_norm = True
