"""The target's angle on a streamed road: read off the products where they know it, from the chord where they do not.

A cosine near ±1 has lost its angle's digits, so there (`NEAR`) θ comes from the vectors. Its gradient goes the way of
the products, as one more entry among those of the other classes, and costs nothing; only at the smallest angles
(`_TINY`), where that difference of two nearly equal vectors would lose digits, is it worked out by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import angle

CHORD_COSINE_THRESHOLD = angle.MAX_ACCURATE_COSINE
_TINY_ANGLE_SINE = 0.02


class TargetGeometry(NamedTuple):
    """The target of each sample, without a gradient."""

    theta: Tensor
    """θ_y [N]."""
    w_norm: Tensor | None
    """‖w_y‖ [N] where the margin keeps it."""
    cosine_divisor: Tensor
    """By what a product is divided to be the cosine [N]."""


def compute_target_geometry(
    product: Tensor, unit: Tensor, weight: Tensor, rows: Tensor, cosine_divisor: Tensor, keeps_w: bool
) -> TargetGeometry:
    """From the targets' products [N]; `rows` [N] are their places among the weights."""
    w_norm: Tensor | None = None
    if keeps_w:
        w_norm = angle.unit_and_norm(weight.index_select(0, rows).to(unit.dtype))[1]
        cosine_divisor = cosine_divisor * w_norm
    cos = product / torch.where(cosine_divisor == 0, 1.0, cosine_divisor)
    theta = angle.safe_arccos(cos)
    near = (cos.abs() > CHORD_COSINE_THRESHOLD).nonzero().squeeze(1)
    if len(near):
        w_unit = angle.unit_and_norm(weight.index_select(0, rows[near]).to(unit.dtype))[0]
        theta[near] = angle.angle_between(unit[near], w_unit)
    return TargetGeometry(theta, w_norm, cosine_divisor)


class TargetGradients(NamedTuple):
    """What the gradient of θ_y wants of everything."""

    grad_product: Tensor
    """Of the target's product [N]; 0 for the tiny angles."""
    grad_log_divisor: Tensor
    """Of the factor between product and cosine, divided by it once more: as ∂/∂log [N]."""
    tiny_indices: Tensor
    """Samples whose vectors are turned directly."""


def compute_target_gradients(geometry: TargetGeometry, grad_theta: Tensor) -> TargetGradients:
    """The chain from θ back to products and lengths."""
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
        grad_u, grad_v = torch.autograd.grad(angle.angle_between(u, v), (u, v), grad_theta)
    return grad_u, grad_v
