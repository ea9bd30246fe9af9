"""Proxy-NCA++: a softmax over squared distances to one proxy per class.

Formula: z_j = −‖x̂ − ŵ_j‖² / T = s cos θ_j up to a constant, with s = 2/T: it is NormFace.
Domain: s > 0; the authors' T = 1/9 is s = 18.
When: retrieval with one proxy per class; proxies need a learning rate far above the network's.
Reference: Teh et al., Proxy-NCA++ (arXiv 2004.01113), Eq. 6.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "proxy_nca_pp(s=4)").item(), 4)
0.0705
"""

from dataclasses import dataclass

from ..base import Number, option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class ProxyNCAPP(Margin):
    name = "proxy_nca_pp"
    reference = "Teh et al., Proxy-NCA++, arXiv 2004.01113, Eq. 6"
    group = "proxies"

    s: Number = option(18.0, "scale, 2/T", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
