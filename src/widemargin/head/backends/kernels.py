"""Kernels: elementwise work on one block of classes, from products to sums and back.

Everything is [B, N], classes first: a row's samples lie side by side, sums over classes run down the columns. The
logit is `base.compute_logits`, the only definition; its slope is autograd's. The kernels are plain PyTorch functions;
`compiled.py` traces them and turns each into one compiled loop (which is why each returns a tuple), so compiled and
plain kernels come from the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...losses.margin import Margin
from ...numerics.precision import widest_float_dtype
from .base import DotProducts, compute_logits, compute_radius

MAX_RUN_ROWS = 64  # rows that are added up in the working precision before the sum goes on in the widest


@dataclass(frozen=True)
class KernelSpec:
    """What does not change from block to block; equal specs share a compiled kernel."""

    margin: Margin
    value_names: tuple[str, ...]
    """Numbers of the margin that are tensors: they come with every call."""
    value_requires_grad: tuple[bool, ...]
    """Which of them want a gradient."""
    with_logit_sum: bool
    """Whether the sum of the logits is wanted (label smoothing)."""

    @classmethod
    def from_margin(cls, margin: Margin, with_logit_sum: bool, requires_grad: dict[str, bool]) -> KernelSpec:
        # Their values are no part of the spec, or every step of a schedule would be compiled anew.
        bare = margin.with_values(**dict.fromkeys(requires_grad, 1.0)) if requires_grad else margin
        return cls(bare, tuple(requires_grad), tuple(requires_grad.values()), with_logit_sum)

    @property
    def divides_by_w_norm(self) -> bool:
        """Whether a product is divided by the length of the class weight."""
        return not (self.margin.is_linear and self.margin.uses_w_norm)

    @property
    def has_radius(self) -> bool:
        """Whether lengths are multiplied in after φ."""
        return not self.margin.is_linear and (self.margin.uses_x_norm or self.margin.uses_w_norm)


class Block(NamedTuple):
    """One block as the kernels take it; everything a tensor."""

    dot_products: Tensor
    """Products of class weights and embeddings [B, N]."""
    inverse_norm: Tensor
    """1/‖w‖ [B]; 0 for a zero weight, whose cosines are 0 and which gets no gradient."""
    x_norm: Tensor
    """‖x‖ [N]."""
    target_row: Tensor
    """Row of each sample's target in this block [N]; outside 0 … B−1 where the target lies elsewhere."""
    bias: Tensor | None
    """Biases of the classes [B], if any."""
    run_rows: int
    """How many rows are summed together, a divisor of B (`find_run_rows`)."""


