"""Modified softmax: class weights of unit norm, so that the decision boundary is the bisector.

Formula: z_j = ‖x‖ cos θ_j.
Domain: no parameters; the norm of the embedding acts as the scale.
When: to see the effect of unit class weights alone; an intermediate step rather than a first choice.
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
