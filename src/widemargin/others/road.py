"""What every road offers, and the loss on any of them."""

from __future__ import annotations

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

    def own(self, margin: Margin, y: Tensor) -> Tensor | None:
        """The target's logit [N] without any margin where a road has it at no cost; None where its angle is better."""
        ...

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        """`L` [N] over the classes that are not `y`, and the sum of their logits where asked for."""
        ...

    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target, Others]:
        """Target and others of the same margin together, where a road can do that with less."""
        ...

    def largest_cosine(self, y: Tensor) -> Tensor:
        """Cosine [N] of the nearest class that is not `y`, without a gradient."""
        ...


def loss_on(
    road: Road,
    margin: Margin,
    y: Tensor,
    *,
    step: Tensor,
    keep: Tensor | None = None,
    adapt: bool = False,
    smoothing: float = 0.0,
) -> tuple[Tensor, Margin]:
    """Loss [N] of a margin on a road, and the margin as it was used (adapted to this batch if `adapt`)."""
    if adapt and margin.adaptive:
        with torch.no_grad():
            batch = Batch.of(
                road.target(margin, y).theta,
                road.lengths,
                step,
                lambda of: road.others(of, y).log_sum,
                lambda: road.largest_cosine(y),
                keep,
            )
            margin = margin.adapted(batch)
    own = road.own(margin, y) if margin.plain_target else None
    if own is None:
        target, others = road.both(margin, y, total=smoothing > 0)
        p = target_logit(margin, target.theta, target.radius, target.bias)
    else:
        p, others = less_offset(margin, own), road.others(margin, y, total=smoothing > 0)
    loss = split_softmax(p, others.log_sum)
    if others.total is not None:
        loss = smoothed(loss, p, others.total, road.classes, smoothing)
    return loss, margin
