"""M-Softmax, the soft-margin softmax: a margin subtracted from the target's inner product.

Formula: z_y = W_y·x − m, z_j = W_j·x.
Domain: m ≥ 0, in units of the logit; m may differ per class. m = 0 is softmax.
When: closed sets where plain softmax works, with a constant margin and without normalisation.
Reference: EM-Softmax (arXiv 1805.03922), Eq. 5; the paper's "M-Soft".

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "m_softmax(m=0.5)", radius=torch.tensor([2.0])).item(), 4)
0.4633
"""

from dataclasses import dataclass

from ..base import Number, option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class MSoftmax(Margin):
    name = "m_softmax"
    reference = "Wang et al., Ensemble Soft-Margin Softmax, arXiv 1805.03922, Eq. 5"
    group = "margin"
    uses_x_norm = True
    uses_w_norm = True
    neutral = ({"m": 0.0}, "softmax")

    m: Number = option(0.5, "margin, subtracted from the logit", low=0, allows_schedule=True, per_class=True)

    def offset(self) -> Number:
        return self.m
