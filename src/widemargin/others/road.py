"""What every road offers, and the loss on any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..margin import Batch, Margin, less_offset, smoothed, split_softmax, target_logit


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


class Others(NamedTuple):
    """What a road brings back of the classes that are not the target's."""

    log_sum: Tensor
    """`L` [N]."""
    total: Tensor | None
    """Sum of their logits [N], for label smoothing."""


class Road(Protocol):
    """A way to `L`: one object per call, which holds the embeddings and class weights of that call."""

    classes: int

    @property
    def lengths(self) -> Tensor:
        """‖x‖ [N]."""
        ...

    def target(self, margin: Margin, y: Tensor) -> Target:
        """The target of each sample."""
        ...

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        """`L` [N] over the classes that are not `y`, and the sum of their logits where asked for."""
        ...

    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target | TargetLogit, Others]:
        """Target and others of the same margin together, where a road can do that with less.

        The target as a logit where the margin leaves that as it is (`Margin.plain_target`) and lengths are kept.
        """
        ...

    def largest_cosine(self, y: Tensor) -> Tensor:
        """Cosine [N] of the nearest class that is not `y`, without a gradient."""
        ...


def logit_with_margin(margin: Margin, target: Target | TargetLogit) -> Tensor:
    """`p` [N]: the target's logit with the margin applied."""
    if isinstance(target, TargetLogit):
        return less_offset(margin, target.value)
    return target_logit(margin, target.theta, target.radius, target.bias)


def loss_on(
    road: Road,
    margin: Margin,
    y: Tensor,
    *,
    step: Tensor,
    keep: Tensor | None = None,
    adapt: bool = False,
    smoothing: float = 0.0,
    gather: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Margin]:
    """Loss [N] of a margin on a road, and the margin as it was used (adapted to this batch if `adapt`).

    `gather` turns rows of this process into those of all processes that share the adaptive numbers (None: one process).
    """
    if adapt and margin.adaptive:
        with torch.no_grad():
            batch = Batch.of(
                road.target(margin, y).theta,
                road.lengths,
                step,
                lambda of: road.others(of, y).log_sum,
                lambda: road.largest_cosine(y),
                keep,
                gather,
            )
            margin = margin.adapted(batch)
    target, others = road.both(margin, y, total=smoothing > 0)
    p = logit_with_margin(margin, target)
    loss = split_softmax(p, others.log_sum)
    if others.total is not None:
        loss = smoothed(loss, p, others.total, road.classes, smoothing)
    return loss, margin
