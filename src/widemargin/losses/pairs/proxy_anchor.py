"""Proxy-Anchor: every class has a learnt proxy, which attracts the samples of its class and repels all others.

Formula: mean over the classes c of the batch of log(1 + Σ_{y_i = c} exp(−α (cos θ_ic − δ))) + mean over all classes of
log(1 + Σ_{y_i ≠ c} exp(α (cos θ_ic + δ))), θ_ic = angle between sample i and proxy c. The sums run over the samples of
a class, so the loss belongs to the batch: every sample is given the same one.
Domain: α > 0; 0 ≤ δ ≤ 1. `Objective.logits` returns α cos θ.
When: retrieval with tens to thousands of classes; converges faster than pairs. The authors' learning rate of the
proxies is 100 times that of the network.
Reference: Kim et al., Proxy-Anchor (arXiv 2003.13911), Eq. 4; α = 32, δ = 0.1 as in the paper.

>>> import torch, widemargin as wm
>>> objective = wm.Objective("proxy_anchor(alpha=4)", 2, 2)
>>> _ = objective.parts["proxy_anchor"].proxies.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> round(objective(x, torch.tensor([0, 0, 1, 1]))[0].item(), 4)
2.038
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...io.errors import InputError
from ...numerics.angles import unit_and_norm
from ...numerics.log_sums import masked_logsumexp
from ...numerics.precision import at_least_fp32
from ..base import option
from ..margin import softplus
from ..pair_batch import PairBatch
from ..pair_loss import PairLoss, PairLossModule


@dataclass(frozen=True, repr=False)
class ProxyAnchor(PairLoss):
    name = "proxy_anchor"
    reference = "Kim et al., Proxy-Anchor, arXiv 2003.13911, Eq. 4"
    group = "proxies"
    needs_positives = False
    allows_memory = False

    alpha: float = option(32.0, "scale", low=0, open_low=True)
    delta: float = option(0.1, "margin, a cosine", low=0, high=1)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        raise InputError(
            'proxy_anchor learns a proxy per class: use wm.Objective("proxy_anchor", embedding_dim, num_classes)'
        )

    def build(self, embedding_dim: int, num_classes: int) -> PairLossModule:
        return ProxyAnchorModule(self, embedding_dim, num_classes)


class ProxyAnchorModule(PairLossModule):
    """The proxies [C, D] and the loss of the samples against them."""

    pair_loss: ProxyAnchor
    has_logits = True

    def __init__(self, pair_loss: ProxyAnchor, embedding_dim: int, num_classes: int) -> None:
        super().__init__(pair_loss)
        self.embedding_dim, self.num_classes = embedding_dim, num_classes
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")

    def class_weights(self) -> Tensor:
        return self.proxies

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        cos = self._cosines(pairs.x)
        alpha, delta = self.pair_loss.alpha, self.pair_loss.delta
        own = pairs.y.unsqueeze(1) == torch.arange(len(self.proxies), device=cos.device)
        present = own.any(0).sum()
        positive = softplus(masked_logsumexp(-alpha * (cos - delta), own, 0)).sum() / present.clamp(min=1)
        negative = softplus(masked_logsumexp(alpha * (cos + delta), ~own, 0)).mean()
        return (positive + negative).expand(pairs.count), {"classes": present}

    def logits(self, x: Tensor) -> Tensor:
        return self.pair_loss.alpha * self._cosines(at_least_fp32(x))

    def _cosines(self, x: Tensor) -> Tensor:
        return unit_and_norm(x)[0] @ unit_and_norm(self.proxies.to(x.dtype))[0].T

    @torch.no_grad()
    def extend(self, n: int) -> None:
        """`n` more proxies, drawn as the first ones were."""
        more = self.proxies.new_empty(len(self.proxies) + n, self.proxies.shape[1])
        nn.init.kaiming_normal_(more, mode="fan_out")
        more[: len(self.proxies)] = self.proxies
        self.num_classes = len(more)
        self.proxies = nn.Parameter(more)
