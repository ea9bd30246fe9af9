"""RegularFace: each class weight is pushed away from the nearest other one.

Formula: for each sample max_{j≠y} cos θ_yj, θ_yj = angle between the weights of classes y and j. With as many samples
of every class, the mean over a batch is the paper's mean over classes. With sub-centres the mean over those of y.
Domain: no options; its weight in the sum is the paper's λ. Needs a loss with class weights that all lie on one process.
When: beside a margin, where some classes are confused with their neighbours.
Reference: Zhao et al., RegularFace, CVPR 2019, over the classes of the batch.

>>> import torch, widemargin as wm
>>> objective = wm.Objective("normface(s=4) + regularface", 2, 3)
>>> _ = objective.head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]]))
>>> _ = objective(torch.ones(3, 2), torch.tensor([0, 1, 2]))
>>> [round(v, 4) for v in objective.last_losses["regularface"].tolist()]
[0.6, 0.6, -0.6]
"""

from dataclasses import dataclass

from torch import Tensor

from ..regularizer import Regularizer


@dataclass(frozen=True, repr=False)
class RegularFace(Regularizer):
    name = "regularface"
    reference = "Zhao et al., RegularFace, CVPR 2019"
    group = "regularizers"

    def penalty(self, cos: Tensor, is_other: Tensor) -> Tensor:
        nearest = cos.masked_fill(~is_other, -1.0).amax(-1)
        return nearest.where(is_other.any(-1), 0.0)
