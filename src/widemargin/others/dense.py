"""The dense roads: all N×C logits at once, plain autograd.

The fastest for few classes, differentiable twice, at home in `torch.func` and `torch.compile`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import angle
from ..margin import Margin
from .cosines import Cosines, CosinesAlone, LogSumOthers
from .own import NEAR
from .rays import Products, Rays, kept_lengths, logits_of, products
from .road import Others, Target, TargetLogit


def without_target(z: Tensor, y: Tensor, fill: float) -> Tensor:
    """The logits [N, C] with each sample's target replaced by `fill`."""
    return z.scatter(1, y.unsqueeze(1), fill)


def others_of(z: Tensor, y: Tensor, total: bool) -> Others:
    """`L` [N] and the sum of the others' logits [N] from all logits [N, C]."""
    if angle.plain_graph(z):
        log_sum: Tensor = LogSumOthers.apply(z.T, y.unsqueeze(0))  # type: ignore[no-untyped-call]
    else:
        log_sum = torch.logsumexp(without_target(z, y, -torch.inf), 1)
    return Others(log_sum, without_target(z, y, 0.0).sum(1) if total else None)


class Dense:
    """All classes at once, from vectors."""

    def __init__(self, margin: Margin, rays: Rays, weight: Tensor, bias: Tensor | None) -> None:
        self.rays, self.bias = rays, bias
        self.classes = len(weight)
        # One cast serves target and others; one matrix product serves the loss, both labels of a mixup and the
        # adaptive margins.
        self.weight = weight.to(rays.dtype)
        self._product_is_cosine = not margin.linear or not (margin.keeps_x or margin.keeps_w)
        self._units: tuple[Tensor, Tensor] | None = None
        self._angles: tuple[Tensor, Tensor] | None = None
        self._learns = torch.is_grad_enabled()
        self.lengths: Tensor
        self.weight_lengths: Tensor
        theirs = self._moderate_weights() if self._product_is_cosine else None
        if theirs is None or rays.rough is None:
            self.lengths = rays.length
            unit, self.weight_lengths = self._directions()
            self.product = products(margin, rays, self.weight, unit, self.weight_lengths)
        elif margin.keeps_any:
            found = Cosines.apply(rays.given, self.weight, rays.rough, theirs)  # type: ignore[no-untyped-call]
            cos, self.lengths, self.weight_lengths = found
            self.product = Products(cos.T, kept_lengths(margin, self.lengths.unsqueeze(1), self.weight_lengths))
        else:
            cos = CosinesAlone.apply(rays.given, self.weight, rays.rough, theirs)  # type: ignore[no-untyped-call]
            self.lengths, self.weight_lengths = rays.rough, theirs
            self.product = Products(cos.T, None)

    def _moderate_weights(self) -> Tensor | None:
        """Lengths of the class weights where one may divide by them; None where the plain graph must do."""
        if not angle.plain_graph(self.weight):
            return None
        lengths = torch.linalg.vector_norm(self.weight.detach(), dim=-1)
        return lengths if angle.are_moderate(lengths) else None

    def _directions(self) -> tuple[Tensor, Tensor]:
        """Of the class weights, [C, D] and [C]."""
        if self._units is None:
            self._units = angle.direction(self.weight)
        return self._units

    def logits(self, margin: Margin) -> Tensor:
        """All logits [N, C], no margin applied."""
        return logits_of(margin, self.product, self.bias)

    def target(self, margin: Margin, y: Tensor) -> Target:
        if self._angles is None or self._angles[0] is not y:
            # Who asks first may be an adaptive margin, without a gradient; the loss wants one.
            with torch.set_grad_enabled(self._learns):
                self._angles = y, self._theta(y)
        theta, radius = self._angles[1], None
        if margin.keeps_any:
            radius = kept_lengths(margin, self.lengths, self.weight_lengths.index_select(0, y))
        return Target(theta, radius, None if self.bias is None else self.bias[y].to(theta.dtype))

    def _theta(self, y: Tensor) -> Tensor:
        """θ_y read off the products where they know it well, from the chord where a cosine has lost its digits."""
        cos = self.product.value
        if self._product_is_cosine and angle.may_look(cos):
            own = cos.gather(1, y.unsqueeze(1)).squeeze(1)
            if angle.within(own, NEAR):
                return angle.from_inner_cosine(own, certain=True)
            near = (own.detach().abs() > NEAR).nonzero().squeeze(1)
            if 2 * len(near) < len(own):
                return angle.from_inner_cosine(own).index_copy(0, near, self._by_chord(near, y[near]))
        return self._by_chord(None, y)

    def _by_chord(self, which: Tensor | None, y: Tensor) -> Tensor:
        """θ of some samples, or of all, from their directions."""
        if which is None:
            return angle.between(self.rays.unit, self._directions()[0].index_select(0, y))
        mine, theirs = self.rays.given.index_select(0, which), self.weight.index_select(0, y)
        return angle.between(angle.direction(mine)[0], angle.direction(theirs)[0])

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        return others_of(self.logits(margin), y, total)

    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target | TargetLogit, Others]:
        z = self.logits(margin)
        return self.target_among(z, margin, y), others_of(z, y, total)

    def target_among(self, z: Tensor, margin: Margin, y: Tensor) -> Target | TargetLogit:
        """The target of each sample, given all logits [N, C] without a margin."""
        if self._product_is_cosine or not margin.plain_target:
            return self.target(margin, y)
        # Where lengths are kept there is nothing a cosine could lose: the product itself makes the logit.
        return TargetLogit(z.gather(1, y.unsqueeze(1)).squeeze(1))

    def largest_cosine(self, y: Tensor) -> Tensor:
        with torch.no_grad():
            cos = self.product.value if self._product_is_cosine else self.rays.unit @ self._directions()[0].T
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

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        return others_of(logits_of(margin, self.product, None), y, total)

    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target, Others]:
        return self.target(margin, y), self.others(margin, y, total)

    def largest_cosine(self, y: Tensor) -> Tensor:
        return without_target(self.product.value.detach(), y, -torch.inf).amax(1)
