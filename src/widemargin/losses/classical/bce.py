"""Binary cross-entropy: one binary label [N], or several independent ones [N, C].

Formula: −t log p − (1 − t) log(1 − p), p = sigmoid(z) of the given logits; `probabilities=True` takes p itself.
Domain: targets in [0, 1], of the predictions' shape.
When: labels do not exclude one another, or there is a single binary label.
Reference: Good 1952; torch.nn.functional.binary_cross_entropy_with_logits.

>>> import torch, widemargin as wm
>>> round(wm.BCE(probabilities=True)(torch.tensor([0.1]), torch.tensor([1.0])).item(), 2)
2.3
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ..base import option
from ..criterion import Criterion, check_probabilities, check_target_shape


@dataclass(frozen=True, repr=False)
class BCE(Criterion):
    name = "bce"
    reference = "torch.nn.functional.binary_cross_entropy_with_logits"
    group = "classical"
    target_type = "answers"

    probabilities: bool = option(False, "predictions are probabilities, not logits", hide_default=True)

    def elementwise_loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        target = check_probabilities("bce: targets", check_target_shape(self.name, prediction, target))
        if self.probabilities:
            prediction = check_probabilities("bce: predictions", prediction)
            return F.binary_cross_entropy(prediction, target, reduction="none")
        return F.binary_cross_entropy_with_logits(prediction, target, reduction="none")
