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
from .block import Block, Kind

Function = Callable[..., Any]

_made: dict[Any, Function] = {}
_reasons: set[str] = set()  # of failures, each said once
_lock = threading.Lock()


FROM = 1 << 20  # logits from which compiling pays within minutes of training
ASKED_FROM = 1 << 16  # where it was asked for; below this a step is all overhead


def asked(logits: int) -> bool:
    """Whether somebody wants them for a head of so many logits, which would do without."""
    return os.environ.get("WIDEMARGIN_FUSED") == "1" and logits >= ASKED_FROM


def wanted(logits: int, device: torch.device) -> bool:
    """Whether a head of so many logits shall have compiled kernels, and can."""
    return (logits >= FROM or asked(logits)) and available(device)


def available(device: torch.device) -> bool:
    """Whether kernels may be compiled: a C++ compiler on a CPU, Triton on a GPU; WIDEMARGIN_FUSED=0 says no."""
    if os.environ.get("WIDEMARGIN_FUSED") == "0":
        return False
    if device.type == "cpu":
        return _on_path(os.environ.get("CXX", "g++"))
    return device.type == "cuda"


@cache
def _on_path(command: str) -> bool:
    return shutil.which(command) is not None


def kernel(function: Function, kind: Kind, block: Block, inputs: Sequence[Tensor]) -> Function:
    """`function(kind, block, *inputs)` for blocks of this very shape, compiled; itself where that fails."""
    tensors = [t for t in block if t is not None] + list(inputs)
    key = (function, kind, tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors))
    with _lock:
        if key not in _made:
            _made[key] = _compiled(function, kind, block, inputs)
        return _made[key]


def _compiled(function: Function, kind: Kind, block: Block, inputs: Sequence[Tensor]) -> Function:
    def plain(kind: Kind, block: Block, *inputs: Tensor) -> Any:
        return function(kind, block, *inputs)

    try:
        made = _traced(function, kind, block, inputs)
    except Exception as error:
        # Only this kernel: another loss, dtype or size may well compile.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if reason not in _reasons:
            _reasons.add(reason)
            what = f"{kind.margin.name} ({function.__name__})"
            warnings.warn(f"no compiled kernel for {what}, plain PyTorch does its work: {reason}", stacklevel=2)
        return plain
    return made


def _traced(function: Function, kind: Kind, block: Block, inputs: Sequence[Tensor]) -> Function:
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    has_bias = block.bias is not None

    def flat(*tensors: Tensor) -> Any:
        raw, inverse, x_length, column, *rest = tensors
        bias = rest.pop(0) if has_bias else None
        return function(kind, Block(raw, inverse, x_length, column, bias), *rest)

    def words(block: Block, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [*(t for t in block if t is not None), *inputs]

    given = words(block, inputs)
    with torch.no_grad(), angle.short_arccos():
        graph = make_fx(flat, decomposition_table=select_decomp_table(), tracing_mode="fake")(*given)
        # Once more without writing in place, which would stand between the loops as a call of its own.
        graph = make_fx(torch.func.functionalize(graph), tracing_mode="fake")(*given)
        # Shapes are fixed and nothing is differentiated, so that what torch.compile would check on every call, at a
        # tenth of a block's time, is known.
        compiled: Any = compile_fx_inner(graph, [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"])
        compiled(given)  # fails here or never

    def call(kind: Kind, block: Block, *inputs: Tensor) -> Any:
        return compiled(words(block, inputs))

    return call
