"""Triton source of a loss's logit and of its derivatives, generated from the one definition in `base.compute_logits`.

The definition is traced together with autograd's derivatives (`traced_logit.py`), and every operation of the trace
becomes a line of Triton. `triton_kernels.py` calls the generated functions; their text is kept in `linecache`, where
`triton.jit` reads it, and never written to disk.

    logit(value, bias, numbers, samples, rows, n)                  z
    logit_and_slope(value, bias, numbers, samples, rows, n)        z, ∂z/∂value
    number_slope(value, bias, numbers, samples, rows, n)           ∂z/∂number of the learnt number, if there is one

`value` [rows, classes] is the cosine (or product) of a tile and `bias` [1, classes]; the functions load the numbers of
the margin from the vector `numbers`, and the per-sample numbers of the tile's rows from the matrix `samples` [K, n].
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...io.errors import InputError
from ...losses.margin import Margin
from .kernels import KernelSpec
from .traced_logit import Printer, TracedFunction, UnknownOperationError, trace_logit

_ARGUMENTS = "value, bias, numbers, samples, rows, n"


def why_refused(margin: Margin) -> str | None:
    """Return what of a loss the Triton kernels do not compute, None if they compute it."""
    if margin.subcenters is not None:
        return "several weights per class"
    if margin.one_vs_all:
        return "a sum of losses over the other classes"
    if margin.has_weight_penalty:
        return "a penalty on the class weights"
    if not margin.is_linear and margin.uses_any_norm:
        return "norms that multiply a curve of the cosine"
    return None


def check_margin(margin: Margin) -> None:
    """Raise an InputError if the Triton kernels do not compute this loss."""
    reason = why_refused(margin)
    if reason is not None:
        raise InputError(f'backend="triton" does not compute {margin.name}, which has {reason}: use backend="stream"')


@dataclass(frozen=True)
class LogitSource:
    """Generated text of the functions of a loss, and the numbers that they read."""

    text: str
    number_names: tuple[str, ...]
    """Numbers of the margin in the order of the vector `numbers`."""
    sample_names: tuple[str, ...]
    """Per-sample numbers in the order of the rows of `samples`."""
    learnt_name: str | None
    """The number of `number_slope`."""


@dataclass(frozen=True)
class LogitFunctions:
    """The generated functions as Triton functions."""

    source: LogitSource
    logit: Any
    logit_and_slope: Any
    number_slope: Any


def generate_source(spec: KernelSpec, has_bias: bool) -> LogitSource:
    """Trace the logit of a margin and its derivatives, and write them as Triton functions.

    >>> from ...losses.margins.mv_softmax import MVSoftmax
    >>> spec = KernelSpec.from_margin(MVSoftmax(s=32.0, t=0.25), False, {}, ("threshold",))
    >>> source = generate_source(spec, has_bias=False)
    >>> source.sample_names, "v0 = value > of_threshold" in source.text
    (('threshold',), True)
    """
    check_margin(spec.margin)
    learnt = [name for name, needed in zip(spec.value_names, spec.value_requires_grad, strict=True) if needed]
    function = trace_logit(spec, has_bias, spec.value_names, learnt)
    used = function.used_inputs
    learnt = [name for name in learnt if name in used]
    if len(learnt) > 1:
        raise InputError(f'backend="triton" learns one number of a loss, not {", ".join(learnt)}: use backend="stream"')
    samples = tuple(name for name in spec.sample_names if name in used)
    numbers = tuple(name for name in spec.value_names if name in used)
    loads = {name: f"tl.load(numbers + {k})" for k, name in enumerate(numbers)}
    loads |= {
        name: f"tl.load(samples + {k} * n + rows, mask=rows < n, other=0.0)[:, None]" for k, name in enumerate(samples)
    }
    results = {"logit": ["logit"], "logit_and_slope": ["logit", "d_value"]}
    if learnt:
        results["number_slope"] = [f"d_{learnt[0]}"]
    try:
        parts = [_write_function(name, function, wanted, loads) for name, wanted in results.items()]
    except UnknownOperationError as unknown:
        raise InputError(
            f'backend="triton" does not know the operation {unknown} in the curve of {spec.margin.name}: '
            'use backend="stream"'
        ) from None
    return LogitSource("\n\n".join(parts), numbers, samples, learnt[0] if learnt else None)


def _write_function(name: str, function: TracedFunction, results: Sequence[str], loads: dict[str, str]) -> str:
    """Return the text of a function that returns some results."""
    operands = {"value": "value", "bias": "bias"} | {given: f"of_{given}" for given in loads}
    lines, values = _PRINTER.print(function, results, operands)
    needed = [given for given in loads if any(f"of_{given}" in line for line in lines) or f"of_{given}" in values]
    # A constant derivative is a number, but its caller needs a tile.
    shown = [value if isinstance(value, str) else f"value * 0.0 + {value!r}" for value in values]
    body = [f"of_{given} = {loads[given]}" for given in needed] + lines + [f"return {', '.join(shown)}"]
    return f"@triton.jit\ndef {name}({_ARGUMENTS}):\n" + "".join(f"    {line}\n" for line in body)


def _power(x: str, exponent: Any) -> str:
    if isinstance(exponent, int) and 1 <= exponent <= 8:
        return " * ".join([x] * exponent)
    return f"tl.exp({exponent!r} * tl.log({x}))"


def _clamp(x: str, low: Any = None, high: Any = None) -> str:
    x = x if low is None else f"tl.maximum({x}, {low})"
    return x if high is None else f"tl.minimum({x}, {high})"


# Operations of torch by name, without the overload, as Triton expressions of their arguments.
_EXPRESSIONS: dict[str, Callable[..., str]] = {
    "mul": lambda a, b: f"{a} * {b}",
    "add": lambda a, b, alpha=1: f"{a} + {b}" if alpha == 1 else f"{a} + {alpha} * {b}",
    "sub": lambda a, b, alpha=1: f"{a} - {b}" if alpha == 1 else f"{a} - {alpha} * {b}",
    "rsub": lambda a, b, alpha=1: f"{b} - {a}" if alpha == 1 else f"{b} - {alpha} * {a}",
    "div": lambda a, b: f"{a} / {b}",
    "neg": lambda a: f"-{a}",
    "reciprocal": lambda a: f"1.0 / {a}",
    "abs": lambda a: f"tl.abs({a})",
    "sqrt": lambda a: f"tl.sqrt({a})",
    "rsqrt": lambda a: f"tl.rsqrt({a})",
    "exp": lambda a: f"tl.exp({a})",
    "log": lambda a: f"tl.log({a})",
    "cos": lambda a: f"tl.cos({a})",
    "sin": lambda a: f"tl.sin({a})",
    "pow": _power,
    "lt": lambda a, b: f"{a} < {b}",
    "le": lambda a, b: f"{a} <= {b}",
    "gt": lambda a, b: f"{a} > {b}",
    "ge": lambda a, b: f"{a} >= {b}",
    "where": lambda condition, a, b: f"tl.where({condition}, {a}, {b})",
    "masked_fill": lambda a, condition, b: f"tl.where({condition}, {b}, {a})",
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda a, high: _clamp(a, None, high),
    "maximum": lambda a, b: f"tl.maximum({a}, {b})",
    "minimum": lambda a, b: f"tl.minimum({a}, {b})",
}
_PRINTER = Printer(_EXPRESSIONS, "{name} = {expression}")


_loaded: dict[tuple[KernelSpec, bool], LogitFunctions] = {}


def load_functions(spec: KernelSpec, has_bias: bool) -> LogitFunctions:
    """Return the generated functions of a margin, compiled by Triton when they are used. Needs Triton."""
    key = (spec, has_bias)
    if key not in _loaded:
        import triton
        import triton.language as tl

        source = generate_source(spec, has_bias)
        digest = hashlib.sha256(source.text.encode()).hexdigest()[:16]
        file = f"<widemargin triton {digest}>"
        namespace: dict[str, Any] = {"__name__": f"widemargin_triton_{digest}", "triton": triton, "tl": tl}
        linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)
        exec(compile(source.text, file, "exec"), namespace)
        slope = namespace.get("number_slope", namespace["logit"])
        _loaded[key] = LogitFunctions(source, namespace["logit"], namespace["logit_and_slope"], slope)
    return _loaded[key]
