"""Focal loss: cross-entropy with less weight on samples that are already right.

Formula: −(1 − p_t)^γ log p_t; p_t is the probability of the true class (targets [N], logits [N, C]), or of each binary
label (targets of the logits' shape, [N] or [N, C]).
Domain: γ ≥ 0; γ = 0 is cross-entropy.
When: many easy samples outweigh the few hard ones, as in detection.
Reference: Lin et al. (arXiv 1708.02002), Eq. 4.

>>> import torch, widemargin as wm
>>> round(wm.Focal()(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0])).item(), 4)
0.0109
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...io.errors import InputError
from ...numerics.log_sums import non_target_logsumexp
from ...numerics.validation import check_labels
from ..base import option
from ..criterion import Criterion, check_probabilities, check_target_shape
from ..margin import split_softmax


@dataclass(frozen=True, repr=False)
class Focal(Criterion):
    name = "focal"
    reference = "Lin et al., Focal loss, arXiv 1708.02002, Eq. 4"
    group = "classical"
    target_type = "answers"
    is_multiclass = True

    gamma: float = option(2.0, "exponent γ: how strongly easy samples are down-weighted", low=0)

    def elementwise_loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        if target.ndim == prediction.ndim - 1 and not target.is_floating_point():
            if not prediction.shape[-1]:
                raise InputError("focal: logits [N, C] need at least one class")
            check_labels(target, len(prediction), prediction.shape[-1])
            truth = target.long()
            prediction = prediction - prediction.detach().amax(1, keepdim=True)  # a large offset costs digits
            p = prediction.gather(1, truth.unsqueeze(1)).squeeze(1)
            return self._loss_from_logit(p - non_target_logsumexp(prediction, truth))
        target = check_probabilities("focal: targets", check_target_shape(self.name, prediction, target))
        yes, no = self._loss_from_logit(prediction), self._loss_from_logit(-prediction)
        return target * yes + (1.0 - target) * no

    def _loss_from_logit(self, logit: Tensor) -> Tensor:
        """Focal loss from the logit of the true label: p_t = sigmoid(logit), so 1 − p_t never cancels."""
        return torch.exp(self.gamma * F.logsigmoid(-logit)) * split_softmax(logit, torch.zeros_like(logit))
