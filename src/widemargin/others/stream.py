"""The streamed road: blocks of classes, never an N×C matrix, never a normalised copy of the weights.

Exact, at three matrix products. `sweep` has the loop and where the products are kept, `block` what is done with them,
`fused` the compiled form of that, `room` the gradient's memory from step to step. Runs on a GPU by the same code;
none was at hand to try it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import angle
from ..margin import Margin
from ..precision import autocast_disabled
from .again import dense_double_backward
from .block import KernelSpec, safe_reciprocal
from .own import TargetGeometry, compute_target_geometry, compute_target_gradients, tiny_angle_gradients
from .rays import NormalizedEmbeddings, compute_radius
from .road import NonTargetSums, Target, TargetLogit
from .room import GradBuffer
from .sweep import ClassBlocks


class _StreamFunction(torch.autograd.Function):
    """(a, directions, ‖x‖, weight, bias, numbers of the margin) → (L, Σ z, θ_y, ‖w_y‖ where it is kept, a·w_y).

    Target and others in one, so that the weights have one gradient: two would be two C×D matrices. Of the target either
    θ_y and ‖w_y‖ or (`plain`) the product a·w_y; the others are None.
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
        ctx.kind, ctx.plain, ctx.sweep, ctx.room = spec, plain_target, blocks, grad_buffer
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
                w_norm=angle.unit_and_norm(weight.index_select(0, _clamp_labels(y, weight)).to(a.dtype))[1]
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
        if torch.is_grad_enabled():  # somebody wants a second derivative
            return (None,) * 5 + dense_double_backward(
                ctx, (grad_log_sum, grad_logit_sum, grad_theta, grad_w_norm, grad_product)
            )
        y, log_sum, a, unit, x_norm, weight, bias, *margin_values = ctx.saved_tensors
        spec: KernelSpec = ctx.kind
        zero = torch.zeros_like(log_sum)
        grad_theta = zero if grad_theta is None else grad_theta
        grad_value, target_w_coefficient, target_gradients = zero if grad_product is None else grad_product, None, None
        with autocast_disabled(a), torch.no_grad():
            blocks, grad_weight = _take_blocks_and_grad_weight(ctx, a, weight, ctx.needs_input_grad[8])
            if not ctx.plain:
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
    """Gradient to the directions of samples at tiny angles; that of their weights is added to `into`."""
    rows = _clamp_labels(y, weight)[tiny_indices]
    with torch.enable_grad():
        some = weight.index_select(0, rows).to(unit.dtype).detach().requires_grad_()
        w_unit = angle.unit_and_norm(some)[0]
    grad_u, grad_v = tiny_angle_gradients(unit[tiny_indices], w_unit, grad_theta[tiny_indices])
    if grad_weight is not None:
        (grad_rows,) = torch.autograd.grad(w_unit, some, grad_v)
        grad_weight.index_add_(0, rows, grad_rows.to(grad_weight.dtype))
    return torch.zeros_like(unit).index_copy_(0, tiny_indices, grad_u)


def _clamp_labels(y: Tensor, weight: Tensor) -> Tensor:
    """Labels as rows of the weights; one of another rank's classes is some row, of which nothing will be used."""
    return y.clamp(0, len(weight) - 1)


def _take_blocks_and_grad_weight(
    ctx: Any, a: Tensor, weight: Tensor, needs_weight_grad: bool
) -> tuple[ClassBlocks, Tensor | None]:
    """The sweep with its kept products and the room they lie in, which the gradient is about to fill.

    Once given away the room is gone: a second backward pass computes its products again, in other room.
    """
    blocks: ClassBlocks = ctx.sweep
    if not needs_weight_grad:
        return blocks, None
    grad_weight = blocks.grad_weight
    if grad_weight is None or not blocks.is_cache_filled:
        grad_weight = ctx.room.allocate_like(weight)
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
        unit, length = angle.unit_and_norm(
            self.weight.index_select(0, _clamp_labels(y, self.weight)).to(self.embeddings.x.dtype)
        )
        theta = angle.angle_between(self.embeddings.unit, unit)
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
        log_sum, added, theta, w_norm, value = found
        others = NonTargetSums(log_sum, added if with_logit_sum else None)
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
        """What the class weights are multiplied with: embeddings, or their directions."""
        return self.embeddings.x if margin.is_linear and margin.uses_x_norm else self.embeddings.unit

    def _get_blocks(self, margin: Margin) -> ClassBlocks:
        """The sweep of this call: its products serve the adaptive numbers and the loss, and both labels of a mixup."""
        if self._blocks is None:
            factor = self._matmul_input(margin).detach()
            wanted = self.weight.requires_grad and (torch.is_grad_enabled() or bool(margin.adaptive_fields))
            grad_weight = self._grad_buffer.allocate_like(self.weight) if wanted else None
            divides = not (margin.is_linear and margin.uses_w_norm)
            self._blocks = ClassBlocks(divides, factor, self.weight.detach(), grad_weight)
        return self._blocks
