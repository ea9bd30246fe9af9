"""MHE: class weights repel each other like charges on the sphere, the nearest most.

Formula: for each sample the mean over j ≠ y of 1/θ_yj², θ_yj = angle between the weights of classes y and j. Angles
below 0.01 rad count as 0.01. With sub-centres the mean over those of y, against those of other classes.
Domain: no options; its weight in the sum is the paper's λ. Needs a loss with class weights that all lie on one process.
When: beside a margin, where classes crowd together, with many classes or few dimensions.
Reference: Liu et al., Minimum hyperspherical energy (arXiv 1805.09298), with s = 2 and angles (the A2 form), over the
classes of the batch; λ = 1 in the authors' SphereFace+ (opensphere), the mean over pairs of classes, as here if every
class has as many samples. Their code for CIFAR divides angles by π: its energy is π² times as large.

>>> import torch, widemargin as wm
>>> objective = wm.Objective("normface(s=4) + mhe", 2, 3)
>>> _ = objective.head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]]))
>>> _ = objective(torch.ones(3, 2), torch.tensor([0, 1, 2]))
>>> [round(v, 4) for v in objective.last_losses["mhe"].tolist()]
[0.6321, 0.6835, 0.1526]
"""

from dataclasses import dataclass

from torch import Tensor

from ...numerics.angles import safe_arccos
from ..regularizer import Regularizer

_SMALLEST_ANGLE = 0.01


@dataclass(frozen=True, repr=False)
class MHE(Regularizer):
    name = "mhe"
    reference = "Liu et al., Minimum hyperspherical energy, arXiv 1805.09298"
    group = "regularizers"

    def penalty(self, cos: Tensor, is_other: Tensor) -> Tensor:
        energy = safe_arccos(cos).clamp(min=_SMALLEST_ANGLE).square().reciprocal()
        return (energy * is_other).sum(-1) / is_other.sum(-1).clamp(min=1)
