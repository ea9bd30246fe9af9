"""The streaming backend: blocks of classes, without an N×C matrix or a normalised copy of the weights.

Exact, with three matrix products. `class_blocks.py` has the loop and the storage of the products, `kernels.py` the
elementwise work and its compiled form, `grad_buffer.py` the memory of the weights' gradient. This file has the backend
and its autograd function. A second derivative is computed densely, by plain autograd. The code also runs on a GPU, but
has not been tested on one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...io.errors import InputError
from ...losses.margin import Margin, Subcenters, add_common_bias
from ...losses.margins.normface import NormFace
from ...numerics import angles
from ...numerics.custom_autograd import custom_autograd
from ...numerics.log_sums import define_non_target_logsumexp, without_target
from ...numerics.precision import autocast_disabled
from .base import (
    COSINE,
    Backend,
    DotProducts,
    Geometry,
    NormalizedEmbeddings,
    SplitLogits,
    Target,
    TargetLogit,
    compute_logits,
    compute_radius,
    flatten_subcenters,
    fold_subcenters,
    sum_weight_penalty,
)
from .class_blocks import ClassBlocks
from .compiled import CompileSetting
from .grad_buffer import GradBuffer
from .kernels import KernelSpec, safe_reciprocal


class _StreamOutputs(NamedTuple):
    """Results [N] of a streamed pass; for the target either θ_y (and ‖w_y‖ if kept) or the product a·w_y."""

    others: Tensor
    logit_sum: Tensor | None
    theta: Tensor | None
    w_norm: Tensor | None
    product: Tensor | None
    penalty: Tensor | None
    """Sum of the penalty on the class weights, a scalar, if the margin has one."""


class _TargetAngle(NamedTuple):
    """θ_y [N] and ‖w_y‖ [N], from the vectors, and their rows [N] of the weights."""

    theta: Tensor
    w_norm: Tensor
    rows: Tensor


def _compute_target_angle(unit: Tensor, weight: Tensor, y: Tensor, rows_per_class: int) -> _TargetAngle:
    """Compute the target angle of each sample from the chord, so that small angles keep their digits."""
    rows = _target_rows(unit, weight, y, rows_per_class)
    w_unit, w_norm = angles.unit_and_norm(weight.index_select(0, rows).to(unit.dtype))
    return _TargetAngle(angles.angle_between(unit, w_unit), w_norm, rows)


@torch.no_grad()
def _target_rows(unit: Tensor, weight: Tensor, y: Tensor, rows_per_class: int) -> Tensor:
    """Rows [N] of the targets' weights; with several sub-centres, the nearest."""
    labels = _clamp_labels(y, len(weight) // rows_per_class)
    if rows_per_class == 1:
        return labels
    rows = labels.unsqueeze(1) * rows_per_class + torch.arange(rows_per_class, device=y.device)
    w_unit = angles.unit_and_norm(weight[rows].to(unit.dtype))[0]
    nearest = (w_unit @ unit.unsqueeze(2)).squeeze(2).argmax(1, keepdim=True)
    return rows.gather(1, nearest).squeeze(1)


def _clamp_labels(y: Tensor, num_classes: int) -> Tensor:
    """Clamp labels to the classes of this rank; results for labels of other ranks are masked later."""
    return y.clamp(0, num_classes - 1)


def define_stream(
    spec: KernelSpec,
    plain_target: bool,
    blocks: ClassBlocks,
    grad_buffer: GradBuffer,
    y: Tensor,
    target: _TargetAngle | None,
    a: Tensor,
    unit: Tensor,
    x_norm: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *margin_values: Tensor,
) -> _StreamOutputs:
    """The results of `_StreamFunction`, computed densely for plain autograd; labels must be of these classes."""
    margin = spec.margin_with(margin_values)
    w_unit, w_norm = angles.unit_and_norm(weight.to(a.dtype))
    value = a @ (w_unit if spec.divides_by_w_norm else weight.to(a.dtype)).T
    value = fold_subcenters(spec.subcenters, value, 1)
    radius = compute_radius(margin, x_norm.unsqueeze(1), w_norm) if spec.has_radius else None
    z = compute_logits(margin, DotProducts(value, radius), bias)
    logit_sum = without_target(z, y, 0.0).sum(1) if spec.with_logit_sum else None
    others = (
        without_target(margin.other_loss(z), y, 0.0).sum(1)
        if margin.one_vs_all
        else define_non_target_logsumexp(z.T, y.unsqueeze(0))
    )
    penalty = sum_weight_penalty(margin, w_unit) if margin.has_weight_penalty else None
    if plain_target:
        return _StreamOutputs(others, logit_sum, None, None, value.gather(1, y.unsqueeze(1)).squeeze(1), penalty)
    theta, target_w_norm, _ = _compute_target_angle(unit, weight, y, spec.rows_per_class)
    return _StreamOutputs(others, logit_sum, theta, target_w_norm if margin.uses_w_norm else None, None, penalty)


_MAX_DOUBLE_BACKWARD_LOGITS = 1 << 24  # logits; a second derivative holds many copies of them


def _dense_double_backward(ctx: Any, grad_outputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Differentiable gradients of (a, directions, ‖x‖, weight, bias, numbers); an InputError for too many logits."""
    y, _, *saved = ctx.saved_tensors
    # Views: embeddings and directions may be one tensor, and each argument needs its own gradient.
    inputs: list[Any] = [None if t is None else t.view_as(t) for t in saved]
    if len(inputs[0]) * len(inputs[3]) > _MAX_DOUBLE_BACKWARD_LOGITS:
        raise InputError("too many streamed logits for a second derivative (create_graph=True): use fewer classes")
    results = define_stream(ctx.spec, ctx.plain_target, ctx.blocks, ctx.grad_buffer, y, None, *inputs)
    pairs = [
        (r, g)
        for r, g in zip(results, grad_outputs, strict=True)
        if r is not None and g is not None and r.requires_grad
    ]
    variables = [t for t in inputs if t is not None and t.requires_grad]
    grads = iter(
        torch.autograd.grad(
            [r for r, _ in pairs], variables, [g for _, g in pairs], create_graph=True, allow_unused=True
        )
    )
    return tuple(next(grads) if t is not None and t.requires_grad else None for t in inputs)


@custom_autograd(
    "memory",
    "autograd holds all N×C logits and what is computed from them",
    define_stream,
)
class _StreamFunction(torch.autograd.Function):
    """(a, directions, ‖x‖, weight, bias, numbers of the margin) → `_StreamOutputs`.

    Target and others are one function, so that the weights have one gradient: two would be two C×D matrices. The value
    of θ_y is an argument (`target`); its gradient goes through the products, as one more entry among those of the other
    classes, at no cost. Only at the smallest angles (`_TINY_ANGLE_SINE`), where that difference of two nearly equal
    vectors would lose digits, is it computed from the vectors.
    """

    @staticmethod
    def forward(
        ctx: Any,
        spec: KernelSpec,
        plain_target: bool,
        blocks: ClassBlocks,
        grad_buffer: GradBuffer,
        y: Tensor,
        target: _TargetAngle | None,
        a: Tensor,
        unit: Tensor,
        x_norm: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *margin_values: Tensor,
    ) -> tuple[Tensor | None, ...]:
        others, product, logit_sum = blocks.compute_others(spec, y, x_norm, bias, margin_values)
        ctx.spec, ctx.plain_target, ctx.blocks, ctx.grad_buffer = spec, plain_target, blocks, grad_buffer
        ctx.target = target
        ctx.save_for_backward(y, others, a, unit, x_norm, weight, bias, *margin_values)
        ctx.set_materialize_grads(False)
        penalty = blocks.sum_weight_penalty(spec, margin_values) if spec.margin.has_weight_penalty else None
        if target is None:
            return others, logit_sum, None, None, product, penalty
        # Copies: the results become part of this graph, while the given angles are used by other calls.
        w_norm = target.w_norm.clone() if spec.margin.uses_w_norm else None
        return others, logit_sum, target.theta.clone(), w_norm, None, penalty

    @staticmethod
    def backward(
        ctx: Any,
        grad_others: Tensor | None,
        grad_logit_sum: Tensor | None,
        grad_theta: Tensor | None,
        grad_w_norm: Tensor | None,
        grad_product: Tensor | None,
        grad_penalty: Tensor | None,
    ) -> Any:
        if torch.is_grad_enabled():  # second derivative
            return (None,) * 6 + _dense_double_backward(
                ctx, (grad_others, grad_logit_sum, grad_theta, grad_w_norm, grad_product, grad_penalty)
            )
        y, others, a, unit, x_norm, weight, bias, *margin_values = ctx.saved_tensors
        spec: KernelSpec = ctx.spec
        zero = torch.zeros_like(others)
        grad_theta = zero if grad_theta is None else grad_theta
        grad_value, target_w_coefficient, target_gradients = zero if grad_product is None else grad_product, None, None
        with autocast_disabled(a), torch.no_grad():
            blocks, grad_weight = _take_blocks_and_grad_weight(ctx, weight, ctx.needs_input_grad[9])
            if ctx.target is not None:
                target_gradients = _compute_target_gradients(spec, ctx.target, x_norm, grad_theta)
                grad_value = target_gradients.grad_product
                if spec.margin.uses_w_norm:
                    inverse = safe_reciprocal(ctx.target.w_norm)
                    target_w_coefficient = zero if grad_w_norm is None else grad_w_norm
                    if not spec.divides_by_w_norm:  # the cosine is the product divided by this norm
                        target_w_coefficient = target_w_coefficient + target_gradients.grad_log_divisor * inverse
                    target_w_coefficient = target_w_coefficient * inverse
            grad_a, grad_x_norm, grad_bias, grad_margin_values = blocks.compute_gradients(
                spec,
                y,
                x_norm,
                bias,
                margin_values,
                others,
                zero if grad_others is None else grad_others,
                zero if grad_logit_sum is None else grad_logit_sum,
                grad_value,
                target_w_coefficient,
                ctx.needs_input_grad[6],
                grad_weight,
            )
            grad_unit = None
            if grad_penalty is not None and grad_weight is not None:
                blocks.add_weight_penalty_gradients(spec, margin_values, grad_penalty, grad_weight)
            if target_gradients is not None and spec.margin.is_linear and spec.margin.uses_x_norm:
                more = target_gradients.grad_log_divisor * safe_reciprocal(x_norm)
                grad_x_norm = more if grad_x_norm is None else grad_x_norm + more
            if target_gradients is not None:
                grad_unit = _add_tiny_angle_gradients(
                    unit, weight, ctx.target.rows, grad_theta, target_gradients.is_tiny, grad_weight
                )
        remaining, count = iter(grad_margin_values), len(spec.sample_names)
        numbers = [
            next(remaining).to(n.dtype) if learnt else None
            for n, learnt in zip(margin_values[count:], spec.value_requires_grad, strict=True)
        ]
        return (*(None,) * 6, grad_a, grad_unit, grad_x_norm, grad_weight, grad_bias, *(None,) * count, *numbers)


_TINY_ANGLE_SINE = 0.02


class _TargetGradients(NamedTuple):
    """Gradients of θ_y with respect to the target's dot product and the norms."""

    grad_product: Tensor
    """With respect to the target's dot product [N]; 0 at tiny angles."""
    grad_log_divisor: Tensor
    """With respect to the logarithm of the divisor of that product in the cosine [N]."""
    is_tiny: Tensor
    """Samples at tiny angles [N], whose gradient is computed from the vectors (`_add_tiny_angle_gradients`)."""


def _compute_target_gradients(
    spec: KernelSpec, target: _TargetAngle, x_norm: Tensor, grad_theta: Tensor
) -> _TargetGradients:
    """Backpropagate the gradient of θ_y to dot products and norms."""
    divisor = x_norm if spec.margin.is_linear and spec.margin.uses_x_norm else torch.ones_like(x_norm)
    if not spec.divides_by_w_norm:
        divisor = divisor * target.w_norm
    sine = torch.sin(target.theta)
    tiny = sine < _TINY_ANGLE_SINE
    skipped = tiny | (divisor == 0)
    grad_cos = torch.where(skipped, 0.0, -grad_theta / torch.where(skipped, 1.0, sine))
    return _TargetGradients(
        grad_cos / torch.where(divisor == 0, 1.0, divisor),
        -grad_cos * torch.cos(target.theta),
        tiny & (grad_theta != 0),
    )


def _add_tiny_angle_gradients(
    unit: Tensor,
    weight: Tensor,
    target_rows: Tensor,
    grad_theta: Tensor,
    is_tiny: Tensor,
    grad_weight: Tensor | None,
) -> Tensor | None:
    """Gradient of the directions of samples at tiny angles; that of their weights is added to `grad_weight`.

    Without reading on the host which samples these are, it is computed for all of them, with a gradient of 0 for the
    others.
    """
    if angles.is_eager_cpu(unit, "tiny_angles"):
        tiny_indices = is_tiny.nonzero().squeeze(1)
        if not len(tiny_indices):
            return None
    else:
        tiny_indices, grad_theta = torch.arange(len(unit), device=unit.device), torch.where(is_tiny, grad_theta, 0.0)
    rows = target_rows[tiny_indices]
    with torch.enable_grad():
        directions = unit[tiny_indices].detach().requires_grad_()
        w_rows = weight.index_select(0, rows).to(unit.dtype).detach().requires_grad_()
        theta = angles.angle_between(directions, angles.unit_and_norm(w_rows)[0])
        grad_directions, grad_rows = torch.autograd.grad(theta, (directions, w_rows), grad_theta[tiny_indices])
    if grad_weight is not None:
        grad_weight.index_add_(0, rows, grad_rows.to(grad_weight.dtype))
    return torch.zeros_like(unit).index_copy_(0, tiny_indices, grad_directions)


def _take_blocks_and_grad_weight(
    ctx: Any, weight: Tensor, needs_weight_grad: bool
) -> tuple[ClassBlocks, Tensor | None]:
    """Return the blocks with their cached products and the memory that holds them, which the gradient will overwrite.

    That memory is used once: a second backward pass recomputes its products in other memory.
    """
    blocks: ClassBlocks = ctx.blocks
    if not needs_weight_grad:
        return blocks, None
    if blocks.grad_weight is not None and blocks.is_cache_filled:
        blocks = blocks.take_product_cache()
    else:
        blocks = blocks.with_grad_weight(ctx.grad_buffer.allocate_like(weight))
    return blocks, blocks.grad_weight


class StreamBackend(Backend):
    """One block of classes at a time, from vectors; with `subcenters` the weights are [C, K, D]."""

    def __init__(
        self,
        embeddings: NormalizedEmbeddings,
        weight: Tensor,
        bias: Tensor | None,
        grad_buffer: GradBuffer | None = None,
        compile_kernels: CompileSetting = "auto",
        subcenters: Subcenters | None = None,
    ) -> None:
        self.embeddings, self.bias, self.num_classes, self.subcenters = embeddings, bias, len(weight), subcenters
        self.weight, self._rows_per_class = flatten_subcenters(weight), 1 if subcenters is None else subcenters.count
        self._grad_buffer = GradBuffer() if grad_buffer is None else grad_buffer
        # Adaptive margins come first and need no gradient; the results are shared with the loss.
        self._grad_enabled = torch.is_grad_enabled()
        self._blocks_cache: dict[Geometry, ClassBlocks] = {}
        self._target_angle_cache: tuple[Tensor, _TargetAngle] | None = None
        self._compile_kernels = compile_kernels

    @property
    def x_norm(self) -> Tensor:
        """‖x‖ [N]."""
        return self.embeddings.norm

    def target_angles(self, y: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # only of the angle, so by plain autograd
            return _compute_target_angle(self.embeddings.unit, self.weight, y, self._rows_per_class).theta
        return self._get_target_angle(y).theta

    @torch.no_grad()
    def _get_target_angle(self, y: Tensor) -> _TargetAngle:
        if self._target_angle_cache is None or self._target_angle_cache[0] is not y:
            target = _compute_target_angle(self.embeddings.unit, self.weight, y, self._rows_per_class)
            self._target_angle_cache = y, target
        return self._target_angle_cache[1]

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a loop over blocks would be unrolled into one huge graph
    def split(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> SplitLogits:
        spec, margin_values = KernelSpec.with_numbers(
            margin, with_logit_sum, self.embeddings.dtype, self.subcenters, torch.is_grad_enabled()
        )
        geometry, plain_target = Geometry.of(margin), margin.takes_target_logit
        results = _StreamFunction.apply(  # type: ignore[no-untyped-call]
            spec,
            plain_target,
            self._get_blocks(geometry),
            self._grad_buffer,
            y,
            None if plain_target else self._get_target_angle(y),
            self._matmul_input(geometry),
            self.embeddings.unit,
            self.embeddings.norm,
            self.weight,
            self.bias,
            *margin_values,
        )
        others, logit_sum, theta, w_norm, product, penalty = results
        logit_sum = logit_sum if with_logit_sum else None
        bias = None if self.bias is None else self.bias[_clamp_labels(y, self.num_classes)].to(self.embeddings.dtype)
        if plain_target:
            logit = add_common_bias(margin, margin.s * product)
            return SplitLogits(TargetLogit(logit if bias is None else logit + bias), others, logit_sum, penalty)
        target = Target(theta, compute_radius(margin, self.embeddings.norm, w_norm), bias)
        return SplitLogits(target, others, logit_sum, penalty)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def largest_cosines(self, y: Tensor, count: int = 1) -> Tensor:
        # A kernel needs a margin; this one leaves a cosine unchanged.
        spec = KernelSpec.from_margin(NormFace(), False, {}, subcenters=self.subcenters)
        return self._get_blocks(COSINE).largest_cosines(spec, y, self.embeddings.norm, count)

    def _matmul_input(self, geometry: Geometry) -> Tensor:
        """The left factor of the matrix product with the class weights: embeddings, or their directions."""
        return self.embeddings.x if geometry.folds_x_norm else self.embeddings.unit

    def _get_blocks(self, geometry: Geometry) -> ClassBlocks:
        """The blocks of this call; adaptive numbers, the loss and both labels of a mixup share their products."""
        if geometry not in self._blocks_cache:
            needs_grad = self.weight.requires_grad and self._grad_enabled
            grad_weight = self._grad_buffer.allocate_like(self.weight) if needs_grad else None
            self._blocks_cache[geometry] = ClassBlocks(
                not geometry.folds_w_norm,
                self._matmul_input(geometry).detach(),
                self.weight.detach(),
                grad_weight,
                self._compile_kernels,
                self._rows_per_class,
            )
        return self._blocks_cache[geometry]
