"""A block's elementwise work as one compiled loop: traced from `block`, so that there is no second formula.

Compiling takes some seconds, so it is for heads where a step takes long; the first call of every kind pays.
`WIDEMARGIN_FUSED=1` compiles for small heads too, `0` never. Where there is no compiler, or it fails, the plain
functions do the same work: slower, and but for the last digit of single precision the same.
"""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .. import angle
from .block import Block, KernelSpec

KernelFunction = Callable[..., Any]

_kernel_cache: dict[Any, KernelFunction] = {}
_warned_reasons: set[str] = set()  # of failures, each said once
_kernel_cache_lock = threading.Lock()


MIN_COMPILE_LOGITS = 1 << 20  # logits from which compiling pays within minutes of training
MIN_FORCED_COMPILE_LOGITS = 1 << 16  # where it was asked for; below this a step is all overhead


def is_compile_forced(logits: int) -> bool:
    """Whether somebody wants them for a head of so many logits, which would do without."""
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
    """`function(kind, block, *inputs)` for blocks of this very shape, compiled; itself where that fails."""
    tensors = [t for t in block if t is not None] + list(inputs)
    key = (function, spec, tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors))
    with _kernel_cache_lock:
        if key not in _kernel_cache:
            _kernel_cache[key] = _compile_or_fallback(function, spec, block, inputs)
        return _kernel_cache[key]


def _compile_or_fallback(
    function: KernelFunction, spec: KernelSpec, block: Block, inputs: Sequence[Tensor]
) -> KernelFunction:
    def plain(kind: KernelSpec, block: Block, *inputs: Tensor) -> Any:
        return function(kind, block, *inputs)

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
    with torch.no_grad(), angle.use_polynomial_arccos():
        graph = make_fx(flat, decomposition_table=select_decomp_table(), tracing_mode="fake")(*given)
        # Once more without writing in place, which would stand between the loops as a call of its own.
        graph = make_fx(torch.func.functionalize(graph), tracing_mode="fake")(*given)
        # Shapes are fixed and nothing is differentiated, so that what torch.compile would check on every call, at a
        # tenth of a block's time, is known.
        compiled: Any = compile_fx_inner(graph, [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"])
        compiled(given)  # fails here or never

    def call(kind: KernelSpec, block: Block, *inputs: Tensor) -> Any:
        return compiled(flatten_inputs(block, inputs))

    return call
