"""Embeddings with their directions and lengths, and the logits of some classes for them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import angle
from ..margin import Margin


class Rays(NamedTuple):
    """Embeddings [N, D] in the head's working dtype, their directions [N, D] and lengths [N]."""

    x: Tensor
    unit: Tensor
    length: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Rays:
        unit, length = angle.direction(x)
        # A zero embedding has no angle: its cosines are 0 and it gets no gradient, on any geometry.
        return cls(torch.where((length == 0).unsqueeze(1), torch.zeros_like(x), x), unit, length)


class Others(NamedTuple):
    """What a road brings back of the classes that are not the target's."""

    log_sum: Tensor
    """`L` [N]."""
    total: Tensor | None
    """Sum of their logits [N], for label smoothing."""


def products(margin: Margin, rays: Rays, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """The matrix product [N, C'] behind the logits of the classes of `weight` [C', D], and ‖w_j‖ if needed.

    Where φ is the cosine itself, the lengths a margin keeps fold into the factors, so nothing is
    divided out that would be multiplied in again; otherwise the product is the cosine.
    """
    weight = weight.to(rays.x.dtype)
    if margin.linear:
        left = rays.x if margin.keeps_x else rays.unit
        return left @ (weight if margin.keeps_w else angle.direction(weight)[0]).T, None
    unit, lengths = angle.direction(weight)
    return rays.unit @ unit.T, lengths if margin.keeps_w else None


def logits_of(
    margin: Margin, s: Tensor | float, rays: Rays, product: Tensor, lengths: Tensor | None, bias: Tensor | None
) -> Tensor:
    """`s · r_j · φ(cos θ_j) + b_j` [N, C'] from what `products` gave: the one definition."""
    if margin.linear:
        z = s * product
    else:
        z = s * margin.phi(product)
        if margin.keeps_x:
            z = z * rays.length.unsqueeze(1)
        if lengths is not None:
            z = z * lengths
    return z if bias is None else z + bias.to(z.dtype)


def target_angle(rays: Rays, weight: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Angle θ_y [N] from the chord, and the length ‖w_y‖ [N]."""
    unit, length = angle.direction(weight[y].to(rays.x.dtype))
    return angle.between(rays.unit, unit), length


def target_radius(margin: Margin, rays: Rays, lengths: Tensor) -> Tensor | None:
    """`r_y` [N], or None where it is 1."""
    if margin.keeps_x and margin.keeps_w:
        return rays.length * lengths
    if margin.keeps_x:
        return rays.length
    return lengths if margin.keeps_w else None
