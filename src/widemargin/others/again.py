"""Gradients of a streamed head that can themselves be differentiated: once more, densely, by plain autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import angle
from ..errors import InputError
from .block import KernelSpec
from .dense import compute_non_target_sums
from .rays import DotProducts, compute_logits, compute_radius

_MAX_DOUBLE_BACKWARD_LOGITS = 1 << 24  # logits; a second derivative holds many copies of them


def dense_double_backward(ctx: Any, grad_outputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Gradients to (a, directions, ‖x‖, weight, bias, numbers) as a graph; refused where the logits are too many."""
    y, _, *saved = ctx.saved_tensors
    # Views: embeddings and directions may be one tensor, and each place wants its own gradient.
    inputs: list[Any] = [None if t is None else t.view_as(t) for t in saved]
    a, unit, x_norm, weight, bias, *margin_values = inputs
    if len(a) * len(weight) > _MAX_DOUBLE_BACKWARD_LOGITS:
        raise InputError("so large a streamed head cannot be differentiated twice (create_graph): take fewer classes")
    spec: KernelSpec = ctx.kind
    margin = (
        spec.margin.with_values(**dict(zip(spec.value_names, margin_values, strict=True)))
        if margin_values
        else spec.margin
    )
    w_unit, w_norm = angle.unit_and_norm(weight.to(a.dtype))
    value = a @ (w_unit if spec.divides_by_w_norm else weight.to(a.dtype)).T
    radius = compute_radius(margin, x_norm.unsqueeze(1), w_norm) if spec.has_radius else None
    others = compute_non_target_sums(compute_logits(margin, DotProducts(value, radius), bias), y, spec.with_logit_sum)
    theta = angle.angle_between(unit, w_unit.index_select(0, y))
    product = value.gather(1, y.unsqueeze(1)).squeeze(1)
    results = (others.log_sum, others.logit_sum, theta, w_norm.index_select(0, y), product)
    pairs = [
        (r, g)
        for r, g in zip(results, grad_outputs, strict=True)
        if r is not None and g is not None and r.requires_grad
    ]
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    grads = iter(
        torch.autograd.grad([r for r, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True)
    )
    return tuple(next(grads) if t is not None and t.requires_grad else None for t in inputs)
