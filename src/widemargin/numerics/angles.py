"""Angles: the only arccos, atan2 and clamp of angles in the code base.

Why one file: `acos` after a clamp has an infinite slope at 1, in half precision the clamp itself rounds to 1, and
`acos` in fp32 is several percent wrong at 1e-3 rad. Here small angles are exact (from the chord, not from the cosine),
slopes are finite everywhere, and the sub-gradient at exactly 0 and π is 0.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

PI = math.pi
# Outside this range squares of fp32 numbers overflow or vanish, so `unit_and_norm` rescales the row.
_SAFE_LOW, _SAFE_HIGH = 1e-15, 1e15

F = TypeVar("F", bound=Callable[..., Any])


def _cache_signature(forward: F) -> F:
    """Store the signature of a `forward`, which torch would work out at every call, a tenth of a small head's time."""
    forward.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    return forward


class _UnitAndNorm(torch.autograd.Function):
    """x → (x/‖x‖, ‖x‖); one node of the graph instead of fifteen, nothing kept but its results."""

    generate_vmap_rule = True

    @staticmethod
    @_cache_signature
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        if is_eager_cpu(x):
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            if are_norms_safe(length):  # the usual case, in a third of the operations
                return x / length, length.squeeze(-1)
        # `abs().amax()` and not the ∞-norm, which is ten times slower on a CPU.
        peak = x.abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_ones(*x.shape[:-1], 1)
        extreme = (peak > _SAFE_HIGH) | ((peak < _SAFE_LOW) & (peak > 0))
        unit_peak = torch.where(extreme, peak, torch.ones_like(peak))
        scaled = x / unit_peak
        length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
        # A zero row is divided by 1 and stays zero; a NaN is not 0 and stays visible.
        unit = scaled / torch.where(length == 0, torch.ones_like(length), length)
        return unit, (length * unit_peak).squeeze(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)  # mostly only one of the two results is used

    @staticmethod
    def backward(ctx: Any, grad_unit: Tensor | None, grad_norm: Tensor | None) -> Tensor | None:
        unit, length = ctx.saved_tensors
        total: Tensor | None = None if grad_norm is None else grad_norm.unsqueeze(-1) * unit
        if grad_unit is not None:
            across = _tangent_over_norm(unit, length, grad_unit)
            total = across if total is None else total + across
        return total


class _UnitAndNormForwardMode(_UnitAndNorm):
    """The same with a forward-mode rule, which `torch.compile` does not support."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        _UnitAndNorm.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*output)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, Tensor]:
        unit, length = ctx.saved_tensors
        return _tangent_over_norm(unit, length, tangent), (tangent * unit).sum(-1)


def are_norms_safe(norms: Tensor) -> bool:
    """Whether all lengths lie where squares and inverses are safe in single precision; NaN does not."""
    low, high = torch.aminmax(norms)
    return low.item() > _SAFE_LOW and high.item() < _SAFE_HIGH


def is_eager_cpu(x: Tensor) -> bool:
    """True if Python may branch on tensor values: eager CPU, no torch.func transform."""
    return (
        x.device.type == "cpu"
        and x.numel() > 0
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def is_reverse_mode_only(x: Tensor) -> bool:
    """True if only ordinary backward passes are possible: eager CPU, no torch.func transform, no forward mode."""
    return is_eager_cpu(x) and torch.autograd.forward_ad._current_level < 0


def _tangent_over_norm(unit: Tensor, norm: Tensor, vector: Tensor) -> Tensor:
    """The part of `vector` at right angles to `unit`, divided by `norm`: 0 for a zero vector."""
    norm = norm.unsqueeze(-1)
    if not torch.is_grad_enabled() and is_eager_cpu(norm) and norm.min().item() > 0:
        return torch.addcmul(vector, (vector * unit).sum(-1, keepdim=True), unit, value=-1.0).div_(norm)
    inverse = torch.where(norm == 0, torch.zeros_like(norm), 1.0 / norm)
    tangent: Tensor = (vector - (vector * unit).sum(-1, keepdim=True) * unit) * inverse
    return tangent


def unit_and_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors [..., D] and lengths [...] of `x` [..., D]. A zero vector stays zero, with length 0 and gradient 0.

    Very long and very short ones are as good as any other: they are divided by their largest entry first.

    >>> unit, norm = unit_and_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e30, 4e30]]))
    >>> [[round(v, 6) for v in row] for row in unit.tolist()]
    [[0.6, 0.8], [0.0, 0.0], [0.6, 0.8]]
    """
    function = _UnitAndNorm if torch.compiler.is_compiling() else _UnitAndNormForwardMode
    return function.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _AngleBetween(torch.autograd.Function):
    """Unit vectors u, v → (θ, |u − v|, |u + v|); half the passes over the vectors that a graph of norms would take."""

    generate_vmap_rule = True

    @staticmethod
    @_cache_signature
    def forward(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        apart = torch.linalg.vector_norm(u - v, dim=-1)
        together = torch.linalg.vector_norm(u + v, dim=-1)
        return 2.0 * torch.atan2(apart, together), apart, together

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_theta: Tensor | None, *_: Any) -> Any:
        if grad_theta is None:
            return None, None
        u, v, apart, together = ctx.saved_tensors
        if torch.is_grad_enabled():  # lengths as functions of the vectors, for a second derivative
            apart, together = torch.linalg.vector_norm(u - v, dim=-1), torch.linalg.vector_norm(u + v, dim=-1)
        outwards, along = _chord_slopes(apart, together)
        push = (u - v) * (grad_theta * outwards).unsqueeze(-1)
        pull = (u + v) * (grad_theta * along).unsqueeze(-1)
        return push - pull, -push - pull


