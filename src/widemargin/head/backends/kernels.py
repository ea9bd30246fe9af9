"""Kernels: elementwise work on one block of classes, from products to sums and back.

Everything is [B, N], classes first: the samples of a class are contiguous, and sums over classes run down the columns.
The logit is `base.compute_logits`, the only definition; its derivative is autograd's. The kernels are plain PyTorch
functions; `compiled.py` traces them into one compiled loop each (so each returns a tuple), which keeps compiled and
plain kernels the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...losses.margin import Margin, Subcenters
from ...numerics.precision import widest_float_dtype
from .base import DotProducts, compute_logits, compute_radius, fold_subcenters

MAX_RUN_ROWS = 64  # rows summed in the working precision before the sum continues in the widest dtype


@dataclass(frozen=True)
class KernelSpec:
    """Everything that is constant over the blocks; equal specs share a compiled kernel."""

    margin: Margin
    value_names: tuple[str, ...]
    """Numbers of the margin that are tensors: arguments of every call."""
    value_requires_grad: tuple[bool, ...]
    """Those of them that need a gradient."""
    with_logit_sum: bool
    """True if the sum of the logits is computed (label smoothing)."""
    sample_names: tuple[str, ...] = ()
    """Per-sample numbers that φ reads: vectors [N], arguments of every call, before those of the margin."""
    subcenters: Subcenters | None = None
    """Reduction of the weights of a class; a block then has K rows for every class."""

    @classmethod
    def from_margin(
        cls,
        margin: Margin,
        with_logit_sum: bool,
        requires_grad: dict[str, bool],
        sample_names: tuple[str, ...] = (),
        subcenters: Subcenters | None = None,
    ) -> KernelSpec:
        # Values are not part of the spec, or every step of a schedule would be recompiled. Nor are the numbers that
        # `class_offsets` has read: kernels do not use them, and a spec is hashed once per block.
        fixed = dict.fromkeys(requires_grad, 1.0) | dict.fromkeys(margin.table_fields)
        bare = margin.without_sample_values()
        bare = bare.with_values(**fixed) if fixed else bare
        return cls(bare, tuple(requires_grad), tuple(requires_grad.values()), with_logit_sum, sample_names, subcenters)

    @classmethod
    def with_numbers(
        cls,
        margin: Margin,
        with_logit_sum: bool,
        dtype: torch.dtype,
        subcenters: Subcenters | None,
        learns: bool,
    ) -> tuple[KernelSpec, list[Tensor]]:
        """Return the spec of a margin and the numbers of this call, which get a gradient if `learns`."""
        if not any(isinstance(value, Tensor) for value in margin.__dict__.values()):
            return _spec_of_constants(margin, with_logit_sum, subcenters), []
        # Every number of the margin is an input, so that learnable ones get their gradient wherever φ uses them.
        tensors = {n: v for n, v in margin.named_values() if isinstance(v, Tensor) and v.is_floating_point()}
        learnt = {name: value.requires_grad and learns for name, value in tensors.items()}
        names = margin.phi_sample_fields
        # In the working dtype, so that a scale stored in fp64 and one adapted to the batch use the same kernel.
        samples = (torch.as_tensor(getattr(margin, name), dtype=dtype) for name in names)
        values = [*samples, *(value.to(dtype) for value in tensors.values())]
        return cls.from_margin(margin, with_logit_sum, learnt, names, subcenters), values

    @property
    def rows_per_class(self) -> int:
        """Rows of the weights per class."""
        return 1 if self.subcenters is None else self.subcenters.count

    def margin_with(self, values: Sequence[Tensor]) -> Margin:
        """Return the margin with the numbers of a call: per-sample ones as columns [N, 1], then its own."""
        if not values:
            return self.margin
        count = len(self.sample_names)
        numbers = dict(zip(self.sample_names, (value.unsqueeze(1) for value in values[:count]), strict=True))
        return self.margin.with_values(**numbers, **dict(zip(self.value_names, values[count:], strict=True)))

    @property
    def divides_by_w_norm(self) -> bool:
        """True if a product is divided by the norm of the class weight."""
        return not (self.margin.is_linear and self.margin.uses_w_norm)

    @property
    def has_radius(self) -> bool:
        """True if norms are multiplied in after φ."""
        return not self.margin.is_linear and (self.margin.uses_x_norm or self.margin.uses_w_norm)


@lru_cache(maxsize=64)
def _spec_of_constants(margin: Margin, with_logit_sum: bool, subcenters: Subcenters | None) -> KernelSpec:
    return KernelSpec.from_margin(margin, with_logit_sum, {}, margin.phi_sample_fields, subcenters)


class Block(NamedTuple):
    """One block as input of the kernels; all fields are tensors."""

    dot_products: Tensor
    """Products of class weights and embeddings [B, N]; of K sub-centres per class [B·K, N]."""
    inverse_norm: Tensor
    """1/‖w‖ [B] or [B·K]; 0 for a zero weight, whose cosines are 0 and which gets no gradient."""
    x_norm: Tensor
    """‖x‖ [N]."""
    target_row: Tensor
    """Row of each sample's target in this block [N]; outside 0 … B−1 if the target is elsewhere."""
    bias: Tensor | None
    """Biases of the classes [B], if any."""
    run_rows: int
    """Number of rows summed together, a divisor of B (`find_run_rows`)."""


