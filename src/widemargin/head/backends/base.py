"""What all backends share: normalised embeddings, the definition of a logit, the interface, the loss, target angles.

The loss (`compute_margin_loss`) is written once, on the `Backend` interface. `TargetGeometry` and what follows it serve
the streaming backend, which reads the target's angle off the dot products where they know it. A cosine near ±1 has lost
its angle's digits, so beyond `CHORD_COSINE_THRESHOLD` θ comes from the vectors. Its gradient goes through the products,
as one more entry among those of the other classes, and costs nothing; only at the smallest angles (`_TINY_ANGLE_SINE`),
where that difference of two nearly equal vectors would lose digits, is it computed separately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...losses.margin import (
    BatchStatistics,
    Margin,
    apply_label_smoothing,
    split_softmax,
    subtract_offset,
    target_logit,
)
from ...numerics import angles


class NormalizedEmbeddings:
    """Embeddings [N, D] in the head's working dtype; their directions and lengths are worked out when they are wanted.

    `raw` are the embeddings as they came. `safe_norm` are their lengths, without a gradient, where they were looked at
    and are far from 0 and from overflow; else None.
    """

    def __init__(self, raw: Tensor) -> None:
        self.raw, self.safe_norm = raw, None
        if angles.is_eager_cpu(raw):
            rough = torch.linalg.vector_norm(raw.detach(), dim=-1)
            self.safe_norm = rough if angles.are_norms_safe(rough) else None
        self._parts_cache: tuple[Tensor, Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def x(self) -> Tensor:
        """The embeddings [N, D]; a zero one gets no gradient."""
        return self._compute_parts()[0]

    @property
    def unit(self) -> Tensor:
        """Their directions [N, D]."""
        return self._compute_parts()[1]

    @property
    def norm(self) -> Tensor:
        """Their lengths [N]."""
        return self._compute_parts()[2]

    @property
    def dtype(self) -> torch.dtype:
        """The working dtype."""
        return self.raw.dtype

    def _compute_parts(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._parts_cache is None:
            x = self.raw
            unit, length = angles.unit_and_norm(x)
            if self.safe_norm is None:
                # A zero embedding has no angle: its cosines are 0 and it gets no gradient, on any geometry.
                x = torch.where((length == 0).unsqueeze(1), torch.zeros_like(x), x)
            self._parts_cache = x, unit, length
        return self._parts_cache


def compute_radius(margin: Margin, x_norm: Tensor, w_norm: Tensor) -> Tensor | None:
    """`r = ‖x‖‖w‖` with only the factors that the margin keeps; None where it is 1."""
    if margin.uses_x_norm and margin.uses_w_norm:
        return x_norm * w_norm
    if margin.uses_x_norm:
        return x_norm
    return w_norm if margin.uses_w_norm else None


class DotProducts(NamedTuple):
    """Dot products with some classes, and the lengths that are still to be multiplied in."""

    value: Tensor
    """[N, C'], the cosine, or where φ is the cosine itself the cosine times the lengths kept."""
    radius: Tensor | None
    """`r_j`, where φ must come first."""


def compute_dot_products(
    margin: Margin, embeddings: NormalizedEmbeddings, weight: Tensor, w_unit: Tensor, w_norm: Tensor
) -> DotProducts:
    """The matrix product behind the logits of the classes of `weight` [C', D] with directions `w_unit`.

    Where φ is the cosine itself, the lengths a margin keeps fold into the factors, so nothing is
    divided out that would be multiplied in again.
    """
    if margin.is_linear:
        return DotProducts(
            (embeddings.x if margin.uses_x_norm else embeddings.unit) @ (weight if margin.uses_w_norm else w_unit).T,
            None,
        )
    return DotProducts(embeddings.unit @ w_unit.T, compute_radius(margin, embeddings.norm.unsqueeze(1), w_norm))


def compute_logits(margin: Margin, product: DotProducts, bias: Tensor | None) -> Tensor:
    """`s · r_j · φ(cos θ_j) + b_j` [N, C']: the one definition."""
    z: Tensor = margin.s * margin.phi(product.value)
    if product.radius is not None:
        z = z * product.radius
    return z if bias is None else z + bias.to(z.dtype)


class Target(NamedTuple):
    """The target of each sample."""

    theta: Tensor
    """Angle θ_y [N], from the chord where there are vectors."""
    radius: Tensor | None
    """`r_y` [N], None where it is 1."""
    bias: Tensor | None
    """`b_y` [N], if any."""


class TargetLogit(NamedTuple):
    """The target of each sample where its logit is an ordinary one: no angle, so a class weight of length 0 learns."""

    value: Tensor
    """The logit [N] before the margin's offset."""


class NonTargetSums(NamedTuple):
    """Sums over the classes that are not the target's."""

    log_sum: Tensor
    """`L` [N]."""
    logit_sum: Tensor | None
    """Sum of their logits [N], for label smoothing."""


class Backend(Protocol):
    """Computes `L` and the target's logit: one object per call, which holds its embeddings and class weights."""

    num_classes: int

    @property
    def x_norm(self) -> Tensor:
        """‖x‖ [N]."""
        ...

    def target(self, margin: Margin, y: Tensor) -> Target:
        """The target of each sample."""
        ...

    def non_target_sums(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> NonTargetSums:
        """`L` [N] over the classes that are not `y`, and the sum of their logits where asked for."""
        ...

    def target_and_non_target(
        self, margin: Margin, y: Tensor, with_logit_sum: bool
    ) -> tuple[Target | TargetLogit, NonTargetSums]:
        """`target` and `non_target_sums` of the same margin in one call, which a backend may do with less work.

        The target is a `TargetLogit` where lengths are kept and the curve is plain (`Margin.has_plain_target`).
        """
        ...

    def largest_cosine(self, y: Tensor) -> Tensor:
        """Cosine [N] of the nearest class that is not `y`, without a gradient."""
        ...


def logit_with_margin(margin: Margin, target: Target | TargetLogit) -> Tensor:
    """`p` [N]: the target's logit with the margin applied."""
    if isinstance(target, TargetLogit):
        return subtract_offset(margin, target.value)
    return target_logit(margin, target.theta, target.radius, target.bias)


def compute_margin_loss(
    backend: Backend,
    margin: Margin,
    y: Tensor,
    *,
    step: Tensor,
    sample_mask: Tensor | None = None,
    adapt: bool = False,
    label_smoothing: float = 0.0,
    gather: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Margin]:
    """Loss [N] of a margin on a backend, and the margin as it was used (adapted to this batch if `adapt`).

    `gather` turns rows of this process into those of all processes that share the adaptive numbers (None: one process).
    """
    if adapt and margin.adaptive_fields:
        with torch.no_grad():
            batch = BatchStatistics.from_batch(
                backend.target(margin, y).theta,
                backend.x_norm,
                step,
                lambda of: backend.non_target_sums(of, y).log_sum,
                lambda: backend.largest_cosine(y),
                sample_mask,
                gather,
            )
            margin = margin.adapt_to_batch(batch)
    target, others = backend.target_and_non_target(margin, y, with_logit_sum=label_smoothing > 0)
    p = logit_with_margin(margin, target)
    loss = split_softmax(p, others.log_sum)
    if others.logit_sum is not None:
        loss = apply_label_smoothing(loss, p, others.logit_sum, backend.num_classes, label_smoothing)
    return loss, margin


CHORD_COSINE_THRESHOLD = angles.MAX_ACCURATE_COSINE
_TINY_ANGLE_SINE = 0.02


class TargetGeometry(NamedTuple):
    """The target of each sample, without a gradient."""

    theta: Tensor
    """θ_y [N]."""
    w_norm: Tensor | None
    """‖w_y‖ [N] where the margin keeps it."""
    cosine_divisor: Tensor
    """Divisor that turns the dot product into the cosine [N]."""


def compute_target_geometry(
    product: Tensor, unit: Tensor, weight: Tensor, rows: Tensor, cosine_divisor: Tensor, keeps_w: bool
) -> TargetGeometry:
    """Target angles and lengths from the dot products [N] with the targets; `rows` [N] are their rows of `weight`."""
    w_norm: Tensor | None = None
    if keeps_w:
        w_norm = angles.unit_and_norm(weight.index_select(0, rows).to(unit.dtype))[1]
        cosine_divisor = cosine_divisor * w_norm
    cos = product / torch.where(cosine_divisor == 0, 1.0, cosine_divisor)
    theta = angles.safe_arccos(cos)
    near = (cos.abs() > CHORD_COSINE_THRESHOLD).nonzero().squeeze(1)
    if len(near):
        w_unit = angles.unit_and_norm(weight.index_select(0, rows[near]).to(unit.dtype))[0]
        theta[near] = angles.angle_between(unit[near], w_unit)
    return TargetGeometry(theta, w_norm, cosine_divisor)


class TargetGradients(NamedTuple):
    """Gradients of θ_y with respect to the target's dot product and the norms."""

    grad_product: Tensor
    """With respect to the target's dot product [N]; 0 at tiny angles."""
    grad_log_divisor: Tensor
    """With respect to the logarithm of `cosine_divisor` [N]."""
    tiny_indices: Tensor
    """Samples at tiny angles, whose gradient is computed from the vectors (`tiny_angle_gradients`)."""


def compute_target_gradients(geometry: TargetGeometry, grad_theta: Tensor) -> TargetGradients:
    """Backpropagate the gradient of θ_y to dot products and lengths."""
    sine = torch.sin(geometry.theta)
    tiny = sine < _TINY_ANGLE_SINE
    safe = torch.where(tiny | (geometry.cosine_divisor == 0), 1.0, sine)
    grad_cos = torch.where(tiny | (geometry.cosine_divisor == 0), 0.0, -grad_theta / safe)
    grad_value = grad_cos / torch.where(geometry.cosine_divisor == 0, 1.0, geometry.cosine_divisor)
    return TargetGradients(
        grad_value, -grad_cos * torch.cos(geometry.theta), (tiny & (grad_theta != 0)).nonzero().squeeze(1)
    )


def tiny_angle_gradients(unit: Tensor, w_unit: Tensor, grad_theta: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients [k, D] to both directions at tiny angles, exact there."""
    with torch.enable_grad():
        u, v = unit.detach().requires_grad_(), w_unit.detach().requires_grad_()
        grad_u, grad_v = torch.autograd.grad(angles.angle_between(u, v), (u, v), grad_theta)
    return grad_u, grad_v