def find_run_rows(rows: int) -> int | None:
    """The most rows up to 64, and at least 16, that divide a block into equal runs; None where there is no such number.

    >>> find_run_rows(1000), find_run_rows(1024), find_run_rows(7), find_run_rows(997)
    (50, 64, 7, None)
    """
    if rows <= MAX_RUN_ROWS:
        return max(rows, 1)
    return next((run for run in range(MAX_RUN_ROWS, MAX_RUN_ROWS // 4 - 1, -1) if rows % run == 0), None)


def safe_reciprocal(norm: Tensor) -> Tensor:
    """1/length, and 0 where that is 0."""
    return torch.where(norm == 0, torch.zeros_like(norm), 1.0 / norm)


def _phi_input(spec: KernelSpec, block: Block) -> Tensor:
    return block.dot_products * block.inverse_norm.unsqueeze(1) if spec.divides_by_w_norm else block.dot_products


def _logits(
    spec: KernelSpec,
    value: Tensor,
    x_norm: Tensor,
    w_norm: Tensor,
    bias: Tensor | None,
    margin_values: Sequence[Tensor],
) -> Tensor:
    """[B, N] through the one definition, which is written for [N, B]."""
    margin = (
        spec.margin.with_values(**dict(zip(spec.value_names, margin_values, strict=True)))
        if margin_values
        else spec.margin
    )
    radius = compute_radius(margin, x_norm.unsqueeze(1), w_norm) if spec.has_radius else None
    return compute_logits(margin, DotProducts(value.T, radius), bias).T


def _w_norm_or_placeholder(spec: KernelSpec, block: Block) -> Tensor:
    return safe_reciprocal(block.inverse_norm) if spec.has_radius else block.inverse_norm


def _is_target(block: Block) -> Tensor:
    rows = torch.arange(block.dot_products.shape[0], dtype=block.target_row.dtype, device=block.dot_products.device)
    return rows.unsqueeze(1) == block.target_row


def _sum_over_classes(block: Block, values: Tensor) -> Tensor:
    """Sum over the classes [N] in the widest float; short runs in the working one, which costs no digits."""
    rows, samples = values.shape
    runs = values.view(rows // block.run_rows, block.run_rows, samples)
    return runs.sum(1).to(widest_float_dtype(values.device)).sum(0)


def largest_logit(spec: KernelSpec, block: Block, *margin_values: Tensor) -> tuple[Tensor]:
    """The largest logit [N] of the block's classes that are not the target; −inf where there is none."""
    z = _logits(
        spec, _phi_input(spec, block), block.x_norm, _w_norm_or_placeholder(spec, block), block.bias, margin_values
    )
    return (torch.where(_is_target(block), -torch.inf, z).amax(0),)


def largest_cosine(spec: KernelSpec, block: Block, *margin_values: Tensor) -> tuple[Tensor]:
    """The largest cosine [N], where the products are those of directions."""
    cos = block.dot_products * block.inverse_norm.unsqueeze(1)
    return (torch.where(_is_target(block), -torch.inf, cos).amax(0),)


def sum_exp_logits(spec: KernelSpec, block: Block, anchor: Tensor, *margin_values: Tensor) -> tuple[Tensor, ...]:
    """`Σ exp(z − anchor)` [N] over the classes that are not the target, and `Σ z` where that is wanted."""
    z = _logits(
        spec, _phi_input(spec, block), block.x_norm, _w_norm_or_placeholder(spec, block), block.bias, margin_values
    )
    target = _is_target(block)
    found = _sum_over_classes(block, torch.where(target, 0.0, torch.exp(z - anchor)))
    return (found, _sum_over_classes(block, torch.where(target, 0.0, z))) if spec.with_logit_sum else (found,)


def gradients(
    spec: KernelSpec,
    block: Block,
    log_sum: Tensor,
    grad_log_sum: Tensor,
    grad_logit_sum: Tensor,
    grad_target_product: Tensor,
    *margin_values: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of the products, as the two matrix products need them, and the coefficient of each class weight.

    Returns grad_dot_products [B, N] and w_coefficient [B], so that ∂/∂w = grad_dot_products · a + w_coefficient · w;
    then the gradients of the lengths of the embeddings [N], of the bias [B] and of the learnt numbers, as far as there
    are any.
    """
    inverse, w_norm = block.inverse_norm, _w_norm_or_placeholder(spec, block)
    with torch.enable_grad():
        value = _phi_input(spec, block).detach().requires_grad_()
        of_x, of_w = (t.detach().requires_grad_(spec.has_radius) for t in (block.x_norm, w_norm))
        bias = None if block.bias is None else block.bias.detach().requires_grad_()
        value_leaves = [
            n.detach().requires_grad_(learnt) for n, learnt in zip(margin_values, spec.value_requires_grad, strict=True)
        ]
        z = _logits(spec, value, of_x, of_w, bias, value_leaves)
        grad_logits = torch.exp(z.detach() - log_sum) * grad_log_sum
        if spec.with_logit_sum:
            grad_logits = grad_logits + grad_logit_sum
        target = _is_target(block)
        grad_logits = torch.where(target, 0.0, grad_logits)
        wanted = [
            value,
            *((of_x, of_w) if spec.has_radius else ()),
            *([] if bias is None else [bias]),
            *(n for n in value_leaves if n.requires_grad),
        ]
        grads = torch.autograd.grad(z, wanted, grad_logits, allow_unused=True)
        found = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, wanted, strict=True)]
    # The gradient of the target's product comes from its angle instead.
    grad_value = torch.where(target, grad_target_product, found.pop(0))
    with torch.no_grad():
        if spec.divides_by_w_norm:
            # A pull along the weight itself does not turn it: that part is taken off again.
            w_coefficient = -(grad_value * value).sum(1) * inverse * inverse
            grad_dot_products = grad_value * inverse.unsqueeze(1)
        else:
            w_coefficient, grad_dot_products = torch.zeros_like(inverse), grad_value
        if spec.has_radius:
            w_coefficient = w_coefficient + found.pop(1) * inverse
        return (grad_dot_products.contiguous(), w_coefficient, *found)
