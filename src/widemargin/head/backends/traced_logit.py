"""The logit of a loss and its derivatives as a graph of elementwise operations, traced from the one definition.

`trace_logit` runs `base.compute_logits` of a margin, its `other_loss` and the folding of its sub-centres under
`torch.fx` together with autograd's derivatives. A `Printer` writes results of the graph as statements of another
language, one per operation: `triton_source.py` for Triton, `native_source.py` for C++. So a generated kernel has no
formula of its own, and a loss that defines `phi` in terms of the operations that a language knows needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ...losses.margin import Subcenters
from ...numerics import angles, torch_compat
from .base import DotProducts, compute_logits, compute_radius
from .kernels import KernelSpec

Operand = float | str
"""A number, or the name of a variable."""


class UnknownOperationError(Exception):
    """An operation of torch that a language does not have."""


@dataclass(frozen=True)
class TracedFunction:
    """Results of elementwise operations on inputs, by name."""

    graph: fx.Graph
    inputs: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def used_inputs(self) -> set[str]:
        """Inputs that a result depends on."""
        nodes = zip(self.placeholders, self.inputs, strict=True)
        return {name for node, name in nodes if node.users}

    @property
    def placeholders(self) -> list[fx.Node]:
        """The nodes of the inputs, in order."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    def nodes(self, results: Sequence[str]) -> list[Any]:
        """Return the nodes of some results; a result may be a number."""
        (outputs,) = (node.args[0] for node in self.graph.nodes if node.op == "output")
        by_name = dict(zip(self.results, outputs, strict=True))
        return [by_name[name] for name in results]