def find_run_rows(rows: int) -> int | None:
    """Return the largest number of rows from 16 to 64 that divides a block into equal runs; None if there is none.

    >>> find_run_rows(1000), find_run_rows(1024), find_run_rows(7), find_run_rows(997)
    (50, 64, 7, None)
    """
    if rows <= MAX_RUN_ROWS:
        return max(rows, 1)
    return next((run for run in range(MAX_RUN_ROWS, MAX_RUN_ROWS // 4 - 1, -1) if rows % run == 0), None)


def safe_reciprocal(norm: Tensor) -> Tensor:
    """1/norm, and 0 for a norm of 0."""
    return torch.where(norm == 0, torch.zeros_like(norm), 1.0 / norm)


def _cosines_or_products(spec: KernelSpec, block: Block) -> Tensor:
    """Argument of φ [B, N], or [B·K, N] before sub-centres are reduced."""
    return block.dot_products * block.inverse_norm.unsqueeze(1) if spec.divides_by_w_norm else block.dot_products


def _logits(
    spec: KernelSpec,
    margin: Margin,
    value: Tensor,
    x_norm: Tensor,
    w_norm: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Logits [B, N] from reduced products [B, N], through the one definition, which is written for [N, B]."""
    radius = compute_radius(margin, x_norm.unsqueeze(1), w_norm) if spec.has_radius else None
    return compute_logits(margin, DotProducts(value.T, radius), bias).T


def _block_logits(spec: KernelSpec, margin: Margin, block: Block) -> Tensor:
    """Logits [B, N] of a block."""
    value = fold_subcenters(spec.subcenters, _cosines_or_products(spec, block), 0)
    return _logits(spec, margin, value, block.x_norm, _w_norm_or_placeholder(spec, block), block.bias)


def _w_norm_or_placeholder(spec: KernelSpec, block: Block) -> Tensor:
    return safe_reciprocal(block.inverse_norm) if spec.has_radius else block.inverse_norm


def _is_target(block: Block, values: Tensor) -> Tensor:
    """True where values [B, N] of classes belong to the target."""
    # `shape[0]` instead of `len`, which would make the size a constant of a traced kernel.
    places = torch.arange(values.shape[0], dtype=block.target_row.dtype, device=block.dot_products.device)
    return places.unsqueeze(1) == block.target_row


def _sum_over_classes(block: Block, values: Tensor) -> Tensor:
    """Sum over the classes [N] in the widest dtype; short runs in the working dtype, which loses no digits."""
    rows, samples = values.shape
    runs = values.view(rows // block.run_rows, block.run_rows, samples)
    return runs.sum(1).to(widest_float_dtype(values.device)).sum(0)


def largest_logit(spec: KernelSpec, block: Block, *values: Tensor) -> tuple[Tensor]:
    """The largest logit [N] of the block's non-target classes; −inf if there are none."""
    z = _block_logits(spec, spec.margin_with(values), block)
    return (torch.where(_is_target(block, z), -torch.inf, z).amax(0),)


def non_target_cosines(spec: KernelSpec, block: Block) -> Tensor:
    """Cosines [B, N] of products of directions, −inf at the target."""
    cos = fold_subcenters(spec.subcenters, block.dot_products * block.inverse_norm.unsqueeze(1), 0)
    return torch.where(_is_target(block, cos), -torch.inf, cos)


def largest_cosine(spec: KernelSpec, block: Block) -> tuple[Tensor]:
    """The largest cosine [N], for products of directions."""
    return (non_target_cosines(spec, block).amax(0),)


def largest_cosine_of_runs(spec: KernelSpec, block: Block) -> tuple[Tensor]:
    """The largest cosine [runs, N] of every run of classes."""
    cos = non_target_cosines(spec, block)
    return (cos.view(cos.shape[0] // block.run_rows, block.run_rows, cos.shape[1]).amax(1),)


def sum_exp_logits(spec: KernelSpec, block: Block, anchor: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """`Σ exp(z − anchor)` [N] over the non-target classes, and `Σ z` if requested."""
    z = _block_logits(spec, spec.margin_with(values), block)
    target = _is_target(block, z)
    total = _sum_over_classes(block, torch.where(target, 0.0, torch.exp(z - anchor)))
    return (total, _sum_over_classes(block, torch.where(target, 0.0, z))) if spec.with_logit_sum else (total,)


def sum_exp_logits_at_max(spec: KernelSpec, block: Block, *values: Tensor) -> tuple[Tensor, ...]:
    """The largest logit [N] of the non-target classes, `Σ exp(z − it)` [N] over them, and `Σ z` if requested."""
    z = _block_logits(spec, spec.margin_with(values), block)
    target = _is_target(block, z)
    top = torch.where(target, -torch.inf, z).amax(0)
    anchor = torch.where(top == -torch.inf, 0.0, top)
    total = _sum_over_classes(block, torch.where(target, 0.0, torch.exp(z - anchor)))
    return (top, total, _sum_over_classes(block, torch.where(target, 0.0, z))) if spec.with_logit_sum else (top, total)


def sum_other_losses(spec: KernelSpec, block: Block, *values: Tensor) -> tuple[Tensor]:
    """`Σ h(z)` [N] over the non-target classes of a one-vs-all loss."""
    margin = spec.margin_with(values)
    z = _block_logits(spec, margin, block)
    return (_sum_over_classes(block, torch.where(_is_target(block, z), 0.0, margin.other_loss(z))),)


def gradients(
    spec: KernelSpec,
    block: Block,
    log_sum: Tensor,
    grad_others: Tensor,
    grad_logit_sum: Tensor,
    grad_target_product: Tensor,
    *values: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of the products, as the two matrix products need them, and the coefficient of each class weight.

    Returns grad_dot_products [B, N] and w_coefficient [B], so that ∂/∂w = grad_dot_products · a + w_coefficient · w
    (B·K each with sub-centres); then the gradients of the norms of the embeddings [N], of the bias [B] and of the
    learnt numbers, if any. `log_sum` is `L`, unused by one-vs-all losses.
    """
    inverse, w_norm = block.inverse_norm, _w_norm_or_placeholder(spec, block)
    count = len(spec.sample_names)
    with torch.enable_grad():
        raw = _cosines_or_products(spec, block).detach()
        raw = raw if spec.subcenters is None else raw.requires_grad_()
        folded = fold_subcenters(spec.subcenters, raw, 0)
        value = folded.detach().requires_grad_()
        of_x, of_w = (t.detach().requires_grad_(spec.has_radius) for t in (block.x_norm, w_norm))
        bias = None if block.bias is None else block.bias.detach().requires_grad_()
        value_leaves = [
            n.detach().requires_grad_(learnt)
            for n, learnt in zip(values[count:], spec.value_requires_grad, strict=True)
        ]
        margin = spec.margin_with([*values[:count], *value_leaves])
        z = _logits(spec, margin, value, of_x, of_w, bias)
        target = _is_target(block, z)
        if spec.margin.one_vs_all:
            total = margin.other_loss(z)
            grad_total = torch.where(target, 0.0, grad_others.expand_as(total))
        else:
            total, grad_total = z, torch.exp(z.detach() - log_sum) * grad_others
            if spec.with_logit_sum:
                grad_total = grad_total + grad_logit_sum
            grad_total = torch.where(target, 0.0, grad_total)
        variables = [
            value,
            *((of_x, of_w) if spec.has_radius else ()),
            *([] if bias is None else [bias]),
            *(n for n in value_leaves if n.requires_grad),
        ]
        grads = torch.autograd.grad(total, variables, grad_total, allow_unused=True)
        results = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, variables, strict=True)]
        # The gradient of the target's product comes from its angle instead.
        grad_value = torch.where(target, grad_target_product, results.pop(0))
        if spec.subcenters is not None:
            (grad_value,) = torch.autograd.grad(folded, raw, grad_value)
    with torch.no_grad():
        raw = raw.detach()
        if spec.divides_by_w_norm:
            # A gradient along the weight itself does not turn it: subtract that part.
            w_coefficient = -(grad_value * raw).sum(1) * inverse * inverse
            grad_dot_products = grad_value * inverse.unsqueeze(1)
        else:
            w_coefficient, grad_dot_products = torch.zeros_like(inverse), grad_value
        if spec.has_radius:
            w_coefficient = w_coefficient + results.pop(1) * inverse
        return (grad_dot_products.contiguous(), w_coefficient, *results)
