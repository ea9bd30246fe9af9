"""The dense road: all N×C logits at once, plain autograd.

The fastest for few classes, differentiable twice, at home in `torch.func` and `torch.compile`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import angle
from ..margin import Margin, without_target
from .rays import Others, Rays, logits_of, products


class Dense:
    """Holds the embeddings and class weights of one call."""

    name = "dense"

    def __init__(self, margin: Margin, rays: Rays, weight: Tensor, bias: Tensor | None) -> None:
        # One cast for target and others alike: their gradients then meet in the working dtype.
        self.rays, self.weight, self.bias = rays, weight.to(rays.x.dtype), bias
        # One matrix product serves the loss, both labels of a mixup and the adaptive margins.
        self.product, self.lengths = products(margin, rays, self.weight)
        self._product_is_cosine = not margin.linear or not (margin.keeps_x or margin.keeps_w)

    def logits(self, margin: Margin) -> Tensor:
        """All logits [N, C], no margin applied."""
        return logits_of(margin, margin.s, self.rays, self.product, self.lengths, self.bias)

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        """`L` [N] over the classes that are not `y`, and their sum where asked for."""
        z = self.logits(margin)
        log_sum = torch.logsumexp(without_target(z, y, -torch.inf), 1)
        return Others(log_sum, without_target(z, y, 0.0).sum(1) if total else None)

    def largest_cosine(self, y: Tensor) -> Tensor:
        """Cosine [N] of the nearest class that is not `y`, without a gradient."""
        with torch.no_grad():
            cos = self.product
            if not self._product_is_cosine:
                cos = self.rays.unit @ angle.direction(self.weight)[0].T
            return without_target(cos, y, -torch.inf).amax(1)
