"""C++ source of a loss's logit and of its derivatives, generated from the one definition.

`traced_logit.py` traces the definition; here every operation of the trace becomes a statement of C++. The generated
text is a few constants and inline functions of one entry (`z`, its term in the loss, the derivatives), followed by the
loops of `native_kernels.cpp`, which are the same for every loss. A scale is an argument and not part of the text, so
losses that differ in their scale or only in their target share one library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .kernels import KernelSpec
from .traced_logit import Printer, TracedFunction, trace_fold, trace_logit

_MATH_PATH = Path(__file__).with_name("native_math.cpp")
_KERNELS_PATH = Path(__file__).with_name("native_kernels.cpp")
_DENSE_PATH = Path(__file__).with_name("native_dense.cpp")
REAL_NAMES = {torch.float32: "float", torch.float64: "double"}


@dataclass(frozen=True)
class NativeSource:
    """Generated C++ of a loss, and the numbers that it reads."""

    text: str
    number_names: tuple[str, ...]
    """Numbers of the margin in the order in which they are passed."""
    sample_names: tuple[str, ...]
    """Per-sample numbers in the order in which they are passed."""
    learnt_names: tuple[str, ...]
    """Numbers whose derivatives are computed, in order."""


def generate_source(spec: KernelSpec, has_bias: bool, dtype: torch.dtype) -> NativeSource:
    """Generate the source of all kernels of a loss.

    >>> from ...losses.margins.cosface import CosFace
    >>> source = generate_source(KernelSpec.from_margin(CosFace(), False, {}), False, torch.float32)
    >>> source.number_names, "const auto v0 = of_s * value;" in source.text
    (('s',), True)
    """
    candidates = (*(("s",) if "s" not in spec.value_names else ()), *spec.value_names)
    learnt = [name for name, needed in zip(spec.value_names, spec.value_requires_grad, strict=True) if needed]
    function = trace_logit(spec, has_bias, candidates, learnt, dtype)
    used = function.used_inputs
    numbers = tuple(name for name in candidates if name in used)
    samples = tuple(name for name in spec.sample_names if name in used)
    learnt = [name for name in learnt if name in used]
    margin = spec.margin
    constants = {
        "SUBCENTERS": spec.rows_per_class,
        "NUMBERS": len(numbers),
        "SAMPLE_NUMBERS": len(samples),
        "LEARNT": len(learnt),
        "DIVIDES_BY_W_NORM": spec.divides_by_w_norm,
        "HAS_RADIUS": spec.has_radius,
        "HAS_BIAS": has_bias,
        "ONE_VS_ALL": margin.one_vs_all,
    }
    parts = [
        f"using real = {REAL_NAMES[dtype]};",
        *(f"constexpr long {name} = {int(value)};" for name, value in constants.items()),
        _MATH_PATH.read_text(encoding="utf-8"),
        *_write_logit(function, numbers, samples, learnt, spec.has_radius, has_bias),
        *(_NO_FOLD if spec.subcenters is None else _write_fold(trace_fold(spec.subcenters, dtype))),
        _KERNELS_PATH.read_text(encoding="utf-8"),
        _DENSE_PATH.read_text(encoding="utf-8"),
    ]
    return NativeSource("\n".join(parts), numbers, samples, tuple(learnt))


_INPUTS = "vec value, vec bias, vec x_norm, vec w_norm, const Numbers& numbers, const vec (*samples)[VECTORS], long v"

_NO_FOLD = [
    "INLINE vec fold(const vec* cosines) { return cosines[0]; }",
    "INLINE void fold_slopes(const vec*, vec* slopes) { slopes[0] = splat(real(1)); }",
]


def _write_logit(
    function: TracedFunction,
    numbers: Sequence[str],
    samples: Sequence[str],
    learnt: Sequence[str],
    has_radius: bool,
    has_bias: bool,
) -> list[str]:
    """Return the text of `logit_of`, `term_of` and `slopes_of`, functions of one entry."""
    operands = {name: name for name in ("value", "bias", "x_norm", "w_norm")}
    loads = {name: f"numbers.of[{k}]" for k, name in enumerate(numbers)}
    loads |= {name: f"samples[{k}][v]" for k, name in enumerate(samples)}
    operands |= {name: f"of_{name}" for name in loads}
    heads = [f"    const vec of_{name} = {place};" for name, place in loads.items()]

    def write(declaration: str, results: Sequence[str], end: Callable[[list[str]], list[str]]) -> str:
        lines, values = _PRINTER.print(function, results, operands)
        body = [*heads, *(f"    {line}" for line in lines), *(f"    {line}" for line in end(_expressions(values)))]
        return "\n".join((f"INLINE vec {declaration} {{", *body, "}"))

    results = ["logit", "d_value", *(("d_x_norm", "d_w_norm") if has_radius else ())]
    results += [*(("d_bias",) if has_bias else ()), *(f"d_{name}" for name in learnt)]
    places = ["value", *(("x_norm", "w_norm") if has_radius else ()), *(("bias",) if has_bias else ())]
    places += [f"learnt[{k}]" for k in range(len(learnt))]

    def return_slopes(values: list[str]) -> list[str]:
        stores = [f"slopes.{place} = {value};" for place, value in zip(places, values[1:], strict=True)]
        return [*stores, f"return {values[0]};"]

    return [
        "struct Slopes { vec value, x_norm, w_norm, bias, learnt[LEARNT + 1]; };",
        "struct Numbers { vec of[NUMBERS + 1]; };",
        write(f"logit_of({_INPUTS})", ["logit"], lambda values: [f"return {values[0]};"]),
        write(f"term_of({_INPUTS})", ["term"], lambda values: [f"return {values[0]};"]),
        write(f"slopes_of({_INPUTS}, Slopes& slopes)", results, return_slopes),
    ]


def _write_fold(function: TracedFunction) -> list[str]:
    """Return the text of `fold` and `fold_slopes`, functions of the cosines of the sub-centres of a class."""
    operands = {name: f"cosines[{name[1:]}]" for name in function.inputs}
    lines, (value,) = _PRINTER.print(function, ["value"], operands)
    slope_lines, slopes = _PRINTER.print(function, [f"d_{name}" for name in function.inputs], operands)
    stores = [f"slopes[{k}] = {one};" for k, one in enumerate(_expressions(slopes))]
    return [
        "INLINE vec fold(const vec* cosines) {",
        *(f"    {line}" for line in (*lines, f"return {_expressions([value])[0]};")),
        "}",
        "INLINE void fold_slopes(const vec* cosines, vec* slopes) {",
        *(f"    {line}" for line in (*slope_lines, *stores)),
        "}",
    ]


def _expressions(values: Sequence[Any]) -> list[str]:
    return [f"splat({_PRINTER.write(value)})" for value in values]


def _constant(number: float) -> str:
    if number in (float("inf"), float("-inf")):
        return "real(INFINITY)" if number > 0 else "real(-INFINITY)"
    return f"real({number!r})"


def _power(x: str, exponent: Any) -> str:
    if isinstance(exponent, int) and 1 <= exponent <= 8:
        return " * ".join([x] * exponent)
    return f"pow_of({x}, {exponent if isinstance(exponent, str) else _constant(float(exponent))})"


def _clamp(x: str, low: str | None = None, high: str | None = None) -> str:
    x = x if low is None else f"larger({x}, {low})"
    return x if high is None else f"smaller({x}, {high})"


def _product(factor: Any, x: str) -> str:
    return x if factor == 1 else f"{_constant(float(factor))} * {x}"


# Operations of torch by name, without the overload, as C++ expressions of their operands, which are names or constants.
_EXPRESSIONS: dict[str, Callable[..., str]] = {
    "mul": lambda a, b: f"{a} * {b}",
    "add": lambda a, b, alpha=1: f"{a} + {_product(alpha, b)}",
    "sub": lambda a, b, alpha=1: f"{a} - {_product(alpha, b)}",
    "rsub": lambda a, b, alpha=1: f"{b} - {_product(alpha, a)}",
    "div": lambda a, b: f"{a} / {b}",
    "neg": lambda a: f"-{a}",
    "reciprocal": lambda a: f"real(1) / {a}",
    "abs": lambda a: f"absolute({a})",
    "sqrt": lambda a: f"sqrt_of({a})",
    "rsqrt": lambda a: f"rsqrt_of({a})",
    "exp": lambda a: f"exp_of({a})",
    "log": lambda a: f"log_of({a})",
    "cos": lambda a: f"cos_of({a})",
    "sin": lambda a: f"sin_of({a})",
    "acos": lambda a: f"acos_of({a})",
    "log_sigmoid_forward": lambda a: f"log_sigmoid({a})",
    "log_sigmoid_backward": lambda gradient, a, _: f"{gradient} * sigmoid(-{a})",
    "pow": _power,
    "lt": lambda a, b: f"{a} < {b}",
    "le": lambda a, b: f"{a} <= {b}",
    "gt": lambda a, b: f"{a} > {b}",
    "ge": lambda a, b: f"{a} >= {b}",
    "logical_and": lambda a, b: f"{a} & {b}",
    "where": lambda condition, a, b: f"choose({condition}, {a}, {b})",
    "masked_fill": lambda a, condition, b: f"choose({condition}, {b}, {a})",
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda a, high: _clamp(a, None, high),
    "maximum": lambda a, b: f"larger({a}, {b})",
    "minimum": lambda a, b: f"smaller({a}, {b})",
}
_PRINTER = Printer(_EXPRESSIONS, "const auto {name} = {expression};", _constant)


@cache
def get_source(spec: KernelSpec, has_bias: bool, dtype: torch.dtype) -> NativeSource:
    """Return the source of a loss, generated once."""
    return generate_source(spec, has_bias, dtype)
