"""The streaming backend: blocks of classes, never an N×C matrix, never a normalised copy of the weights.

Exact, at three matrix products. `class_blocks.py` has the loop and where the products are kept, `kernels.py` what is
done with them and its compiled form. Here are the backend, its autograd function, and `GradBuffer`: the memory of the
weight gradient, used again in the next step once nobody else holds it. Fresh memory of that size is expensive: the
system hands it out page by page and zeroed, at up to a sixth of a step's time. With `zero_grad()`, which drops
gradients, the same memory serves step after step. A second derivative is computed densely, by plain autograd. Runs on a
GPU by the same code; it has not been tried on one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...io.errors import InputError
from ...losses.margin import Margin
from ...numerics import angles
from ...numerics.precision import autocast_disabled
from .base import (
    DotProducts,
    NonTargetSums,
    NormalizedEmbeddings,
    Target,
    TargetGeometry,
    TargetLogit,
    compute_logits,
    compute_radius,
    compute_target_geometry,
    compute_target_gradients,
    tiny_angle_gradients,
)
from .class_blocks import ClassBlocks
from .dense import compute_non_target_sums
from .kernels import KernelSpec, safe_reciprocal

_OWN_REFERENCES = 2  # references to the storage object: the attribute, and the argument of getrefcount


class GradBuffer:
    """The storage of the last gradient, lent out while only we hold it. Copies and pickles are empty."""

    def __init__(self) -> None:
        self.storage: torch.UntypedStorage | None = None
        self._lock = threading.Lock()  # two threads must not be given the same storage

    def allocate_like(self, like: Tensor) -> Tensor:
        """An uninitialised tensor for the gradient of `like`, in the kept storage if that is free."""
        with self._lock:
            if self._is_reusable(like):
                assert self.storage is not None
                strides = torch.empty(like.shape, device="meta").stride()
                empty = torch.empty(0, dtype=like.dtype, device=like.device)
                with torch.no_grad():
                    return empty.set_(self.storage, 0, like.shape, strides)
            fresh = torch.empty(like.shape, dtype=like.dtype, device=like.device)
            if self.storage is None or not self._is_in_use():
                self.storage = fresh.untyped_storage()
            return fresh

    def clear(self) -> None:
        """Give the memory back."""
        with self._lock:
            self.storage = None

    def _is_reusable(self, like: Tensor) -> bool:
        if self.storage is None or self._is_in_use() or self.storage.device != like.device:
            return False
        return self.storage.nbytes() == like.numel() * like.element_size()

    def _is_in_use(self) -> bool:
        """Whether somebody else holds the storage: by a tensor in it (a kept gradient, a view, an array made of it), or
        the storage itself, of which torch hands out one and the same Python object."""
        if self.storage is None:
            return False
        count = getattr(torch._C, "_storage_Use_Count", None)
        return count is None or count(self.storage._cdata) > 1 or sys.getrefcount(self.storage) > _OWN_REFERENCES

    def __deepcopy__(self, memo: Any) -> GradBuffer:
        return GradBuffer()

    def __reduce__(self) -> Any:
        return GradBuffer, ()


_MAX_DOUBLE_BACKWARD_LOGITS = 1 << 24  # logits; a second derivative holds many copies of them


def dense_double_backward(ctx: Any, grad_outputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Differentiable gradients of (a, directions, ‖x‖, weight, bias, numbers); an InputError for too many logits."""
    y, _, *saved = ctx.saved_tensors
    # Views: embeddings and directions may be one tensor, and each place wants its own gradient.
    inputs: list[Any] = [None if t is None else t.view_as(t) for t in saved]
    a, unit, x_norm, weight, bias, *margin_values = inputs
    if len(a) * len(weight) > _MAX_DOUBLE_BACKWARD_LOGITS:
        raise InputError("so large a streamed head cannot be differentiated twice (create_graph): take fewer classes")
    spec: KernelSpec = ctx.spec
    margin = (
        spec.margin.with_values(**dict(zip(spec.value_names, margin_values, strict=True)))
        if margin_values
        else spec.margin
    )
    w_unit, w_norm = angles.unit_and_norm(weight.to(a.dtype))
    value = a @ (w_unit if spec.divides_by_w_norm else weight.to(a.dtype)).T
    radius = compute_radius(margin, x_norm.unsqueeze(1), w_norm) if spec.has_radius else None
    others = compute_non_target_sums(compute_logits(margin, DotProducts(value, radius), bias), y, spec.with_logit_sum)
    theta = angles.angle_between(unit, w_unit.index_select(0, y))
    product = value.gather(1, y.unsqueeze(1)).squeeze(1)
    results = (others.log_sum, others.logit_sum, theta, w_norm.index_select(0, y), product)
    pairs = [
        (r, g)
        for r, g in zip(results, grad_outputs, strict=True)
        if r is not None and g is not None and r.requires_grad
    ]
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    grads = iter(
        torch.autograd.grad([r for r, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True)
    )
    return tuple(next(grads) if t is not None and t.requires_grad else None for t in inputs)


class _StreamFunction(torch.autograd.Function):
    """(a, directions, ‖x‖, weight, bias, numbers of the margin) → (L, Σ z, θ_y, ‖w_y‖ where it is kept, a·w_y).

    Target and others in one, so that the weights have one gradient: two would be two C×D matrices. Of the target either
    θ_y and ‖w_y‖ or (`plain_target`) the product a·w_y; the others are None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        spec: KernelSpec,
        plain_target: bool,
        blocks: ClassBlocks,
        grad_buffer: GradBuffer,
        y: Tensor,
        a: Tensor,
        unit: Tensor,
        x_norm: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *margin_values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        log_sum, value, total = blocks.compute_log_sum(spec, y, x_norm, bias, margin_values)
        ctx.spec, ctx.plain_target, ctx.blocks, ctx.grad_buffer = spec, plain_target, blocks, grad_buffer
        ctx.save_for_backward(y, log_sum, a, unit, x_norm, weight, bias, *margin_values)
        ctx.set_materialize_grads(False)
        if plain_target:
            return log_sum, total, None, None, value
        kept = x_norm if spec.margin.is_linear and spec.margin.uses_x_norm else torch.ones_like(x_norm)
        keeps_w = spec.margin.uses_w_norm
        geometry = compute_target_geometry(
            value, unit, weight, _clamp_labels(y, weight), kept, keeps_w and spec.margin.is_linear
        )
        if keeps_w and geometry.w_norm is None:
            geometry = geometry._replace(
                w_norm=angles.unit_and_norm(weight.index_select(0, _clamp_labels(y, weight)).to(a.dtype))[1]
            )
        # Aliases: a result that its own node holds would never be freed.
        length = geometry.w_norm
        ctx.target = TargetGeometry(
            geometry.theta.detach(), None if length is None else length.detach(), geometry.cosine_divisor
        )
        return log_sum, total, geometry.theta, geometry.w_norm, None

    @staticmethod
    def backward(
        ctx: Any,
        grad_log_sum: Tensor | None,
        grad_logit_sum: Tensor | None,
        grad_theta: Tensor | None,
        grad_w_norm: Tensor | None,
        grad_product: Tensor | None,
    ) -> Any:
        if torch.is_grad_enabled():  # a second derivative is wanted
            return (None,) * 5 + dense_double_backward(
                ctx, (grad_log_sum, grad_logit_sum, grad_theta, grad_w_norm, grad_product)
            )
        y, log_sum, a, unit, x_norm, weight, bias, *margin_values = ctx.saved_tensors
        spec: KernelSpec = ctx.spec
        zero = torch.zeros_like(log_sum)
        grad_theta = zero if grad_theta is None else grad_theta
        grad_value, target_w_coefficient, target_gradients = zero if grad_product is None else grad_product, None, None
        with autocast_disabled(a), torch.no_grad():
            blocks, grad_weight = _take_blocks_and_grad_weight(ctx, a, weight, ctx.needs_input_grad[8])
            if not ctx.plain_target:
                geometry: TargetGeometry = ctx.target
                target_gradients = compute_target_gradients(geometry, grad_theta)
                grad_value = target_gradients.grad_product
                if geometry.w_norm is not None:
                    target_w_coefficient = zero if grad_w_norm is None else grad_w_norm
                    if not spec.divides_by_w_norm:  # the cosine is the product over this length
                        target_w_coefficient = (
                            target_w_coefficient + target_gradients.grad_log_divisor * safe_reciprocal(geometry.w_norm)
                        )
                    target_w_coefficient = target_w_coefficient * safe_reciprocal(geometry.w_norm)
            grad_a, grad_x_norm, grad_bias, grad_margin_values = blocks.compute_gradients(
                spec,
                y,
                x_norm,
                bias,
                margin_values,
                log_sum,
                zero if grad_log_sum is None else grad_log_sum,
                zero if grad_logit_sum is None else grad_logit_sum,
                grad_value,
                target_w_coefficient,
                ctx.needs_input_grad[5],
                grad_weight,
            )
            grad_unit = None
            if target_gradients is not None and spec.margin.is_linear and spec.margin.uses_x_norm:
                more = target_gradients.grad_log_divisor * safe_reciprocal(x_norm)
                grad_x_norm = more if grad_x_norm is None else grad_x_norm + more
            if target_gradients is not None and len(target_gradients.tiny_indices):
                grad_unit = _add_tiny_angle_gradients(
                    unit, weight, y, grad_theta, target_gradients.tiny_indices, grad_weight
                )
        found = iter(grad_margin_values)
        given = [
            next(found).to(n.dtype) if learnt else None
            for n, learnt in zip(margin_values, spec.value_requires_grad, strict=True)
        ]
        return (None, None, None, None, None, grad_a, grad_unit, grad_x_norm, grad_weight, grad_bias, *given)


def _add_tiny_angle_gradients(
    unit: Tensor, weight: Tensor, y: Tensor, grad_theta: Tensor, tiny_indices: Tensor, grad_weight: Tensor | None
) -> Tensor:
    """Gradient to the directions of samples at tiny angles; that of their weights is added to `grad_weight`."""
    rows = _clamp_labels(y, weight)[tiny_indices]
    with torch.enable_grad():
        some = weight.index_select(0, rows).to(unit.dtype).detach().requires_grad_()
        w_unit = angles.unit_and_norm(some)[0]
    grad_u, grad_v = tiny_angle_gradients(unit[tiny_indices], w_unit, grad_theta[tiny_indices])
    if grad_weight is not None:
        (grad_rows,) = torch.autograd.grad(w_unit, some, grad_v)
        grad_weight.index_add_(0, rows, grad_rows.to(grad_weight.dtype))
    return torch.zeros_like(unit).index_copy_(0, tiny_indices, grad_u)


def _clamp_labels(y: Tensor, weight: Tensor) -> Tensor:
    """Labels clamped to rows of the weights; what is computed for a label of another rank is masked later."""
    return y.clamp(0, len(weight) - 1)


def _take_blocks_and_grad_weight(
    ctx: Any, a: Tensor, weight: Tensor, needs_weight_grad: bool
) -> tuple[ClassBlocks, Tensor | None]:
    """The blocks with their cached products and the memory they lie in, which the gradient is about to fill.

    That memory is given away once: a second backward pass computes its products again, in other memory.
    """
    blocks: ClassBlocks = ctx.blocks
    if not needs_weight_grad:
        return blocks, None
    grad_weight = blocks.grad_weight
    if grad_weight is None or not blocks.is_cache_filled:
        grad_weight = ctx.grad_buffer.allocate_like(weight)
        return ClassBlocks(
            blocks.divides_by_w_norm, a, weight, None if blocks.product_cache is None else grad_weight
        ), grad_weight
    filled_blocks = ClassBlocks.__new__(ClassBlocks)
    filled_blocks.__dict__.update(blocks.__dict__)
    blocks.grad_weight = blocks.product_cache = None
    blocks.is_cache_filled, blocks.cached_columns = False, 0
    return filled_blocks, grad_weight


class StreamBackend:
    """A block of classes at a time, from vectors."""

    def __init__(
        self,
        margin: Margin,
        embeddings: NormalizedEmbeddings,
        weight: Tensor,
        bias: Tensor | None,
        grad_buffer: GradBuffer | None = None,
    ) -> None:
        self.margin, self.embeddings, self.weight, self.bias = margin, embeddings, weight, bias
        self.num_classes, self.x_norm = len(weight), embeddings.norm
        self._grad_buffer = GradBuffer() if grad_buffer is None else grad_buffer
        self._blocks: ClassBlocks | None = None

    def target(self, margin: Margin, y: Tensor) -> Target:
        unit, length = angles.unit_and_norm(
            self.weight.index_select(0, _clamp_labels(y, self.weight)).to(self.embeddings.x.dtype)
        )
        theta = angles.angle_between(self.embeddings.unit, unit)
        return Target(theta, compute_radius(margin, self.embeddings.norm, length), self._target_bias(y))

    def _target_bias(self, y: Tensor) -> Tensor | None:
        return None if self.bias is None else self.bias[_clamp_labels(y, self.weight)].to(self.embeddings.x.dtype)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a loop over blocks would be unrolled into one huge graph
    def target_and_non_target(
        self, margin: Margin, y: Tensor, with_logit_sum: bool
    ) -> tuple[Target | TargetLogit, NonTargetSums]:
        spec, margin_values = self._kernel_spec_and_values(margin, with_logit_sum)
        plain = margin.has_plain_target and margin.uses_any_norm
        inputs = (
            self._matmul_input(margin),
            self.embeddings.unit,
            self.embeddings.norm,
            self.weight,
            self.bias,
            *margin_values,
        )
        found = _StreamFunction.apply(spec, plain, self._get_blocks(margin), self._grad_buffer, y, *inputs)  # type: ignore[no-untyped-call]
        log_sum, logit_sum, theta, w_norm, value = found
        others = NonTargetSums(log_sum, logit_sum if with_logit_sum else None)
        bias = self._target_bias(y)
        if plain:
            logit = margin.s * value
            return TargetLogit(logit if bias is None else logit + bias), others
        return Target(theta, compute_radius(margin, self.embeddings.norm, w_norm), bias), others

    def non_target_sums(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> NonTargetSums:
        found: tuple[Target | TargetLogit, NonTargetSums] = self.target_and_non_target(margin, y, with_logit_sum)
        return found[1]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def largest_cosine(self, y: Tensor) -> Tensor:
        margin = self.margin
        by_direction = not (margin.is_linear and (margin.uses_x_norm or margin.uses_w_norm))
        unit, weight = self.embeddings.unit.detach(), self.weight.detach()
        blocks = self._get_blocks(margin) if by_direction else ClassBlocks(True, unit, weight, None)
        return blocks.largest_cosine(self._kernel_spec_and_values(margin, False)[0], y, self.embeddings.norm)

    def _kernel_spec_and_values(self, margin: Margin, with_logit_sum: bool) -> tuple[KernelSpec, Sequence[Tensor]]:
        # Every number of the margin is an input, so that learnable ones get their gradient wherever φ uses them.
        found = {n: v for n, v in margin.named_values() if isinstance(v, Tensor) and v.is_floating_point()}
        learnt = {name: value.requires_grad and torch.is_grad_enabled() for name, value in found.items()}
        # In the working dtype, so that a scale kept in fp64 and one adapted to the batch meet the same kernel.
        return KernelSpec.from_margin(margin, with_logit_sum, learnt), [
            value.to(self.embeddings.dtype) for value in found.values()
        ]

    def _matmul_input(self, margin: Margin) -> Tensor:
        """The left factor of the matrix product with the class weights: embeddings, or their directions."""
        return self.embeddings.x if margin.is_linear and margin.uses_x_norm else self.embeddings.unit

    def _get_blocks(self, margin: Margin) -> ClassBlocks:
        """The blocks of this call: their products serve the adaptive numbers, the loss, and both labels of a mixup."""
        if self._blocks is None:
            factor = self._matmul_input(margin).detach()
            wanted = self.weight.requires_grad and (torch.is_grad_enabled() or bool(margin.adaptive_fields))
            grad_weight = self._grad_buffer.allocate_like(self.weight) if wanted else None
            divides = not (margin.is_linear and margin.uses_w_norm)
            self._blocks = ClassBlocks(divides, factor, self.weight.detach(), grad_weight)
        return self._blocks
