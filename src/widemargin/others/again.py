"""Gradients of a streamed head that can themselves be differentiated: once more, densely, by plain autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import angle
from ..errors import InputError
from .block import Kind
from .dense import others_of
from .rays import Products, kept_lengths, logits_of

_MOST = 1 << 24  # logits; a second derivative holds many copies of them


def again_densely(ctx: Any, given: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Gradients to (a, directions, ‖x‖, weight, bias, numbers) as a graph; refused where the logits are too many."""
    y, _, *saved = ctx.saved_tensors
    # Views: embeddings and directions may be one tensor, and each place wants its own gradient.
    inputs: list[Any] = [None if t is None else t.view_as(t) for t in saved]
    a, unit, x_length, weight, bias, *numbers = inputs
    if len(a) * len(weight) > _MOST:
        raise InputError("so large a streamed head cannot be differentiated twice (create_graph): take fewer classes")
    kind: Kind = ctx.kind
    margin = kind.margin.with_values(**dict(zip(kind.names, numbers, strict=True))) if numbers else kind.margin
    theirs, w_length = angle.direction(weight.to(a.dtype))
    value = a @ (theirs if kind.divides else weight.to(a.dtype)).T
    radius = kept_lengths(margin, x_length.unsqueeze(1), w_length) if kind.lengths else None
    others = others_of(logits_of(margin, Products(value, radius), bias), y, kind.total)
    theta = angle.between(unit, theirs.index_select(0, y))
    product = value.gather(1, y.unsqueeze(1)).squeeze(1)
    results = (others.log_sum, others.total, theta, w_length.index_select(0, y), product)
    pairs = [(r, g) for r, g in zip(results, given, strict=True) if r is not None and g is not None and r.requires_grad]
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    found = iter(
        torch.autograd.grad([r for r, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True)
    )
    return tuple(next(found) if t is not None and t.requires_grad else None for t in inputs)