class _AngleBetweenForwardMode(_AngleBetween):
    """The same with a forward-mode rule, which `torch.compile` does not support."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        _AngleBetween.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs, *output[1:])

    @staticmethod
    def jvp(ctx: Any, tangent_u: Tensor | None, tangent_v: Tensor | None) -> tuple[Tensor, None, None]:
        u, v, apart, together = ctx.saved_tensors
        tangent_u, tangent_v = (torch.zeros_like(u) if change is None else change for change in (tangent_u, tangent_v))
        outwards, along = _chord_slopes(apart, together)
        change = outwards * ((u - v) * (tangent_u - tangent_v)).sum(-1) - along * (
            (u + v) * (tangent_u + tangent_v)
        ).sum(-1)
        return change, None, None


def _chord_slopes(apart: Tensor, together: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes of θ = 2 atan2(a, t) along u − v and u + v: (2/(a² + t²))·(t/a, a/t), and 0 where a length is 0."""
    one = torch.ones_like(apart)
    squares = apart * apart + together * together
    share = 2.0 / torch.where(squares == 0, one, squares)
    outwards = torch.where(apart == 0, 0.0, share * together / torch.where(apart == 0, one, apart))
    along = torch.where(together == 0, 0.0, share * apart / torch.where(together == 0, one, together))
    return outwards, along


def angle_between(u: Tensor, v: Tensor) -> Tensor:
    """Angle [...] between unit vectors [..., D]: `2 atan2(|u − v|, |u + v|)`, exact for small angles.

    >>> u = torch.tensor([1.0, 0.0]); v = torch.tensor([1.0, 1e-4])
    >>> round(angle_between(u, unit_and_norm(v)[0]).item() * 1e4, 4)
    1.0
    """
    function = _AngleBetween if torch.compiler.is_compiling() else _AngleBetweenForwardMode
    return function.apply(u, v)[0]  # type: ignore[no-any-return, no-untyped-call]


MAX_ACCURATE_COSINE = 0.9  # cosines up to here have not lost their angle's digits, and arccos has a gentle slope
_CLAMP_COSINE = 0.95
_polynomial_arccos_threads: set[int] = set()  # threads that trace kernels; others keep torch's arccos, to the last bit
# Abramowitz and Stegun, 4.4.46: arccos x = √(1 − x) Σ a_k x^k on [0, 1], at most 2e-8 off.
_ARCCOS_COEFFICIENTS: tuple[float, ...] = (1.570796305, -0.2145988016, 0.0889789874, -0.0501743046)
_ARCCOS_COEFFICIENTS += (0.030891881, -0.0170881256, 0.0066700901, -0.0012624911)


