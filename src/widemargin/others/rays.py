"""Embeddings with their directions and lengths, and the one definition of a class's logit."""

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
        if angle.may_look(length) and length.detach().min().item() > 0:
            return cls(x, unit, length)
        # A zero embedding has no angle: its cosines are 0 and it gets no gradient, on any geometry.
        return cls(torch.where((length == 0).unsqueeze(1), torch.zeros_like(x), x), unit, length)


def kept_lengths(margin: Margin, x_length: Tensor, w_length: Tensor) -> Tensor | None:
    """`r = ‖x‖‖w‖` with only the factors that the margin keeps; None where it is 1."""
    if margin.keeps_x and margin.keeps_w:
        return x_length * w_length
    if margin.keeps_x:
        return x_length
    return w_length if margin.keeps_w else None


class Products(NamedTuple):
    """What a matrix product gave for some classes, and what is still to be multiplied in."""

    value: Tensor
    """[N, C'], the cosine, or where φ is the cosine itself the cosine times the lengths kept."""
    radius: Tensor | None
    """`r_j`, where φ must come first."""


def products(margin: Margin, rays: Rays, weight: Tensor, unit: Tensor, lengths: Tensor) -> Products:
    """The matrix product behind the logits of the classes of `weight` [C', D] with directions `unit`.

    Where φ is the cosine itself, the lengths a margin keeps fold into the factors, so nothing is
    divided out that would be multiplied in again.
    """
    if margin.linear:
        return Products((rays.x if margin.keeps_x else rays.unit) @ (weight if margin.keeps_w else unit).T, None)
    return Products(rays.unit @ unit.T, kept_lengths(margin, rays.length.unsqueeze(1), lengths))


def logits_of(margin: Margin, product: Products, bias: Tensor | None) -> Tensor:
    """`s · r_j · φ(cos θ_j) + b_j` [N, C']: the one definition."""
    z: Tensor = margin.s * margin.phi(product.value)
    if product.radius is not None:
        z = z * product.radius
    return z if bias is None else z + bias.to(z.dtype)
