"""NormFace, the cosine softmax: unit embeddings and unit class weights, with one scale.

Formula: z_j = s cos θ_j.
Domain: s > 0. A small s cannot reach a small loss: with C classes the minimum is log(1 + (C−1) e^(−s C/(C−1))).
When: embeddings will be compared by cosine and no margin is needed.
Reference: NormFace (arXiv 1704.06369), Eq. 6; ArcGrad (IJCNN 2020), Eq. 7.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "normface(s=4)").item(), 4)
0.0705
"""

from dataclasses import dataclass

from ..base import Number, option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class NormFace(Margin):
    name = "normface"
    aliases = ("cosine_softmax",)
    reference = "Wang et al., NormFace, arXiv 1704.06369, Eq. 6"
    group = "softmax"

    s: Number = option(30.0, "scale", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