@contextmanager
def use_polynomial_arccos() -> Iterator[None]:
    """Compute fp32 arccos in this thread by a polynomial, a few multiplications once compiled; for traced kernels."""
    thread = threading.get_ident()
    _polynomial_arccos_threads.add(thread)
    try:
        yield
    finally:
        _polynomial_arccos_threads.discard(thread)


def _is_polynomial_arccos_on() -> bool:
    """Whether this thread traces a kernel; the set is looked at first because torch.compile knows no threads."""
    return bool(_polynomial_arccos_threads) and threading.get_ident() in _polynomial_arccos_threads


def _polynomial_arccos(cos: Tensor) -> Tensor:
    abs_cos = cos.abs()
    total = torch.full_like(abs_cos, _ARCCOS_COEFFICIENTS[-1])
    for factor in reversed(_ARCCOS_COEFFICIENTS[:-1]):
        total = total * abs_cos + factor
    theta = (1.0 - abs_cos).clamp_min(0.0).sqrt() * total
    return torch.where(cos < 0, PI - theta, theta)


class _Arccos(torch.autograd.Function):
    """arccos whose slope is 0 and not infinite at ±1; two N×C passes forward, one matrix kept."""

    generate_vmap_rule = True

    @staticmethod
    @_cache_signature
    def forward(cos: Tensor) -> Tensor:
        if _is_polynomial_arccos_on() and cos.dtype == torch.float32:
            return _polynomial_arccos(cos)
        return torch.acos(cos.clamp(-1.0, 1.0))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * _Arccos.slope(*ctx.saved_tensors)

    @staticmethod
    def slope(cos: Tensor) -> Tensor:
        squared_sine = (1.0 - cos) * (1.0 + cos)  # and not 1 − cos², which has lost its digits near ±1
        if not (torch.is_grad_enabled() or torch.compiler.is_compiling()):  # fewer passes where nobody goes through
            return torch.rsqrt(squared_sine).neg_().masked_fill_(squared_sine <= 0, 0.0)
        inside = squared_sine > 0
        return torch.where(inside, -torch.rsqrt(torch.where(inside, squared_sine, 1.0)), 0.0)


class _ArccosForwardMode(_Arccos):
    """The same with a forward-mode rule, which `torch.compile` does not support."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        _Arccos.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * _Arccos.slope(*ctx.saved_tensors)


def safe_arccos(cos: Tensor) -> Tensor:
    """arccos with a finite slope everywhere: at cos ≤ −1 and cos ≥ 1 the slope is 0.

    >>> c = torch.tensor([1.0, 0.0, -1.0], requires_grad=True)
    >>> safe_arccos(c).sum().backward(); c.grad.tolist()
    [0.0, -1.0, 0.0]
    """
    if not _is_polynomial_arccos_on() and is_reverse_mode_only(cos) and is_within(cos, MAX_ACCURATE_COSINE):
        return clamped_arccos(cos, skip_clamp=True)
    function = _Arccos if torch.compiler.is_compiling() else _ArccosForwardMode
    theta: Tensor = function.apply(cos)  # type: ignore[no-untyped-call]
    return theta


def is_within(cos: Tensor, bound: float) -> bool:
    """Whether all values lie in ±bound."""
    low, high = torch.aminmax(cos.detach())
    return low.item() >= -bound and high.item() <= bound


def clamped_arccos(cos: Tensor, skip_clamp: bool = False) -> Tensor:
    """arccos, flat beyond ±`_CLAMP_COSINE`; `skip_clamp` where all cosines are known to lie within."""
    return torch.acos(cos if skip_clamp else cos.clamp(-_CLAMP_COSINE, _CLAMP_COSINE))


def falling_cosine(t: Tensor) -> Tensor:
    """`g(t) = (−1)^k cos t − 2k` with `k = ⌊t/π⌋`: the cosine that goes on falling past π.

    `g(m θ)` is the ψ of L-Softmax and A-Softmax.

    >>> [round(v, 4) for v in falling_cosine(torch.tensor([0.0, PI, 1.5 * PI])).tolist()]
    [1.0, -1.0, -2.0]
    """
    k = torch.floor(t.detach() / PI)
    sign = 1.0 - 2.0 * torch.remainder(k, 2.0)
    return sign * torch.cos(t) - 2.0 * k
