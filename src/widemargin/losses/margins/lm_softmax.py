"""LM-Softmax: the target's logit against the logsumexp of the others, without the target in the sum.

Formula: loss = log Σ_{j≠y} exp(s cos θ_j) − s cos θ_y.
Domain: s > 0. The loss has no lower bound: classes keep moving apart where a softmax saturates, so watch the
accuracy instead of the loss.
When: the largest margin between classes is the aim and labels are clean.
Reference: Zhou et al., Learning towards the largest margins (arXiv 2206.11589), Eq. 8; the same as Proxy-NCA, s = 2k².

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "lm_softmax(s=4)").item(), 4)
-2.6161
"""

from dataclasses import dataclass

from torch import Tensor

from ..base import Number, option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class LMSoftmax(Margin):
    name = "lm_softmax"
    reference = "Zhou et al., Learning towards the largest margins, arXiv 2206.11589, Eq. 8"
    group = "margin"
    allows_label_smoothing = False
    is_bounded = False

    s: Number = option(64.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)

    def combine(self, p: Tensor, others: Tensor) -> Tensor:
        return others - p
