"""Theory: scale against gap, gradient and target curves, decision boundaries.

Scale against gap needs no torch. Curves and boundaries are computed from the definitions of the margins; no formula of
a loss is repeated here.
"""

from __future__ import annotations

import math
import numbers
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from .io.errors import InputError, format_value

if TYPE_CHECKING:
    from torch import Tensor

    from .losses.margin import Margin


USUAL_GAP = 0.5
"""Default gap in radians, about 29°."""
SCALE_EVIDENCE = (
    "This is theory (Eq. 19). Measured on 15 small tables of 2 to 6 classes: s=5 has 85.28 % on average and s=30 has "
    "85.21 %, and they differ significantly on no table (widemargin reproduce table1). Scales of ArcGrad were not "
    "compared on images or with more classes; compare two or three on your data."
)
"""Measurements that support the suggested scale, and their limits."""
_MAX_ABS_VALUE = 1e300


def _optimal_scale_gap_product(num_classes: int) -> float:
    """`W₀((C−1)/e) + 1`: the product of gap and the scale that moves samples with that gap fastest (Eq. 19)."""
    from scipy.special import lambertw

    return float(lambertw((_check_num_classes(num_classes) - 1) / math.e).real) + 1.0


def _check_num_classes(num_classes: Any) -> int:
    if (
        isinstance(num_classes, bool)
        or not isinstance(num_classes, numbers.Integral)
        or not 2 <= int(num_classes) <= 10**15
    ):
        raise InputError(
            f"num_classes={format_value(num_classes)} must be a whole number of at least 2 (and at most 10^15)"
        )
    return int(num_classes)


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _check_positive(what: str, value: Any, unit: str) -> float:
    if not _is_real(value) or not 0 < value < _MAX_ABS_VALUE:
        raise InputError(f"{what}={format_value(value)} must be a number {unit}above 0")
    return float(value)


def _check_finite(what: str, value: Any) -> float:
    if not _is_real(value) or not abs(value) < _MAX_ABS_VALUE:
        raise InputError(f"{what}={format_value(value)} must be a finite number")
    return float(value)


def _check_angles(what: str, theta: Any) -> Tensor:
    from .numerics.validation import describe_type, is_plain_float

    if not is_plain_float(theta):
        raise InputError(f"{what} must be a float tensor of angles in radians, got {describe_type(theta)}")
    angles: Tensor = theta
    return angles


def suggest_scale(num_classes: int, gap: float) -> float:
    """Return the scale `s` with the largest gradient at a mean angular gap of `gap` radians (Eq. 19).

    `s = (W₀((C−1)/e) + 1) / gap`: a wide gap needs a small scale. With 10 classes and a gap of 0.5, s = 4.2; with 1,000
    classes, s = 10.8.

    This is theory. Measurements show that the scale matters little on small tables: on the fifteen tables of the
    paper's Table I, with 2 to 6 classes, s=5 and s=30 do not differ significantly (`SCALE_EVIDENCE`), while a gap of
    0.5 gives 2.6 to 3.6. Scales of ArcGrad were not compared on images or with more classes: if it matters, compare two
    or three.

    >>> round(suggest_scale(num_classes=10, gap=0.5), 4)
    4.202
    """
    gap = _check_positive("gap", gap, "of radians ")
    if gap > math.pi:
        warnings.warn(f"a gap of {gap:g} rad is above π; gaps are in radians, not degrees", stacklevel=2)
    return _optimal_scale_gap_product(num_classes) / gap


def scale_advice(num_classes: int, gap: float = USUAL_GAP) -> str:
    """Return the suggested scale as a sentence.

    >>> scale_advice(1000)
    'use s = 10.8 for arcgrad with 1,000 classes (gap 0.5)'
    """
    return f"use s = {suggest_scale(num_classes, gap):.3g} for arcgrad with {num_classes:,} classes (gap {gap:g})"


def theoretical_gap(num_classes: int, scale: float) -> float:
    """Return the mean angular gap in radians at which a scale is optimal: the inverse of Eq. 19.

    >>> [round(math.degrees(theoretical_gap(3, s)), 1) for s in (1.0, 40.0)]
    [83.8, 2.1]
    """
    gap = _optimal_scale_gap_product(num_classes) / _check_positive("scale", scale, "")
    if gap > math.pi:
        warnings.warn(f"scale {scale:g} with {num_classes} classes gives a gap of {gap:.2f} rad, above π", stacklevel=2)
    return gap


