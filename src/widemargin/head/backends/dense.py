"""The dense backends: all N×C logits at once, from vectors or from given cosines.

The fastest for few classes, twice differentiable, and usable in `torch.func` and `torch.compile`. In eager mode on a
CPU all cosines are one node of the graph: products divided by norms, which with few classes is far cheaper than unit
vectors and equally accurate. Classes come first there, so that the samples of a class are contiguous and sums over
classes run down the columns. Forward mode, `torch.func` and `torch.compile` use the plain graph. A training step of
many logits is done by native kernels where they can be built (`native_head.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...losses.margin import Margin, Subcenters
from ...numerics import angles
from ...numerics.custom_autograd import custom_autograd
from ...numerics.log_sums import non_target_logsumexp, without_target
from .base import (
    Backend,
    DotProducts,
    Geometry,
    NormalizedEmbeddings,
    SplitLogits,
    Target,
    TargetLogit,
    broadcast_over_classes,
    compute_logits,
    compute_radius,
    flatten_subcenters,
    fold_subcenters,
    split_subcenters,
    sum_weight_penalty,
)
from .compiled import CompileSetting
from .grad_buffer import GradBuffer
from .native_head import NativeHead


def define_cosines(
    x: Tensor, w: Tensor, known_x_norm: Tensor | None, known_w_norm: Tensor | None, y: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """x [..., N, D], w [..., C, D] → cosines [..., C, N], ‖x‖ [..., N], ‖w‖ [..., C], θ_y [N], for plain autograd."""
    x_unit, x_norm = angles.unit_and_norm(x)
    w_unit, w_norm = angles.unit_and_norm(w)
    cos = torch.matmul(w_unit, x_unit.mT)
    return cos, x_norm, w_norm, _accurate_target_angles(cos, y)


def _accurate_target_angles(cos: Tensor, y: Tensor | None) -> Tensor | None:
    """θ_y [N] from cosines [C, N]; None without labels, or if a cosine has lost digits of its angle."""
    if y is None:
        return None
    own = cos.gather(0, y.unsqueeze(0)).squeeze(0)
    return angles.clamped_arccos(own, skip_clamp=True) if angles.is_within(own, angles.MAX_ACCURATE_COSINE) else None


@custom_autograd(
    "speed",
    "autograd normalises both matrices and differentiates both; here the norms divide the products",
    define_cosines,
)
class Cosines(torch.autograd.Function):
    """x [..., N, D], w [..., C, D] → cosines [..., C, N], ‖x‖ [..., N], ‖w‖ [..., C], and θ_y [N] for labels `y` [N] of
    a single head; norms must be moderate or 0.

    Known norms can be passed in; then none may be 0. θ_y is None if a cosine has lost digits of its angle.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        known_x_norm: Tensor | None,
        known_w_norm: Tensor | None,
        y: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        x_norm, x_inverse = _length_and_inverse(x, known_x_norm)
        w_norm, w_inverse = _length_and_inverse(w, known_w_norm)
        x_inverse, w_inverse = x_inverse.unsqueeze(-2), w_inverse.unsqueeze(-1)
        cos = torch.matmul(w, x.mT).mul_(w_inverse).mul_(x_inverse)
        theta = _accurate_target_angles(cos, y)
        ctx.save_for_backward(x, w, cos, x_inverse, w_inverse, y, theta)
        ctx.set_materialize_grads(False)
        return cos, x_norm, w_norm, theta

    @staticmethod
    def backward(
        ctx: Any,
        grad_cos: Tensor | None,
        grad_x_norm: Tensor | None,
        grad_w_norm: Tensor | None,
        grad_theta: Tensor | None,
    ) -> Any:
        x, w, cos, x_inverse, w_inverse, y, theta = ctx.saved_tensors
        grad_cos = torch.zeros_like(cos) if grad_cos is None else grad_cos
        if grad_theta is not None:
            slope = grad_theta / torch.sin(theta)
            grad_cos = grad_cos.scatter_add(0, y.unsqueeze(0), slope.neg().unsqueeze(0))
        if torch.is_grad_enabled():  # second derivative: the inverse norms are functions again
            x_inverse = _differentiable_inverse(x).unsqueeze(-2)
            w_inverse = _differentiable_inverse(w).unsqueeze(-1)
        along = grad_cos * cos
        pull = grad_cos * w_inverse * x_inverse
        # A gradient along a vector does not turn it; only its norm may need that part.
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
        return grad_x, grad_w, None, None, None


