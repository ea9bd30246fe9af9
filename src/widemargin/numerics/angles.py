"""Angles: the only arccos, atan2 and clamp of angles in the code base.

Why one file: `acos` after a clamp has an infinite derivative at 1, in half precision the clamp itself rounds to 1, and
`acos` in fp32 has an error of several percent at 1e-3 rad. Here small angles are exact (computed from the chord, not
the cosine), derivatives are finite everywhere, and the sub-gradient at exactly 0 and π is 0.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from . import host_reads, torch_compat
from .custom_autograd import custom_autograd

PI = math.pi
# Outside this range squares of fp32 numbers overflow or underflow, so `unit_and_norm` rescales the row.
_SAFE_LOW, _SAFE_HIGH = 1e-15, 1e15


def are_norms_safe(norms: Tensor) -> bool:
    """True if squares and inverses of all lengths are safe in single precision; False for NaN."""
    low, high = torch.aminmax(norms)
    return low.item() > _SAFE_LOW and high.item() < _SAFE_HIGH


def is_eager_cpu(x: Tensor, shortcut: str | None = None) -> bool:
    """True if Python may branch on tensor values: eager CPU, no torch.func transform.

    `shortcut` is the name in `host_reads.SHORTCUTS` of what is done then.
    """
    return (
        host_reads.is_read_free(x, shortcut)
        and x.numel() > 0
        and not torch.compiler.is_compiling()
        and not torch_compat.is_inside_transform()
    )


def is_reverse_mode_only(x: Tensor, shortcut: str | None = None) -> bool:
    """True if only ordinary backward passes are possible: eager CPU, no torch.func transform, no forward mode."""
    return is_eager_cpu(x, shortcut) and not torch_compat.is_forward_mode_on()


def safe_norm(vectors: Tensor) -> Tensor:
    """Lengths [...] of vectors [..., D]; both derivatives of a zero vector are 0 (torch's second is NaN)."""
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    if is_eager_cpu(length, "norms") and length.detach().min().item() > 0:  # the usual case: nothing to mask
        return length
    zero = length.detach() == 0
    masked = torch.where(zero.unsqueeze(-1), 1.0, vectors)
    return torch.where(zero, 0.0, torch.linalg.vector_norm(masked, dim=-1))


def unit_and_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors [..., D] and lengths [...] of `x` [..., D]. A zero vector stays zero, with length 0 and gradient 0.

    Very long and very short vectors are as accurate as others: they are divided by their largest entry first.

    >>> unit, norm = unit_and_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e30, 4e30]]))
    >>> [[round(v, 6) for v in row] for row in unit.tolist()]
    [[0.6, 0.8], [0.0, 0.0], [0.6, 0.8]]
    """
    if is_eager_cpu(x, "norms"):
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        if are_norms_safe(length.detach()):  # the usual case, with a third of the operations
            return x / length, length.squeeze(-1)
    peak = _largest_entries(x.detach()).unsqueeze(-1)
    unit_peak = torch.where(_is_extreme(peak), peak, 1.0)
    scaled = x / unit_peak
    length, zero = safe_norm(scaled).unsqueeze(-1), peak == 0  # NaN is not 0 and propagates
    unit = torch.where(zero, 0.0, scaled / torch.where(zero, 1.0, length))
    return unit, (length * unit_peak).squeeze(-1)


def _largest_entries(x: Tensor) -> Tensor:
    """The largest magnitude [...] in each vector [..., D]."""
    if not x.shape[-1]:
        return x.new_ones(x.shape[:-1])
    return x.abs().amax(-1)  # not the ∞-norm, which is ten times slower on a CPU


def _is_extreme(peak: Tensor) -> Tensor:
    """True where a vector with this largest magnitude must be rescaled before its squares are summed."""
    return (peak > _SAFE_HIGH) | ((peak < _SAFE_LOW) & (peak > 0))


def extreme_peaks(vectors: Tensor) -> Tensor:
    """Divisors [...] after which the norms of vectors [..., D] are safe: 1, or the largest magnitude if it is extreme.

    >>> extreme_peaks(torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e30, 4e30]]))
    tensor([1.0000e+00, 1.0000e+00, 4.0000e+30])
    """
    peak = _largest_entries(vectors)
    return torch.where(_is_extreme(peak), peak, 1.0)


def angle_between(u: Tensor, v: Tensor) -> Tensor:
    """Angle [...] between unit vectors [..., D]: `2 atan2(|u − v|, |u + v|)`, exact for small angles.

    >>> u = torch.tensor([1.0, 0.0]); v = torch.tensor([1.0, 1e-4])
    >>> round(angle_between(u, unit_and_norm(v)[0]).item() * 1e4, 4)
    1.0
    """
    apart, together = safe_norm(u - v), safe_norm(u + v)
    # Two zero vectors have angle 0 and zero gradient.
    return 2.0 * torch.atan2(apart, torch.where(apart + together == 0, 1.0, together))


def nearest_cosines(u: Tensor, v: Tensor) -> Tensor:
    """Cosines [..., A, B] of groups of unit vectors [..., A, J, D] and [..., B, K, D]: the cosine of the nearest two.

    A class with K sub-centres is such a group; a sample, or a class with one weight, is a group of one.

    >>> two_classes = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.6, -0.8]]])
    >>> found = nearest_cosines(torch.tensor([[[0.8, 0.6]]]), two_classes)
    >>> torch.allclose(found, torch.tensor([[0.8, 0.0]]), atol=1e-6)
    True
    """
    cos = u.flatten(-3, -2) @ v.flatten(-3, -2).mT
    if v.shape[-2] > 1:
        cos = torch.unflatten(cos, -1, v.shape[-3:-1]).amax(-1)
    return torch.unflatten(cos, -2, u.shape[-3:-1]).amax(-2) if u.shape[-2] > 1 else cos


def smallest_angle(u: Tensor, v: Tensor) -> Tensor:
    """Angles [...] between groups of unit vectors [..., J, D] and [..., K, D]: the angle of the nearest two, exact."""
    return angle_between(u.unsqueeze(-2), v.unsqueeze(-3)).amin((-2, -1))


def group_weights(weight: Tensor) -> Tensor:
    """Return class weights [C, D] as groups of one [C, 1, D]; sub-centres [C, K, D] are returned unchanged."""
    return weight.unsqueeze(1) if weight.ndim == 2 else weight


MAX_ACCURATE_COSINE = 0.9  # up to this cosine the angle has full precision, and the derivative of arccos is moderate
_CLAMP_COSINE = 0.95
_polynomial_arccos_threads: set[int] = set()  # threads that trace kernels; others use torch's arccos, bit for bit
# Abramowitz and Stegun, 4.4.46: arccos x = √(1 − x) Σ a_k x^k on [0, 1], with an error of at most 2e-8.
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
    """True if this thread traces a kernel; the set is tested first because torch.compile cannot trace thread ids."""
    return bool(_polynomial_arccos_threads) and threading.get_ident() in _polynomial_arccos_threads


def _polynomial_arccos(cos: Tensor) -> Tensor:
    abs_cos = cos.abs()
    total = torch.full_like(abs_cos, _ARCCOS_COEFFICIENTS[-1])
    for factor in reversed(_ARCCOS_COEFFICIENTS[:-1]):
        total = total * abs_cos + factor
    theta = (1.0 - abs_cos).clamp_min(0.0).sqrt() * total
    return torch.where(cos < 0, PI - theta, theta)


def define_arccos(cos: Tensor) -> Tensor:
    """arccos for plain autograd: `2 atan2(√(1 − cos), √(1 + cos))`, whose derivative keeps its digits and is 0 at ±1.

    The derivative of torch's arccos loses half of its digits at a cosine of 1 − 1e-8 in fp64 and is infinite at 1.
    """
    inside = cos.abs() < 1.0
    safe = torch.where(inside, cos, 0.0)
    theta = 2.0 * torch.atan2(torch.sqrt(1.0 - safe), torch.sqrt(1.0 + safe))
    return torch.where(inside, theta, torch.acos(cos.detach().clamp(-1.0, 1.0)))


@custom_autograd("speed", "autograd takes three times as many N×C passes to keep digits near ±1", define_arccos)
class _Arccos(torch.autograd.Function):
    """arccos with derivative 0 instead of infinity at ±1; two N×C passes forward, one matrix saved."""

    @staticmethod
    def forward(ctx: Any, cos: Tensor) -> Tensor:
        ctx.save_for_backward(cos)
        if _is_polynomial_arccos_on() and cos.dtype == torch.float32:
            return _polynomial_arccos(cos)
        return torch.acos(cos.clamp(-1.0, 1.0))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (cos,) = ctx.saved_tensors
        squared_sine = (1.0 - cos) * (1.0 + cos)  # not 1 − cos², which loses its digits near ±1
        if not torch.is_grad_enabled():  # fewer passes if no second derivative is needed
            return gradient * torch.rsqrt(squared_sine).neg_().masked_fill_(squared_sine <= 0, 0.0)
        inside = squared_sine > 0
        return gradient * torch.where(inside, -torch.rsqrt(torch.where(inside, squared_sine, 1.0)), 0.0)


def safe_arccos(cos: Tensor) -> Tensor:
    """arccos with a finite derivative everywhere: 0 at cos ≤ −1 and cos ≥ 1.

    >>> c = torch.tensor([1.0, 0.0, -1.0], requires_grad=True)
    >>> safe_arccos(c).sum().backward(); c.grad.tolist()
    [0.0, -1.0, 0.0]
    """
    if not _is_polynomial_arccos_on():
        if not is_reverse_mode_only(cos, "arccos"):
            return define_arccos(cos)
        if is_within(cos, MAX_ACCURATE_COSINE):
            return clamped_arccos(cos, skip_clamp=True)
    theta: Tensor = _Arccos.apply(cos)  # type: ignore[no-untyped-call]
    return theta


def safe_sine(cos: Tensor) -> Tensor:
    """Sine of an angle in [0, π] from its cosine, with a finite derivative everywhere: 0 at ±1.

    >>> c = torch.tensor([1.0, 0.6], requires_grad=True)
    >>> sine = safe_sine(c); sine.sum().backward(); [round(v, 4) for v in (*sine.tolist(), *c.grad.tolist())]
    [0.0, 0.8, 0.0, -0.75]
    """
    squared = (1.0 - cos) * (1.0 + cos)  # not 1 − cos², which loses its digits near ±1
    inside = squared > 0
    return torch.where(inside, torch.sqrt(torch.where(inside, squared, 1.0)), 0.0)


def is_within(cos: Tensor, bound: float) -> bool:
    """True if all values lie in [−bound, bound]."""
    low, high = torch.aminmax(cos.detach())
    return low.item() >= -bound and high.item() <= bound


def clamped_arccos(cos: Tensor, skip_clamp: bool = False) -> Tensor:
    """arccos, constant beyond ±`_CLAMP_COSINE`; use `skip_clamp` if all cosines are known to lie within."""
    return torch.acos(cos if skip_clamp else cos.clamp(-_CLAMP_COSINE, _CLAMP_COSINE))


def falling_cosine(t: Tensor) -> Tensor:
    """`g(t) = (−1)^k cos t − 2k` with `k = ⌊t/π⌋`: the cosine continued so that it decreases past π.

    `g(m θ)` is the ψ of L-Softmax and A-Softmax.

    >>> [round(v, 4) for v in falling_cosine(torch.tensor([0.0, PI, 1.5 * PI])).tolist()]
    [1.0, -1.0, -2.0]
    """
    k = torch.floor(t.detach() / PI)
    sign = 1.0 - 2.0 * torch.remainder(k, 2.0)
    return sign * torch.cos(t) - 2.0 * k
