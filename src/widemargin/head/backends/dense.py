"""The dense backends: all N×C logits at once, from vectors or from cosines that are given.

The fastest for few classes, differentiable twice, usable in `torch.func` and `torch.compile`. In eager mode on a CPU
all cosines are one node of the graph: products divided by lengths, which with few classes is far cheaper than unit
vectors, with cosines that are as good. Classes come first there, so that a row's samples lie side by side and sums over
classes run down the columns. Forward mode, `torch.func` and `torch.compile` get the plain graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...losses.margin import Margin
from ...numerics import angles
from ...numerics.log_sums import non_target_logsumexp, without_target
from .base import (
    CHORD_COSINE_THRESHOLD,
    DotProducts,
    NonTargetSums,
    NormalizedEmbeddings,
    Target,
    TargetLogit,
    compute_dot_products,
    compute_logits,
    compute_radius,
)


class CosinesAndNorms(torch.autograd.Function):
    """x [..., N, D], w [..., C, D] → cosines [..., C, N], ‖x‖ [..., N], ‖w‖ [..., C]; lengths must be moderate or 0.

    Lengths that are known already can be passed in; then none may be 0.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, known_x_norm: Tensor | None, known_w_norm: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        x_norm, x_inverse = _length_and_inverse(x, known_x_norm)
        w_norm, w_inverse = _length_and_inverse(w, known_w_norm)
        x_inverse, w_inverse = x_inverse.unsqueeze(-2), w_inverse.unsqueeze(-1)
        cos = torch.matmul(w, x.mT).mul_(w_inverse).mul_(x_inverse)
        ctx.save_for_backward(x, w, cos, x_inverse, w_inverse)
        ctx.set_materialize_grads(False)
        return cos, x_norm, w_norm

    @staticmethod
    def backward(ctx: Any, grad_cos: Tensor | None, grad_x_norm: Tensor | None, grad_w_norm: Tensor | None) -> Any:
        x, w, cos, x_inverse, w_inverse = ctx.saved_tensors
        grad_cos = torch.zeros_like(cos) if grad_cos is None else grad_cos
        if torch.is_grad_enabled():  # a second derivative: the inverse lengths are functions again
            x_inverse = _differentiable_inverse(x).unsqueeze(-2)
            w_inverse = _differentiable_inverse(w).unsqueeze(-1)
        along = grad_cos * cos
        pull = grad_cos * w_inverse * x_inverse
        # What points along a vector does not turn it; only its length may want that part.
        x_along, w_along = along.sum(-2) * x_inverse.squeeze(-2), along.sum(-1) * w_inverse.squeeze(-1)
        if grad_x_norm is not None:
            x_along = x_along - grad_x_norm
        if grad_w_norm is not None:
            w_along = w_along - grad_w_norm
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_x = _matmul_minus(x * (x_along * x_inverse.squeeze(-2)).unsqueeze(-1), pull.mT, w)
        if ctx.needs_input_grad[1]:
            grad_w = _matmul_minus(w * (w_along * w_inverse.squeeze(-1)).unsqueeze(-1), pull, x)
        return grad_x, grad_w, None, None


class CosinesOnly(CosinesAndNorms):
    """The cosines without the lengths, which must be known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, known_x_norm: Tensor, known_w_norm: Tensor) -> Tensor:  # type: ignore[override]
        x_inverse, w_inverse = known_x_norm.reciprocal().unsqueeze(-2), known_w_norm.reciprocal().unsqueeze(-1)
        cos = torch.matmul(w, x.mT).mul_(w_inverse).mul_(x_inverse)
        ctx.save_for_backward(x, w, cos, x_inverse, w_inverse)
        return cos

    @staticmethod
    def backward(ctx: Any, grad_cos: Tensor) -> Any:  # type: ignore[override]
        return CosinesAndNorms.backward(ctx, grad_cos, None, None)


def _matmul_minus(subtrahend: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`left · right − subtrahend`, in the memory of `subtrahend` where no second derivative is wanted."""
    if torch.is_grad_enabled():
        return torch.matmul(left, right) - subtrahend
    return (
        subtrahend.addmm_(left, right, beta=-1) if subtrahend.ndim == 2 else subtrahend.baddbmm_(left, right, beta=-1)
    )


