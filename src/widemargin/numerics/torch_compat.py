"""Private interfaces of torch, and what is done where a version of torch lacks one of them.

Every other module uses torch's public names only (a test looks for it). A private name is looked up when it is needed,
and its absence costs time or memory, never a wrong number: a loop instead of one call, a fresh allocation, the general
formula instead of the short one, a slower compiled function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor


def find_private(module: str, name: str) -> Any:
    """An attribute of a module of torch, None where this version of torch has no such module or attribute."""
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None


# Looked up once: they are asked for in every step of a small head.
_peek_interpreter_stack = find_private("torch._C._functorch", "peek_interpreter_stack")
_storage_use_count = find_private("torch._C", "_storage_Use_Count")
_foreach_mul_ = find_private("torch", "_foreach_mul_")


def is_inside_transform() -> bool:
    """Whether a `torch.func` transform (vmap, grad, jvp) is running; True where that cannot be found out."""
    return _peek_interpreter_stack is None or _peek_interpreter_stack() is not None


def is_forward_mode_on() -> bool:
    """Whether forward-mode differentiation may be on; True where that cannot be found out."""
    level = getattr(torch.autograd.forward_ad, "_current_level", None)
    return level is None or level >= 0


def count_storage_users(storage: torch.UntypedStorage) -> int | None:
    """How many tensors and storage objects share this memory, None where that cannot be found out."""
    return None if _storage_use_count is None else int(_storage_use_count(storage._cdata))


def multiply_all_(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply every tensor by a number, in place.

    >>> some = [torch.ones(2), torch.ones(1)]
    >>> multiply_all_(some, 3.0); some
    [tensor([3., 3.]), tensor([3.])]
    """
    if _foreach_mul_ is not None and tensors:
        _foreach_mul_(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


def compile_for_all_sizes(
    function: Callable[..., tuple[Tensor, ...]], examples: Sequence[Tensor], fixed_sizes: Sequence[set[int]]
) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """Trace `function` on tensors like `examples` and compile it to loops that serve tensors of any size.

    Only the dimensions that `fixed_sizes` names for a tensor keep the size of its example. The others are unknowns,
    each of its own unless `function` makes two equal (by viewing a [b] as [k, r], say); 1 is a size like any other.
    Strides are unknowns where those of the example do not follow from its sizes. Nothing is differentiated later and
    nothing checked at a call but the sizes; what `torch.compile` checks would be a tenth of a block's time.

    Returns a function of the list of tensors, which it may empty. Without `compile_fx_inner` the traced graph goes to
    `torch.compile`; without what tracing needs, an ImportError says so.
    """
    make_fx = _require("torch.fx.experimental.proxy_tensor", "make_fx")
    with torch.no_grad():
        inputs = _as_symbolic(examples, fixed_sizes)
        decompositions = _require("torch._inductor.decomposition", "select_decomp_table")()
        graph = make_fx(function, decomposition_table=decompositions, tracing_mode="symbolic")(*inputs)
        # Once more without writing in place, which would stand between the loops as a call of its own.
        graph = make_fx(torch.func.functionalize(graph), tracing_mode="symbolic")(*inputs)
        compile_inner = find_private("torch._inductor.compile_fx", "compile_fx_inner")
        if compile_inner is not None:
            placeholders = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
            compiled: Callable[[list[Tensor]], Sequence[Tensor]] = compile_inner(graph, placeholders)
            return compiled
    compiled_graph: Callable[..., Sequence[Tensor]] = torch.compile(graph, dynamic=True)

    def call(tensors: list[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            return compiled_graph(*tensors)

    return call


def _require(module: str, name: str) -> Any:
    found = find_private(module, name)
    if found is None:
        raise ImportError(f"torch {torch.__version__} has no {module}.{name}")
    return found


def _as_symbolic(examples: Sequence[Tensor], fixed_sizes: Sequence[set[int]]) -> list[Any]:
    """Tensors without values, whose sizes are unknowns."""
    shapes = "torch.fx.experimental.symbolic_shapes"
    context, dim = _require(shapes, "StatelessSymbolicContext"), _require(shapes, "DimDynamic")
    # Equal examples make no equal unknowns, and 1 is a size like any other.
    env = _require(shapes, "ShapeEnv")(duck_shape=False, specialize_zero_one=False)
    mode = _require("torch._subclasses.fake_tensor", "FakeTensorMode")(shape_env=env)
    found = []
    for example, fixed in zip(examples, fixed_sizes, strict=True):
        kinds = [dim.STATIC if i in fixed else dim.DYNAMIC for i in range(example.ndim)]
        found.append(mode.from_tensor(example, symbolic_context=context(dynamic_sizes=kinds), static_shapes=False))
    return found