def trace_logit(
    spec: KernelSpec,
    has_bias: bool,
    number_names: Sequence[str],
    learnt_names: Sequence[str],
    dtype: torch.dtype = torch.float32,
) -> TracedFunction:
    """Trace the logit of a non-target class and the derivatives of its term in the loss.

    The inputs are `value` (the cosine or product), `bias` if there is one, `x_norm` and `w_norm` if the margin
    multiplies them in after φ, and the per-sample and other numbers of the margin by their names. The results are
    `logit`, `term` (the logit, or `other_loss` of it), and `d_NAME`, the derivative of `term` by `value`, the norms,
    `bias` and every learnt number. In fp32 an arccos is the short polynomial.
    """
    norms = ("x_norm", "w_norm") if spec.has_radius else ()
    fields = (*spec.sample_names, *number_names)
    leaves = ("value", *norms, *(("bias",) if has_bias else ()), *learnt_names)
    names = ("value", *norms, *(("bias",) if has_bias else ()), *fields)

    def logit_and_slopes(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            given = dict(zip(names, inputs, strict=True))
            given |= {name: given[name].detach().requires_grad_() for name in leaves}
            margin = spec.margin
            if fields:
                margin = margin.with_values(**{name: given[name] for name in fields})
            radius = compute_radius(margin, given["x_norm"], given["w_norm"]) if norms else None
            z = compute_logits(margin, DotProducts(given["value"], radius), given.get("bias"))
            term = margin.other_loss(z) if margin.one_vs_all else z
            wanted = [given[name] for name in leaves]
            slopes = torch.autograd.grad(term, wanted, torch.ones_like(term), allow_unused=True)
        return z.detach(), term.detach(), *(torch.zeros_like(z) if one is None else one for one in slopes)

    results = ("logit", "term", *(f"d_{name}" for name in leaves))
    return _trace(logit_and_slopes, names, results, dtype)


def trace_fold(subcenters: Subcenters, dtype: torch.dtype = torch.float32) -> TracedFunction:
    """Trace the folding of the cosines `c0`, `c1`, … of sub-centres: `value`, and its derivatives `d_c0`, …"""
    names = tuple(f"c{k}" for k in range(subcenters.count))

    def fold_and_slopes(*cosines: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = [cos.detach().requires_grad_() for cos in cosines]
            value = subcenters.fold(leaves)
            slopes = torch.autograd.grad(value, leaves, torch.ones_like(value), allow_unused=True)
        return value.detach(), *(torch.zeros_like(value) if one is None else one for one in slopes)

    return _trace(fold_and_slopes, names, ("value", *(f"d_{name}" for name in names)), dtype)


def _trace(
    function: Callable[..., tuple[Tensor, ...]], names: Sequence[str], results: Sequence[str], dtype: torch.dtype
) -> TracedFunction:
    """Trace a function of inputs of one shape, so that every operation is elementwise and no derivative is summed."""
    make_fx = torch_compat.find_private("torch.fx.experimental.proxy_tensor", "make_fx")
    if make_fx is None:
        raise ImportError(f"torch {torch.__version__} has no torch.fx.experimental.proxy_tensor.make_fx")
    examples = [torch.full((2, 3), 0.25, dtype=dtype) for _ in names]
    with angles.use_polynomial_arccos(), torch.no_grad():
        traced = make_fx(function)(*examples)
        traced = make_fx(torch.func.functionalize(traced))(*examples)  # without writes in place
    traced.graph.eliminate_dead_code()
    return TracedFunction(traced.graph, tuple(names), tuple(results))


_SAME = ("detach", "clone", "alias", "lift_fresh_copy", "lift_fresh", "_to_copy")
_CONSTANTS = {"ones_like": 1.0, "zeros_like": 0.0}


@dataclass(frozen=True)
class Printer:
    """Writes results of a traced function as statements of a language."""

    expressions: Mapping[str, Callable[..., str]]
    """Operations of torch by name, without the overload, as expressions of their operands."""
    statement: str
    """One operation, such as `{name} = {expression}`."""
    number: Callable[[float], str] = repr
    """A constant."""

    def print(
        self, function: TracedFunction, results: Sequence[str], operands: Mapping[str, str]
    ) -> tuple[list[str], list[Operand]]:
        """Return statements that compute some results, and these results; inputs are the `operands` by name."""
        wanted = function.nodes(results)
        needed = _ancestors([node for node in wanted if isinstance(node, fx.Node)])
        names = dict(zip(function.placeholders, function.inputs, strict=True))
        found: dict[fx.Node, Operand] = {}
        lines: list[str] = []
        for node in function.graph.nodes:
            if node not in needed or node.op == "output":
                continue
            if node.op == "placeholder":
                found[node] = operands[names[node]]
                continue
            value = self._evaluate(node, found)
            if isinstance(value, str) and value not in found.values():
                name = f"v{len(lines)}"
                lines.append(self.statement.format(name=name, expression=value))
                value = name
            found[node] = value
        return lines, [found[node] if isinstance(node, fx.Node) else float(node) for node in wanted]

    def write(self, operand: Any) -> Any:
        """Write an operand; None stays None."""
        return operand if operand is None or isinstance(operand, str) else self.number(float(operand))

    def _evaluate(self, node: fx.Node, found: Mapping[fx.Node, Operand]) -> Operand:
        """Return a number, the name of a variable, or a new expression."""
        if node.op == "get_attr":
            return float(getattr(node.graph.owning_module, str(node.target)))
        operation = _operation_name(node)
        operands: list[Any] = [found[a] if isinstance(a, fx.Node) else a for a in node.args]
        if operation in _SAME or (operation == "getitem" and operands[1] == 0):
            return operands[0]  # type: ignore[no-any-return]
        if operation == "getitem":
            return 0.0  # the buffer of a function, which its derivative does not read
        if operation in _CONSTANTS:
            return _CONSTANTS[operation]
        if operation in ("full", "full_like", "scalar_tensor"):
            return float(operands[-1])
        if operation not in self.expressions:
            raise UnknownOperationError(operation)
        numbers = [a for a in operands if isinstance(a, int | float)]
        if len(numbers) == len(operands):
            return float(getattr(torch, operation)(*(torch.tensor(float(a), dtype=torch.float64) for a in operands)))
        if operation == "mul" and 1.0 in numbers:
            return next(a for a in operands if a != 1.0)  # type: ignore[no-any-return]
        keywords = {key: value for key, value in node.kwargs.items() if key == "alpha"}
        # An exponent stays a number: small powers are products.
        written = [self.write(a) if not (operation == "pow" and isinstance(a, int | float)) else a for a in operands]
        return self.expressions[operation](*written, **keywords)


def _operation_name(node: fx.Node) -> str:
    if callable(node.target) and getattr(node.target, "__name__", "") == "getitem":
        return "getitem"
    return str(node.target).removeprefix("aten.").split(".", maxsplit=1)[0]


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    known, waiting = set(nodes), list(nodes)
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in known:
                known.add(source)
                waiting.append(source)
    return known
