"""Embeddings with their directions and lengths, and the one definition of a class's logit."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import angle
from ..margin import Margin


class NormalizedEmbeddings:
    """Embeddings [N, D] in the head's working dtype; their directions and lengths are worked out when they are wanted.

    `given` are the embeddings as they came. `moderate` says that their lengths were looked at and are far from 0 and
    from overflow; they are then in `rough`, without a gradient.
    """

    def __init__(self, raw: Tensor) -> None:
        self.raw, self.safe_norm = raw, None
        if angle.is_eager_cpu(raw):
            rough = torch.linalg.vector_norm(raw.detach(), dim=-1)
            self.safe_norm = rough if angle.are_norms_safe(rough) else None
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
            unit, length = angle.unit_and_norm(x)
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
    """What a matrix product gave for some classes, and what is still to be multiplied in."""

    value: Tensor
    """[N, C'], the cosine, or where φ is the cosine itself the cosine times the lengths kept."""
    radius: Tensor | None
    """`r_j`, where φ must come first."""


def compute_dot_products(
    margin: Margin, embeddings: NormalizedEmbeddings, weight: Tensor, w_unit: Tensor, w_norm: Tensor
) -> DotProducts:
    """The matrix product behind the logits of the classes of `weight` [C', D] with directions `unit`.

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
