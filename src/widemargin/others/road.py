"""What every road offers, and the loss on any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..margin import BatchStatistics, Margin, apply_label_smoothing, split_softmax, subtract_offset, target_logit


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


class NonTargetSums(NamedTuple):
    """What a road brings back of the classes that are not the target's."""

    log_sum: Tensor
    """`L` [N]."""
    logit_sum: Tensor | None
    """Sum of their logits [N], for label smoothing."""


class Backend(Protocol):
    """A way to `L`: one object per call, which holds the embeddings and class weights of that call."""

    num_classes: int

    @property
    def x_norm(self) -> Tensor:
        """‖x‖ [N]."""
        ...

    def target(self, margin: Margin, y: Tensor) -> Target:
        """The target of each sample."""
        ...

    def non_target_sums(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> NonTargetSums:
        """`L` [N] over the classes that are not `y`, and the sum of their logits where asked for."""
        ...

    def target_and_non_target(
        self, margin: Margin, y: Tensor, with_logit_sum: bool
    ) -> tuple[Target | TargetLogit, NonTargetSums]:
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
        return subtract_offset(margin, target.value)
    return target_logit(margin, target.theta, target.radius, target.bias)


def compute_margin_loss(
    backend: Backend,
    margin: Margin,
    y: Tensor,
    *,
    step: Tensor,
    sample_mask: Tensor | None = None,
    adapt: bool = False,
    label_smoothing: float = 0.0,
    gather: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Margin]:
    """Loss [N] of a margin on a road, and the margin as it was used (adapted to this batch if `adapt`).

    `gather` turns rows of this process into those of all processes that share the adaptive numbers (None: one process).
    """
    if adapt and margin.adaptive_fields:
        with torch.no_grad():
            batch = BatchStatistics.from_batch(
                backend.target(margin, y).theta,
                backend.x_norm,
                step,
                lambda of: backend.non_target_sums(of, y).log_sum,
                lambda: backend.largest_cosine(y),
                sample_mask,
                gather,
            )
            margin = margin.adapt_to_batch(batch)
    target, others = backend.target_and_non_target(margin, y, with_logit_sum=label_smoothing > 0)
    p = logit_with_margin(margin, target)
    loss = split_softmax(p, others.log_sum)
    if others.logit_sum is not None:
        loss = apply_label_smoothing(loss, p, others.logit_sum, backend.num_classes, label_smoothing)
    return loss, margin