def _length_and_inverse(vectors: Tensor, known_norm: Tensor | None) -> tuple[Tensor, Tensor]:
    """‖v‖ and 1/‖v‖, 0 where there is none, so that a zero vector has cosines and gradients of 0."""
    if known_norm is not None:
        return known_norm.clone(), known_norm.reciprocal()
    length = torch.linalg.vector_norm(vectors, dim=-1)
    return length, length.reciprocal().masked_fill_(length == 0, 0.0)


def _differentiable_inverse(vectors: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vectors, dim=-1)
    return torch.where(length == 0, torch.zeros_like(length), 1.0 / length)


def compute_non_target_sums(z: Tensor, y: Tensor, with_logit_sum: bool) -> NonTargetSums:
    """`L` [N] and the sum of the others' logits [N] from all logits [N, C]."""
    return NonTargetSums(non_target_logsumexp(z, y), without_target(z, y, 0.0).sum(1) if with_logit_sum else None)


class DenseBackend:
    """All classes at once, from vectors."""

    def __init__(self, margin: Margin, embeddings: NormalizedEmbeddings, weight: Tensor, bias: Tensor | None) -> None:
        self.embeddings, self.bias = embeddings, bias
        self.num_classes = len(weight)
        # One cast serves target and others; one matrix product serves the loss, both labels of a mixup and the
        # adaptive margins.
        self.weight = weight.to(embeddings.dtype)
        self._product_is_cosine = not margin.is_linear or not (margin.uses_x_norm or margin.uses_w_norm)
        self._w_unit_and_norm: tuple[Tensor, Tensor] | None = None
        self._target_theta_cache: tuple[Tensor, Tensor] | None = None
        self._grad_enabled = torch.is_grad_enabled()
        self.x_norm: Tensor
        self.w_norm: Tensor
        safe_w_norm = self._safe_weight_norms() if self._product_is_cosine else None
        if safe_w_norm is None or embeddings.safe_norm is None:
            self.x_norm = embeddings.norm
            unit, self.w_norm = self._weight_unit_and_norm()
            self.product = compute_dot_products(margin, embeddings, self.weight, unit, self.w_norm)
        elif margin.uses_any_norm:
            found = CosinesAndNorms.apply(embeddings.raw, self.weight, embeddings.safe_norm, safe_w_norm)  # type: ignore[no-untyped-call]
            cos, self.x_norm, self.w_norm = found
            self.product = DotProducts(cos.T, compute_radius(margin, self.x_norm.unsqueeze(1), self.w_norm))
        else:
            cos = CosinesOnly.apply(embeddings.raw, self.weight, embeddings.safe_norm, safe_w_norm)  # type: ignore[no-untyped-call]
            self.x_norm, self.w_norm = embeddings.safe_norm, safe_w_norm
            self.product = DotProducts(cos.T, None)

    def _safe_weight_norms(self) -> Tensor | None:
        """Lengths of the class weights where it is safe to divide by them; None where the plain graph is needed."""
        if not angles.is_reverse_mode_only(self.weight):
            return None
        lengths = torch.linalg.vector_norm(self.weight.detach(), dim=-1)
        return lengths if angles.are_norms_safe(lengths) else None

    def _weight_unit_and_norm(self) -> tuple[Tensor, Tensor]:
        """Of the class weights, [C, D] and [C]."""
        if self._w_unit_and_norm is None:
            self._w_unit_and_norm = angles.unit_and_norm(self.weight)
        return self._w_unit_and_norm

    def logits(self, margin: Margin) -> Tensor:
        """All logits [N, C], no margin applied."""
        return compute_logits(margin, self.product, self.bias)

    def target(self, margin: Margin, y: Tensor) -> Target:
        if self._target_theta_cache is None or self._target_theta_cache[0] is not y:
            # The first call may come from an adaptive margin, without a gradient; the loss needs one.
            with torch.set_grad_enabled(self._grad_enabled):
                self._target_theta_cache = y, self._target_theta(y)
        theta, radius = self._target_theta_cache[1], None
        if margin.uses_any_norm:
            radius = compute_radius(margin, self.x_norm, self.w_norm.index_select(0, y))
        return Target(theta, radius, None if self.bias is None else self.bias[y].to(theta.dtype))

    def _target_theta(self, y: Tensor) -> Tensor:
        """θ_y read off the products where they know it well, from the chord where a cosine has lost its digits."""
        cos = self.product.value
        if self._product_is_cosine and angles.is_eager_cpu(cos):
            own = cos.gather(1, y.unsqueeze(1)).squeeze(1)
            if angles.is_within(own, CHORD_COSINE_THRESHOLD):
                return angles.clamped_arccos(own, skip_clamp=True)
            near = (own.detach().abs() > CHORD_COSINE_THRESHOLD).nonzero().squeeze(1)
            if 2 * len(near) < len(own):
                return angles.clamped_arccos(own).index_copy(0, near, self._theta_from_chord(near, y[near]))
        return self._theta_from_chord(None, y)

    def _theta_from_chord(self, indices: Tensor | None, y: Tensor) -> Tensor:
        """θ of some samples, or of all, from their directions."""
        if indices is None:
            return angles.angle_between(self.embeddings.unit, self._weight_unit_and_norm()[0].index_select(0, y))
        x_rows, w_rows = self.embeddings.raw.index_select(0, indices), self.weight.index_select(0, y)
        return angles.angle_between(angles.unit_and_norm(x_rows)[0], angles.unit_and_norm(w_rows)[0])

    def non_target_sums(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> NonTargetSums:
        return compute_non_target_sums(self.logits(margin), y, with_logit_sum)

    def target_and_non_target(
        self, margin: Margin, y: Tensor, with_logit_sum: bool
    ) -> tuple[Target | TargetLogit, NonTargetSums]:
        z = self.logits(margin)
        return self.target_from_logits(z, margin, y), compute_non_target_sums(z, y, with_logit_sum)

    def target_from_logits(self, z: Tensor, margin: Margin, y: Tensor) -> Target | TargetLogit:
        """The target of each sample, given all logits [N, C] without a margin."""
        if self._product_is_cosine or not margin.has_plain_target:
            return self.target(margin, y)
        # Where lengths are kept there is nothing a cosine could lose: the product itself makes the logit.
        return TargetLogit(z.gather(1, y.unsqueeze(1)).squeeze(1))

    def largest_cosine(self, y: Tensor) -> Tensor:
        with torch.no_grad():
            cos = (
                self.product.value
                if self._product_is_cosine
                else self.embeddings.unit @ self._weight_unit_and_norm()[0].T
            )
            return without_target(cos, y, -torch.inf).amax(1)


class PrecomputedCosinesBackend:
    """All classes at once, from cosines [N, C] that are given and the lengths that the margin keeps, if any."""

    def __init__(self, cos: Tensor, radius: Tensor | None) -> None:
        self.product = DotProducts(cos, radius)
        self.num_classes, self.x_norm = cos.shape[1], torch.ones_like(cos[:, 0])

    def target(self, margin: Margin, y: Tensor) -> Target:
        column = y.unsqueeze(1)
        theta = angles.safe_arccos(self.product.value.gather(1, column).squeeze(1))
        radius = self.product.radius
        return Target(theta, None if radius is None else radius.gather(1, column).squeeze(1), None)

    def non_target_sums(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> NonTargetSums:
        return compute_non_target_sums(compute_logits(margin, self.product, None), y, with_logit_sum)

    def target_and_non_target(self, margin: Margin, y: Tensor, with_logit_sum: bool) -> tuple[Target, NonTargetSums]:
        return self.target(margin, y), self.non_target_sums(margin, y, with_logit_sum)

    def largest_cosine(self, y: Tensor) -> Tensor:
        return without_target(self.product.value.detach(), y, -torch.inf).amax(1)