def gap_loss(gap: float, scale: float, num_classes: int) -> float:
    """`L″ = log(1 + (C−1) e^(−s m̃))`: ArcGrad's loss with every gap at its mean (Eq. 14).

    >>> round(gap_loss(0.0, 10.0, 3), 4)  # log 3: no gap, no information
    1.0986
    """
    exponent = math.log(_check_num_classes(num_classes) - 1) - _check_finite("scale", scale) * _check_finite("gap", gap)
    return max(exponent, 0.0) + math.log1p(math.exp(-abs(exponent)))


def gap_gradient(gap: float, scale: float, num_classes: int) -> float:
    """`|∂L″/∂m̃| = s (C−1) e^(−s m̃) / (1 + (C−1) e^(−s m̃))`: how fast samples with this gap move.

    Over `s` it is largest at `suggest_scale(num_classes, gap)`.

    >>> best = suggest_scale(10, 0.5)
    >>> gap_gradient(0.5, best, 10) > max(gap_gradient(0.5, 0.9 * best, 10), gap_gradient(0.5, 1.1 * best, 10))
    True
    """
    exponent = math.log(_check_num_classes(num_classes) - 1) - _check_finite("scale", scale) * _check_finite("gap", gap)
    return scale / (1.0 + math.exp(-exponent)) if exponent > -700 else 0.0


