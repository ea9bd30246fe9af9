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

NEAR = angle.INNER
_TINY = 0.02


class Own(NamedTuple):
    """The target of each sample, without a gradient."""

    theta: Tensor
    """θ_y [N]."""
    w_length: Tensor | None
    """‖w_y‖ [N] where the margin keeps it."""
    per_cosine: Tensor
    """By what a product is divided to be the cosine [N]."""


def own_of(value: Tensor, unit: Tensor, weight: Tensor, rows: Tensor, per_cosine: Tensor, keeps_w: bool) -> Own:
    """From the targets' products [N]; `rows` [N] are their places among the weights."""
    w_length: Tensor | None = None
    if keeps_w:
        w_length = angle.direction(weight.index_select(0, rows).to(unit.dtype))[1]
        per_cosine = per_cosine * w_length
    cos = value / torch.where(per_cosine == 0, 1.0, per_cosine)
    theta = angle.from_cosine(cos)
    near = (cos.abs() > NEAR).nonzero().squeeze(1)
    if len(near):
        theirs = angle.direction(weight.index_select(0, rows[near]).to(unit.dtype))[0]
        theta[near] = angle.between(unit[near], theirs)
    return Own(theta, w_length, per_cosine)


class Pulls(NamedTuple):
    """What the gradient of θ_y wants of everything."""

    to_value: Tensor
    """Of the target's product [N]; 0 for the tiny angles."""
    to_per_cosine: Tensor
    """Of the factor between product and cosine, divided by it once more: as ∂/∂log [N]."""
    tiny: Tensor
    """Samples whose vectors are turned directly."""


def pulls_of(own: Own, to_theta: Tensor) -> Pulls:
    """The chain from θ back to products and lengths."""
    sine = torch.sin(own.theta)
    tiny = sine < _TINY
    safe = torch.where(tiny | (own.per_cosine == 0), 1.0, sine)
    to_cos = torch.where(tiny | (own.per_cosine == 0), 0.0, -to_theta / safe)
    to_value = to_cos / torch.where(own.per_cosine == 0, 1.0, own.per_cosine)
    return Pulls(to_value, -to_cos * torch.cos(own.theta), (tiny & (to_theta != 0)).nonzero().squeeze(1))


def turned(unit: Tensor, theirs: Tensor, to_theta: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients [k, D] to both directions at tiny angles, exact there."""
    with torch.enable_grad():
        u, v = unit.detach().requires_grad_(), theirs.detach().requires_grad_()
        to_u, to_v = torch.autograd.grad(angle.between(u, v), (u, v), to_theta)
    return to_u, to_v
