"""Embeddings with their directions and lengths, and the one definition of a class's logit."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import angle
from ..margin import Margin


class Rays:
    """Embeddings [N, D] in the head's working dtype; their directions and lengths are worked out when they are wanted.

    `given` are the embeddings as they came. `moderate` says that their lengths were looked at and are far from 0 and
    from overflow; they are then in `rough`, without a gradient.
    """

    def __init__(self, given: Tensor) -> None:
        self.given, self.rough = given, None
        if angle.may_look(given):
            rough = torch.linalg.vector_norm(given.detach(), dim=-1)
            self.rough = rough if angle.are_moderate(rough) else None
        self._split: tuple[Tensor, Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.given)

    @property
    def x(self) -> Tensor:
        """The embeddings [N, D]; a zero one gets no gradient."""
        return self._parts()[0]

    @property
    def unit(self) -> Tensor:
        """Their directions [N, D]."""
        return self._parts()[1]

    @property
    def length(self) -> Tensor:
        """Their lengths [N]."""
        return self._parts()[2]

    @property
    def dtype(self) -> torch.dtype:
        """The working dtype."""
        return self.given.dtype

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._split is None:
            x = self.given
            unit, length = angle.direction(x)
            if self.rough is None:
                # A zero embedding has no angle: its cosines are 0 and it gets no gradient, on any geometry.
                x = torch.where((length == 0).unsqueeze(1), torch.zeros_like(x), x)
            self._split = x, unit, length
        return self._split


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