def gaps(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Gap of each sample [N]: `min_{j≠y} θ_j − θ_y`, positive if the sample is classified correctly (Eq. 13).

    `weight` are class weights [C, D], or [C, K, D] with sub-centres, of which the nearest counts.

    >>> import torch
    >>> round(gaps(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.eye(2)).item(), 4)
    1.5708
    """
    import torch

    from .head.backends.base import NormalizedEmbeddings
    from .head.backends.stream import StreamBackend
    from .losses.margin import Subcenters
    from .numerics import angles
    from .numerics.validation import check_embeddings, check_labels, describe_type, is_plain_float

    if not is_plain_float(weight) or weight.ndim not in (2, 3):
        raise InputError(
            f"weight must be a float tensor [C, D] or [C, K, D] of class weights, got {describe_type(weight)}"
        )
    check_embeddings(x, weight.shape[-1], weight.device)
    embeddings = NormalizedEmbeddings(x.detach().to(torch.promote_types(weight.dtype, torch.float32)).contiguous())
    check_labels(y, len(x), len(weight), embeddings.norm, x.device)
    subcenters = Subcenters(weight.shape[1]) if weight.ndim == 3 else None
    backend = StreamBackend(embeddings, weight.detach(), None, subcenters=subcenters)
    return angles.safe_arccos(backend.largest_cosines(y.long()).squeeze(1)) - backend.target_angles(y.long())


def target_curve(
    margin: Margin | str, theta: Tensor, num_classes: int = 10, *, x_norm: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Target logit and plain logit over angles θ, at ‖w‖ = 1: `s r ψ(θ) − a` and `s r φ(cos θ)`.

    Per-sample numbers are those of `loss_curve`. The plain logit is that of a class that is not among the nearest.
    """
    import torch

    resolved = _resolve_margin(margin, num_classes, _check_angles("theta", theta))
    lengths = _Lengths(_check_finite("x_norm", x_norm))
    filled = _fill_in_samples(resolved, theta, torch.full_like(theta, math.pi / 2), lengths, num_classes)
    return _target_logit(filled, theta, lengths), _other_logit(resolved, theta, lengths)


def target_slope(margin: Margin | str, theta: Tensor, num_classes: int = 10) -> Tensor:
    """Derivative of the target logit with respect to θ."""
    import torch

    angles = _check_angles("theta", theta).detach().clone().requires_grad_()
    curve, _ = target_curve(margin, angles, num_classes)
    (slope,) = torch.autograd.grad(curve.sum(), angles)
    return slope


def loss_curve(
    margin: Margin | str,
    theta: Tensor,
    num_classes: int = 10,
    *,
    other_angle: float = math.pi / 2,
    x_norm: float = 1.0,
) -> Tensor:
    """Loss over target angles θ, with every other class at the angle `other_angle`, ‖w‖ = 1.

    The values of a head in evaluation: per-sample numbers follow from these angles and ‖x‖ (which class is hard, how
    wide a margin is), schedules are at their end, and the sub-centres of a class coincide. A penalty on class weights,
    which does not depend on the angles, is left out.

    >>> import torch
    >>> round(loss_curve("p2sgrad", torch.tensor([math.pi / 3]), num_classes=3, other_angle=math.pi / 2).item(), 4)
    0.125
    """
    import torch

    resolved = _resolve_margin(margin, num_classes, _check_angles("theta", theta))
    other = torch.full_like(theta, _check_finite("other_angle", other_angle))
    return loss_at_angles(resolved, theta, other, torch.tensor(num_classes, dtype=torch.float64), x_norm)


def loss_at_angles(
    margin: Margin, theta: Tensor, other_angle: Tensor, num_classes: Tensor, x_norm: float = 1.0
) -> Tensor:
    """The loss of `loss_curve` for a margin with the numbers of a step, and tensors that broadcast."""
    import torch

    lengths = _Lengths(_check_finite("x_norm", x_norm))
    filled = _fill_in_samples(margin, theta, other_angle, lengths, int(num_classes.min()))
    p, z = _target_logit(filled, theta, lengths), _other_logit(filled, other_angle, lengths)
    offsets, log_count = filled.class_offsets(), (num_classes - 1).log().to(z.dtype)
    if offsets is not None:
        p, log_count = p + offsets[0], torch.logsumexp(torch.tensor(offsets[1:], dtype=torch.float64), 0).to(z.dtype)
    others = (num_classes - 1).to(z.dtype) * filled.other_loss(z) if filled.one_vs_all else z + log_count
    loss: Tensor = filled.loss_weight() * filled.combine(p, others)
    penalty = filled.sample_penalty()
    return loss if penalty is None else loss + penalty


def gradient_curve(
    margin: Margin | str, theta: Tensor, num_classes: int = 10, *, other_angle: float = math.pi / 2, x_norm: float = 1.0
) -> Tensor:
    """`∂ loss / ∂θ_y` over target angles θ: the derivative of `loss_curve` that a head trains with.

    >>> import torch
    >>> far = gradient_curve("arcgrad(s=10)", torch.tensor([3.0]), num_classes=10)
    >>> round(far.item(), 3)  # ArcGrad pulls with its full scale wherever the sample is wrong
    10.0
    """
    import torch

    angles = _check_angles("theta", theta).detach().clone().requires_grad_()
    loss = loss_curve(margin, angles, num_classes, other_angle=other_angle, x_norm=x_norm)
    (slope,) = torch.autograd.grad(loss.sum(), angles)
    return slope


def decision_function(
    margin: Margin | str,
    theta1: Tensor,
    theta2: Tensor,
    *,
    x_norm: float = 1.0,
    w_norms: tuple[float, float] = (1.0, 1.0),
    biases: tuple[float, float] = (0.0, 0.0),
    num_classes: int = 2,
) -> Tensor:
    """Decision function of class 1 under the training condition: `z_1` with margin minus `z_2`.

    0 on the boundary, positive inside class 1. For ArcFace `s (cos(θ₁ + m) − cos θ₂)`, for A-Softmax
    `‖x‖ (cos mθ₁ − cos θ₂)`, for ArcGrad `s (θ₂ − θ₁)`.

    For a one-vs-all loss, too, the boundary is where both logits are equal, since a head decides by the largest logit,
    and not where its binary classifiers are 0, which depends on the learnt bias. What such a loss adds to the other
    logits inside `other_loss` (SphereFace2: m once more) is not included.
    """
    theta1, theta2 = _check_angles("theta1", theta1), _check_angles("theta2", theta2)
    theta1, theta2 = (t.reshape(-1) if t.ndim == 0 else t for t in (theta1, theta2))
    try:
        _ = theta1 + theta2  # the same shape, or shapes that broadcast
    except RuntimeError:
        shapes = f"{list(theta1.shape)} and {list(theta2.shape)}"
        raise InputError(f"theta1 and theta2 must have one shape, got {shapes}") from None
    resolved = _resolve_margin(margin, num_classes, theta1)
    x, first, second = (_check_finite("length", length) for length in (x_norm, *w_norms))
    filled = _fill_in_samples(resolved, theta1, theta2, _Lengths(x), num_classes)
    offsets = filled.class_offsets() or (0.0, 0.0)
    own = _target_logit(filled, theta1, _Lengths(x, first)) + biases[0] + offsets[0]
    return own - (_other_logit(filled, theta2, _Lengths(x, second)) + biases[1] + offsets[1])


class _Lengths(NamedTuple):
    """Norms of an embedding and of a class weight."""

    x: float
    w: float = 1.0

    def radius(self, margin: Margin, like: Tensor) -> Tensor | None:
        """`r`, with only the norms that the margin keeps; None if it keeps none."""
        import torch

        from .head.backends.base import compute_radius

        return compute_radius(margin, torch.full_like(like, self.x), torch.full_like(like, self.w))


def _target_logit(margin: Margin, theta: Tensor, lengths: _Lengths) -> Tensor:
    from .losses.margin import target_logit

    return target_logit(margin, theta, lengths.radius(margin, theta), None)


def _other_logit(margin: Margin, theta: Tensor, lengths: _Lengths) -> Tensor:
    import torch

    from .head.backends.base import DotProducts, compute_logits

    return compute_logits(margin, DotProducts(torch.cos(theta), lengths.radius(margin, theta)), None)


def _fill_in_samples(margin: Margin, theta: Tensor, other_angle: Tensor, lengths: _Lengths, num_classes: int) -> Margin:
    """Return the margin with per-sample numbers at these angles, all other classes at one; without random draws."""
    import torch

    from .losses.margin import SampleStatistics

    if not margin.sample_fields:
        return margin

    def largest_cosines(count: int) -> Tensor:
        cosines = torch.cos(other_angle.detach()).unsqueeze(-1).repeat_interleave(count, -1)
        cosines[..., num_classes - 1 :] = -math.inf  # no further classes
        return cosines

    x_norm = torch.full_like(theta.detach(), lengths.x)
    return margin.for_samples(SampleStatistics(theta.detach, lambda: x_norm, largest_cosines, training=False))


def boundary_angle(
    margin: Margin | str, class_angle: float, num_classes: int = 2, w_norms: tuple[float, float] = (1.0, 1.0)
) -> float:
    """Angle from W₁ to the training boundary of class 1, for classes `class_angle` radians apart.

    >>> round(boundary_angle("a_softmax(m=2, lam=0)", 0.9), 6)  # θ₁₂ / (m + 1)
    0.3
    """
    import torch

    if not 0 < _check_finite("class_angle", class_angle) <= math.pi:
        raise InputError(f"class_angle={class_angle!r} must be an angle in (0, π]")
    resolved, low, high = _resolve_margin(margin, num_classes, torch.zeros(1, dtype=torch.float64)), 0.0, class_angle
    for _ in range(60):  # until the two ends are neighbouring floats
        middle = (low + high) / 2
        here = torch.tensor([middle], dtype=torch.float64)
        inside = (
            decision_function(resolved, here, class_angle - here, w_norms=w_norms, num_classes=num_classes).item() > 0
        )
        low, high = (middle, high) if inside else (low, middle)
    return (low + high) / 2


def angular_margin(margin: Margin | str, class_angle: float, num_classes: int = 2) -> float:
    """Width of the band between the two classes' training boundaries.

    For A-Softmax `(m−1)/(m+1) · θ₁₂`, for ArcFace m, for losses without a margin 0.

    >>> round(angular_margin("a_softmax(m=4, lam=0)", 1.0), 6)
    0.6
    >>> round(angular_margin("arcface(m=0.3)", 1.0), 6)
    0.3
    """
    return _check_finite("class_angle", class_angle) - 2.0 * boundary_angle(margin, class_angle, num_classes)


def _resolve_margin(margin: Margin | str, num_classes: int, like: Tensor) -> Margin:
    """Return the margin with the numbers of a fresh head; schedules and annealing at their final value."""
    import torch

    from .losses.grammar import parse_margin
    from .losses.margin import Margin

    value = parse_margin(margin) if isinstance(margin, str) else margin
    if not isinstance(value, Margin):
        raise InputError(f"margin must be a loss string or a Margin such as ArcFace(), got {format_value(margin)}")
    _check_num_classes(num_classes)
    first_class = torch.zeros(like.shape, dtype=torch.int64)
    return value.for_num_classes(num_classes).at_step(torch.tensor(10**9), first_class, like.dtype)
