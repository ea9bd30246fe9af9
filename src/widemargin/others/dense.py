"""The dense roads: all N×C logits at once, plain autograd.

The fastest for few classes, differentiable twice, at home in `torch.func` and `torch.compile`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import angle
from ..margin import Margin
from .own import NEAR
from .rays import Products, Rays, kept_lengths, logits_of, products
from .road import Others, Target


def without_target(z: Tensor, y: Tensor, fill: float) -> Tensor:
    """The logits [N, C] with each sample's target replaced by `fill`."""
    return z.scatter(1, y.unsqueeze(1), fill)


def others_of(z: Tensor, y: Tensor, total: bool) -> Others:
    """`L` [N] and the sum of the others' logits [N] from all logits [N, C]."""
    log_sum = torch.logsumexp(without_target(z, y, -torch.inf), 1)
    return Others(log_sum, without_target(z, y, 0.0).sum(1) if total else None)


class Dense:
    """All classes at once, from vectors."""

    def __init__(self, margin: Margin, rays: Rays, weight: Tensor, bias: Tensor | None) -> None:
        self.rays, self.bias = rays, bias
        self.classes, self.lengths = len(weight), rays.length
        # One cast and one normalisation serve target and others; one matrix product serves the loss,
        # both labels of a mixup and the adaptive margins.
        self.weight = weight.to(rays.x.dtype)
        self.unit, self.weight_lengths = angle.direction(self.weight)
        self.product = products(margin, rays, self.weight, self.unit, self.weight_lengths)
        self._product_is_cosine = not margin.linear or not (margin.keeps_x or margin.keeps_w)

    def logits(self, margin: Margin) -> Tensor:
        """All logits [N, C], no margin applied."""
        return logits_of(margin, self.product, self.bias)

    def target(self, margin: Margin, y: Tensor) -> Target:
        theta = self._theta(y)
        radius = kept_lengths(margin, self.rays.length, self.weight_lengths.index_select(0, y))
        return Target(theta, radius, None if self.bias is None else self.bias[y].to(theta.dtype))

    def _theta(self, y: Tensor) -> Tensor:
        """θ_y read off the products where they know it well, from the chord where a cosine has lost its digits."""
        cos = self.product.value
        if self._product_is_cosine and angle.may_look(cos):
            own = cos.gather(1, y.unsqueeze(1)).squeeze(1)
            near = (own.detach().abs() > NEAR).nonzero().squeeze(1)
            if not len(near):
                return angle.from_moderate_cosine(own)
            if 2 * len(near) < len(own):
                exact = angle.between(self.rays.unit[near], self.unit.index_select(0, y[near]))
                return angle.from_moderate_cosine(own).index_copy(0, near, exact)
        return angle.between(self.rays.unit, self.unit.index_select(0, y))

    def own(self, margin: Margin, y: Tensor) -> None:
        return None

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        return others_of(self.logits(margin), y, total)

    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target, Others]:
        return self.target(margin, y), self.others(margin, y, total)

    def largest_cosine(self, y: Tensor) -> Tensor:
        with torch.no_grad():
            cos = self.product.value if self._product_is_cosine else self.rays.unit @ self.unit.T
            return without_target(cos, y, -torch.inf).amax(1)


class Given:
    """All classes at once, from cosines [N, C] somebody else computed and the lengths kept, if any."""

    def __init__(self, cos: Tensor, radius: Tensor | None) -> None:
        self.product = Products(cos, radius)
        self.classes, self.lengths = cos.shape[1], torch.ones_like(cos[:, 0])

    def target(self, margin: Margin, y: Tensor) -> Target:
        column = y.unsqueeze(1)
        theta = angle.from_cosine(self.product.value.gather(1, column).squeeze(1))
        radius = self.product.radius
        return Target(theta, None if radius is None else radius.gather(1, column).squeeze(1), None)

    def own(self, margin: Margin, y: Tensor) -> None:
        return None

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        return others_of(logits_of(margin, self.product, None), y, total)

    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target, Others]:
        return self.target(margin, y), self.others(margin, y, total)

    def largest_cosine(self, y: Tensor) -> Tensor:
        return without_target(self.product.value.detach(), y, -torch.inf).amax(1)
