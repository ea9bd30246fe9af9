"""Kernels: elementwise work on one block of classes, from products to sums and back, plain or compiled.

Everything is [B, N], classes first: a row's samples lie side by side, sums over classes run down the columns. The
logit is `base.compute_logits`, the only definition; its slope is autograd's. The kernels are plain PyTorch functions;
`get_kernel` traces them and turns each into one compiled loop where a compiler is available (which is why each returns
a tuple), so that compiled and plain kernels come from the same functions.

Compiling takes some seconds, so it is for heads where a step takes long; the first call of every `KernelSpec` pays.
`WIDEMARGIN_FUSED=1` compiles for small heads too, `0` never. Where there is no compiler, or it fails, the plain
functions do the same work: slower, and but for the last digit of single precision the same.
"""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...losses.margin import Margin
from ...numerics import angles
from ...numerics.precision import widest_float_dtype
from .base import DotProducts, compute_logits, compute_radius

_MAX_PARTIAL_SUM_ROWS = 64  # rows that are added up in the working precision before the sum goes on in the widest


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


def _sum_over_classes(values: Tensor) -> Tensor:
    """Sum over the classes [N] in the widest float; short runs in the working one, which costs no digits."""
    rows, wide = values.shape[0], widest_float_dtype(values.device)
    together = _partial_sum_rows(rows)
    whole = rows - rows % together
    found = values[:whole].view(whole // together, together, values.shape[1]).sum(1).to(wide).sum(0)
    return found if whole == rows else found + values[whole:].sum(0).to(wide)


def _partial_sum_rows(rows: int) -> int:
    """Rows that are summed together: a divisor of `rows` if one is large enough, so that it compiles to one loop.

    >>> _partial_sum_rows(1000), _partial_sum_rows(1024), _partial_sum_rows(997)
    (50, 64, 64)
    """
    return next(
        (run for run in range(_MAX_PARTIAL_SUM_ROWS, _MAX_PARTIAL_SUM_ROWS // 4, -1) if rows % run == 0),
        _MAX_PARTIAL_SUM_ROWS,
    )


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
    found = _sum_over_classes(torch.where(target, 0.0, torch.exp(z - anchor)))
    return (found, _sum_over_classes(torch.where(target, 0.0, z))) if spec.with_logit_sum else (found,)


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


KernelFunction = Callable[..., Any]

_kernel_cache: dict[Any, KernelFunction] = {}
_warned_reasons: set[str] = set()  # reasons of failures that were warned about
_kernel_cache_lock = threading.Lock()


MIN_COMPILE_LOGITS = 1 << 20  # logits from which compiling pays within minutes of training
MIN_FORCED_COMPILE_LOGITS = 1 << 16  # where it was asked for; below this a step is all overhead


def is_compile_forced(logits: int) -> bool:
    """Whether compiled kernels were asked for at so many logits, where plain ones would do."""
    return os.environ.get("WIDEMARGIN_FUSED") == "1" and logits >= MIN_FORCED_COMPILE_LOGITS


def should_compile(logits: int, device: torch.device) -> bool:
    """Whether a head of so many logits shall have compiled kernels, and can."""
    return (logits >= MIN_COMPILE_LOGITS or is_compile_forced(logits)) and can_compile(device)


def can_compile(device: torch.device) -> bool:
    """Whether kernels may be compiled: a C++ compiler on a CPU, Triton on a GPU; WIDEMARGIN_FUSED=0 says no."""
    if os.environ.get("WIDEMARGIN_FUSED") == "0":
        return False
    if device.type == "cpu":
        return _on_path(os.environ.get("CXX", "g++"))
    return device.type == "cuda"


@cache
def _on_path(command: str) -> bool:
    return shutil.which(command) is not None


def get_kernel(function: KernelFunction, spec: KernelSpec, block: Block, inputs: Sequence[Tensor]) -> KernelFunction:
    """`function(spec, block, *inputs)` for blocks of this very shape, compiled; itself where that fails."""
    tensors = [t for t in block if t is not None] + list(inputs)
    key = (function, spec, tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors))
    with _kernel_cache_lock:
        if key not in _kernel_cache:
            _kernel_cache[key] = _compile_or_fallback(function, spec, block, inputs)
        return _kernel_cache[key]


def _compile_or_fallback(
    function: KernelFunction, spec: KernelSpec, block: Block, inputs: Sequence[Tensor]
) -> KernelFunction:
    def plain(spec: KernelSpec, block: Block, *inputs: Tensor) -> Any:
        return function(spec, block, *inputs)

    try:
        compiled = _trace_and_compile(function, spec, block, inputs)
    except Exception as error:
        # Only this kernel: another loss, dtype or size may well compile.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if reason not in _warned_reasons:
            _warned_reasons.add(reason)
            what = f"{spec.margin.name} ({function.__name__})"
            warnings.warn(f"no compiled kernel for {what}, plain PyTorch does its work: {reason}", stacklevel=2)
        return plain
    return compiled


def _trace_and_compile(
    function: KernelFunction, spec: KernelSpec, block: Block, inputs: Sequence[Tensor]
) -> KernelFunction:
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    has_bias = block.bias is not None

    def flat(*tensors: Tensor) -> Any:
        raw, inverse, x_length, column, *rest = tensors
        bias = rest.pop(0) if has_bias else None
        return function(spec, Block(raw, inverse, x_length, column, bias), *rest)

    def flatten_inputs(block: Block, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [*(t for t in block if t is not None), *inputs]

    given = flatten_inputs(block, inputs)
    with torch.no_grad(), angles.use_polynomial_arccos():
        graph = make_fx(flat, decomposition_table=select_decomp_table(), tracing_mode="fake")(*given)
        # Once more without writing in place, which would stand between the loops as a call of its own.
        graph = make_fx(torch.func.functionalize(graph), tracing_mode="fake")(*given)
        # Shapes are fixed and nothing is differentiated, so that what torch.compile would check on every call, at a
        # tenth of a block's time, is known.
        compiled: Any = compile_fx_inner(graph, [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"])
        compiled(given)  # fails here or never

    def call(spec: KernelSpec, block: Block, *inputs: Tensor) -> Any:
        return compiled(flatten_inputs(block, inputs))

    return call
