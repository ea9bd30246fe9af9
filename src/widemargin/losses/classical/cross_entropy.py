"""Cross-entropy: one of C classes, from logits [N, C].

Formula: −log softmax(z)_y; targets are class numbers [N] or probabilities [N, C].
Domain: any logits.
When: your model already returns logits, and classes exclude one another.
Reference: torch.nn.functional.cross_entropy. With class weights instead of logits, `softmax` is the same loss.

>>> import torch, widemargin as wm
>>> round(wm.CrossEntropy()(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0])).item(), 4)
0.2395
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ...io.errors import InputError
from ...numerics.validation import check_labels
from ..base import option
from ..criterion import Criterion, check_target_shape


@dataclass(frozen=True, repr=False)
class CrossEntropy(Criterion):
    name = "cross_entropy"
    reference = "torch.nn.functional.cross_entropy"
    group = "classical"
    target_type = "classes"
    is_multiclass = True

    label_smoothing: float = option(0.0, "label smoothing ε", low=0, high=1, hide_default=True)

    def elementwise_loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        if prediction.ndim != 2 or not prediction.shape[1]:
            raise InputError(f"cross_entropy: logits must have shape [N, C], got {list(prediction.shape)}")
        if target.is_floating_point():
            target = check_target_shape(self.name, prediction, target)
        else:
            check_labels(target, *prediction.shape)
            target = target.long()
        return F.cross_entropy(prediction, target, reduction="none", label_smoothing=self.label_smoothing)
