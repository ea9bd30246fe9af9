"""Proxy-NCA: squared distances to one proxy per class, the own proxy against all others.

Formula: loss = d_y + log Σ_{j≠y} exp(−d_j) with d = k² ‖x̂ − ŵ‖² = 2k² (1 − cos θ), which is LM-Softmax with s = 2k².
Domain: s > 0; the authors' k = 3 is s = 18. No lower bound, since the own proxy is not in the sum.
When: to reproduce results of Proxy-NCA; proxy_nca_pp is the better start.
Reference: Movshovitz-Attias et al., Proxy-NCA (arXiv 1703.07464), Eq. 4. pytorch-metric-learning uses this name for the
form of proxy_nca_pp.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> round(wm.margin_softmax(cos, torch.tensor([0]), "proxy_nca(s=4)").item(), 4)
-2.6161
"""

from dataclasses import dataclass

from ..base import Number, option
from .lm_softmax import LMSoftmax


@dataclass(frozen=True, repr=False)
class ProxyNCA(LMSoftmax):
    name = "proxy_nca"
    reference = "Movshovitz-Attias et al., Proxy-NCA, arXiv 1703.07464, Eq. 4"
    group = "proxies"

    s: Number = option(18.0, "scale, 2k²", low=0, open_low=True, allows_schedule=True, allows_learnable=True)