def _matmul_minus(subtrahend: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`left · right − subtrahend`, in the memory of `subtrahend` unless a second derivative is needed."""
    if torch.is_grad_enabled():
        return torch.matmul(left, right) - subtrahend
    return (
        subtrahend.addmm_(left, right, beta=-1) if subtrahend.ndim == 2 else subtrahend.baddbmm_(left, right, beta=-1)
    )


def _length_and_inverse(vectors: Tensor, known_norm: Tensor | None) -> tuple[Tensor, Tensor]:
    """‖v‖ and 1/‖v‖, with 0 for a zero vector, which then has cosines and gradients of 0."""
    if known_norm is not None:
        return known_norm.clone(), known_norm.reciprocal()
    length = torch.linalg.vector_norm(vectors, dim=-1)
    return length, length.reciprocal().masked_fill_(length == 0, 0.0)


def _differentiable_inverse(vectors: Tensor) -> Tensor:
    length = angles.safe_norm(vectors)
    zero = length == 0
    return torch.where(zero, 0.0, 1.0 / torch.where(zero, 1.0, length))


def split_all_logits(
    margin: Margin, z: Tensor, y: Tensor, target: Target | TargetLogit, with_logit_sum: bool
) -> SplitLogits:
    """Combine a target with the sums over the other classes from all logits [N, C]."""
    logit_sum = without_target(z, y, 0.0).sum(1) if with_logit_sum else None
    others = without_target(margin.other_loss(z), y, 0.0).sum(1) if margin.one_vs_all else non_target_logsumexp(z, y)
    return SplitLogits(target, others, logit_sum)


def largest_entries(cos: Tensor, y: Tensor, count: int) -> Tensor:
    """The largest cosines [N, count] of the classes other than `y`, from all cosines [N, C]."""
    others = without_target(cos.detach(), y, -torch.inf)
    return others.amax(1, keepdim=True) if count == 1 else others.topk(count, 1).values


class _CosinesAndNorms(NamedTuple):
    cos: Tensor
    """[N, C], or [N, C·K] of sub-centres"""
    x_norm: Tensor
    """[N]"""
    w_norm: Tensor
    """[C], or [C·K]"""


class DenseBackend(Backend):
    """All classes at once, from vectors; with `subcenters` the weights are [C, K, D]."""

    def __init__(
        self,
        embeddings: NormalizedEmbeddings,
        weight: Tensor,
        bias: Tensor | None,
        subcenters: Subcenters | None = None,
        compile_kernels: CompileSetting = False,
        grad_buffer: GradBuffer | None = None,
    ) -> None:
        self.embeddings, self.bias, self.num_classes, self.subcenters = embeddings, bias, len(weight), subcenters
        self.weight = flatten_subcenters(weight).to(embeddings.dtype)  # one cast for target and others
        # Adaptive margins come first and need no gradient; the results are shared with the loss.
        self._grad_enabled = torch.is_grad_enabled()
        self._cosines_cache: _CosinesAndNorms | None = None
        self._folded_products_cache: dict[Geometry, Tensor] = {}
        self._w_unit_and_norm_cache: tuple[Tensor, Tensor] | None = None
        self._target_angles_cache: tuple[Tensor, Tensor] | None = None
        self._logits_cache: tuple[Margin, bool, Tensor] | None = None
        self._native = NativeHead.if_possible(embeddings, self.weight, subcenters, compile_kernels, grad_buffer)

    @property
    def x_norm(self) -> Tensor:
        """‖x‖ [N]."""
        if self._native is not None and self.uses_native_kernels:
            return self._native.x_norm
        return self.embeddings.norm if self._cosines_cache is None else self._cosines_cache.x_norm

    # ---------------------------------------------------------------- products, each computed once

    def _cosines(self, y: Tensor | None = None) -> _CosinesAndNorms:
        """The cosines of all classes, and with labels also the angles of their targets, if these are accurate."""
        if self._cosines_cache is None:
            with torch.set_grad_enabled(self._grad_enabled):
                self._cosines_cache = self._compute_cosines(y if self.subcenters is None else None)
        return self._cosines_cache

    def _compute_cosines(self, y: Tensor | None) -> _CosinesAndNorms:
        if angles.is_reverse_mode_only(self.weight, "cosines") and self.embeddings.safe_norm is not None:
            w_norm = torch.linalg.vector_norm(self.weight.detach(), dim=-1)
            if angles.are_norms_safe(w_norm):
                labels = y if angles.is_eager_cpu(self.weight, "target_angle") else None
                cos, x_norm, w_norm, theta = Cosines.apply(  # type: ignore[no-untyped-call]
                    self.embeddings.raw, self.weight, self.embeddings.safe_norm, w_norm, labels
                )
                if theta is not None and y is not None:
                    self._target_angles_cache = y, theta
                return _CosinesAndNorms(cos.T, x_norm, w_norm)
        w_unit, w_norm = self._w_unit_and_norm()
        return _CosinesAndNorms(self.embeddings.unit @ w_unit.T, self.embeddings.norm, w_norm)

    def _w_unit_and_norm(self) -> tuple[Tensor, Tensor]:
        """Directions [C, D] and norms [C] of the class weights."""
        if self._w_unit_and_norm_cache is None:
            with torch.set_grad_enabled(self._grad_enabled):
                self._w_unit_and_norm_cache = angles.unit_and_norm(self.weight)
        return self._w_unit_and_norm_cache

    def _products(self, margin: Margin) -> DotProducts:
        geometry = Geometry.of(margin)
        if geometry.is_cosine:
            cos, x_norm, w_norm = self._cosines()
            if self.subcenters is not None:
                return DotProducts(self._folded_cosines(), None)
            return DotProducts(cos, compute_radius(margin, x_norm.unsqueeze(1), w_norm))
        if geometry not in self._folded_products_cache:
            with torch.set_grad_enabled(self._grad_enabled):
                left = self.embeddings.x if geometry.folds_x_norm else self.embeddings.unit
                right = self.weight if geometry.folds_w_norm else self._w_unit_and_norm()[0]
                self._folded_products_cache[geometry] = left @ right.T
        return DotProducts(self._folded_products_cache[geometry], None)

    def _folded_cosines(self) -> Tensor:
        """One cosine per sample and class [N, C]."""
        return fold_subcenters(self.subcenters, self._cosines().cos, 1)

    def logits(self, margin: Margin) -> Tensor:
        """All logits [N, C], without margin."""
        cache, grad_enabled = self._logits_cache, torch.is_grad_enabled()
        if cache is None or cache[0] is not margin or cache[1] is not grad_enabled:
            z = compute_logits(broadcast_over_classes(margin), self._products(margin), self.bias)
            self._logits_cache = cache = margin, grad_enabled, z
        return cache[2]

    # ---------------------------------------------------------------- the target

    @property
    def uses_native_kernels(self) -> bool:
        """True if native kernels did the last work."""
        return self._native is not None and self._native.kernels is not None

    def expect(self, margin: Margin) -> None:
        if self._native is not None:
            self._native.expect(margin, self.bias)

    def target_angles(self, y: Tensor) -> Tensor:
        if self._native is not None and not torch.is_grad_enabled() and self._native.prepare(y):
            return self._native.theta
        self._cosines(y)  # the first caller is an adaptive margin, whose loss needs them too
        return self._target_angles(y)

    def _target_angles(self, y: Tensor) -> Tensor:
        """θ_y [N], from the cosines if available, and from the chord where a cosine has lost its digits."""
        if self._target_angles_cache is None or self._target_angles_cache[0] is not y:
            with torch.set_grad_enabled(self._grad_enabled):
                self._target_angles_cache = y, self._compute_target_angles(y)
        return self._target_angles_cache[1]

    def _target_rows(self, y: Tensor) -> Tensor:
        """Rows [N] of the weights that the targets' angles belong to: those of the nearest sub-centres."""
        if self.subcenters is None:
            return y
        own = split_subcenters(self.subcenters, self._cosines().cos.detach(), 1)
        own = own.gather(1, y.view(-1, 1, 1).expand(-1, 1, own.shape[2])).squeeze(1)
        return y * self.subcenters.count + own.argmax(1)

    def _compute_target_angles(self, y: Tensor) -> Tensor:
        y = self._target_rows(y)
        if self._cosines_cache is not None and angles.is_eager_cpu(self._cosines_cache.cos, "target_angle"):
            own = self._cosines_cache.cos.gather(1, y.unsqueeze(1)).squeeze(1)
            if angles.is_within(own, angles.MAX_ACCURATE_COSINE):
                return angles.clamped_arccos(own, skip_clamp=True)
            near = (own.detach().abs() > angles.MAX_ACCURATE_COSINE).nonzero().squeeze(1)
            if 2 * len(near) < len(own):
                x_rows, w_rows = self.embeddings.raw.index_select(0, near), self.weight.index_select(0, y[near])
                theta = angles.angle_between(angles.unit_and_norm(x_rows)[0], angles.unit_and_norm(w_rows)[0])
                return angles.clamped_arccos(own).index_copy(0, near, theta)
        return angles.angle_between(self.embeddings.unit, self._w_unit_and_norm()[0].index_select(0, y))

    def target(self, margin: Margin, y: Tensor) -> Target | TargetLogit:
        """The target of each sample under a margin."""
        if margin.takes_target_logit:
            # If norms are kept, a cosine loses nothing: the product itself is the logit.
            return TargetLogit(self.logits(margin).gather(1, y.unsqueeze(1)).squeeze(1))
        radius = None
        if margin.uses_any_norm:
            w_norm = self._w_unit_and_norm()[1] if self._cosines_cache is None else self._cosines_cache.w_norm
            radius = compute_radius(margin, self.x_norm, w_norm.index_select(0, y))
        theta = self._target_angles(y)
        return Target(theta, radius, None if self.bias is None else self.bias[y].to(theta.dtype))

    def split(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> SplitLogits:
        if self._native is not None and self._native.prepare(y):
            logits = self._native.split(margin, y, self.bias, with_logit_sum)
            return self._with_weight_penalty(margin, logits)
        if not margin.takes_target_logit and Geometry.of(margin).is_cosine:
            self._cosines(y)
        z = self.logits(margin)
        logits = split_all_logits(margin, z, y, self.target(margin, y), with_logit_sum)
        return self._with_weight_penalty(margin, logits)

    def _with_weight_penalty(self, margin: Margin, logits: SplitLogits) -> SplitLogits:
        if margin.has_weight_penalty:
            logits = logits._replace(weight_penalty=sum_weight_penalty(margin, self._w_unit_and_norm()[0]))
        return logits

    def largest_cosines(self, y: Tensor, count: int = 1) -> Tensor:
        with torch.no_grad():
            if self._native is not None and self._native.prepare(y):
                cos = fold_subcenters(self.subcenters, self._native.cosines, 1)
                return largest_entries(cos, y, count)
            return largest_entries(self._folded_cosines(), y, count)


class PrecomputedCosinesBackend(Backend):
    """All classes at once, from given cosines [N, C] and the norms that the margin keeps, if any.

    Cosines of sub-centres are already reduced.
    """

    def __init__(self, cos: Tensor, radius: Tensor | None, bias: Tensor | None = None) -> None:
        self.product, self.bias, self.num_classes = DotProducts(cos, radius), bias, cos.shape[1]

    @property
    def x_norm(self) -> Tensor:
        """‖x‖ [N], assumed to be 1."""
        return torch.ones_like(self.product.value[:, 0])

    def target_angles(self, y: Tensor) -> Tensor:
        return angles.safe_arccos(self.product.value.gather(1, y.unsqueeze(1)).squeeze(1))

    def split(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> SplitLogits:
        radius = self.product.radius
        target = Target(
            self.target_angles(y),
            None if radius is None else radius.gather(1, y.unsqueeze(1)).squeeze(1),
            None if self.bias is None else self.bias[y],
        )
        z = compute_logits(broadcast_over_classes(margin), self.product, self.bias)
        return split_all_logits(margin, z, y, target, with_logit_sum)

    def largest_cosines(self, y: Tensor, count: int = 1) -> Tensor:
        return largest_entries(self.product.value, y, count)
