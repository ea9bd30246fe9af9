"""Candidates for an ArcGrad that chooses its own scale; only this experiment uses them (docs/log.md has the outcome).

`eq19`: Eq. 19 at the median gap of the batch. `max_gradient`: the scale at which the batch's mean gradient
`mean_i s (1 − p_i)` is largest, from the exact probabilities. `learnt`: the optimizer learns the scale under a penalty
on it. `decay`: from large to small over the training, as the paper suggests for instability.
Scales stay within `LIMITS`; the first two follow the batch with a running mean of log s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ...losses.base import Loss, Number, option
from ...losses.grammar import parse
from ...losses.margin import BatchStatistics
from ...losses.margins.arcgrad import ArcGrad
from ...losses.schedule import Learnable
from ...theory import suggest_scale

LIMITS = (1.0, 60.0)
_START = 10.0
_MOMENTUM = 0.95  # of the running mean of log s over batches
_GRID_SIZE = 13


@dataclass(frozen=True, repr=False)
class _FollowingScale(ArcGrad):
    """ArcGrad whose scale follows what each batch suggests."""

    adaptive_fields = ("s",)

    s: Number = option(_START, "initial scale", low=0, open_low=True)

    def suggested_scale(self, batch: BatchStatistics) -> Tensor:
        """Scale suggested by this batch alone: one number, or [K, 1] for a stack."""
        raise NotImplementedError

    def adapt_to_batch(self, batch: BatchStatistics) -> Self:
        if batch.theta.numel() == 0:
            return self
        new = self.suggested_scale(batch).clamp(*LIMITS)
        previous = torch.as_tensor(self.s, dtype=new.dtype, device=new.device)
        return self.with_values(s=torch.exp(_MOMENTUM * previous.log() + (1.0 - _MOMENTUM) * new.log()))


@dataclass(frozen=True, repr=False)
class Eq19Scale(_FollowingScale):
    """Eq. 19 at the median gap of the batch; the largest scale where that gap is not positive."""

    name = "arcgrad_eq19"

    product: float = option(1.0, "scale times gap of Eq. 19, from the number of classes", low=0)

    def for_num_classes(self, num_classes: int) -> Self:
        return replace(super().for_num_classes(num_classes), product=suggest_scale(num_classes, 1.0))

    def suggested_scale(self, batch: BatchStatistics) -> Tensor:
        gap = batch.median(batch.nearest_other_theta() - batch.theta)
        return self.product / gap.clamp(min=self.product / LIMITS[1])


@dataclass(frozen=True, repr=False)
class MaxGradientScale(_FollowingScale):
    """The scale of a grid at which the mean over the batch of `s (1 − p)` is largest."""

    name = "arcgrad_max_gradient"

    def suggested_scale(self, batch: BatchStatistics) -> Tensor:
        low, high = (math.log(limit) for limit in LIMITS)
        scales = [math.exp(low + (high - low) * k / (_GRID_SIZE - 1)) for k in range(_GRID_SIZE)]
        gradients = []
        for s in scales:
            value = torch.full_like(batch.mean(batch.theta), s)
            others = batch.logsumexp_others(self.with_values(s=value))
            gradients.append(batch.mean(s * torch.sigmoid(others + s * batch.theta)))
        best = torch.stack(gradients).argmax(0)
        return torch.tensor(scales, dtype=batch.theta.dtype, device=batch.theta.device)[best]


@dataclass(frozen=True, repr=False)
class LearntScale(ArcGrad):
    """A learnt scale with the penalty `weight · s` on the loss; without it separable classes make it grow for ever."""

    name = "arcgrad_learnt"

    weight: float = option(0.01, "factor of the penalty", low=0)

    def sample_penalty(self) -> Tensor | None:
        return self.weight * self.s if isinstance(self.s, Tensor) else None


def candidates(num_steps: int) -> dict[str, Loss]:
    """The candidates by name, for a training of so many steps.

    >>> sorted(candidates(300))
    ['decay', 'eq19', 'learnt', 'max_gradient']
    """
    decay = parse(f"arcgrad(s=decay(60, 5, steps={num_steps}))")
    assert isinstance(decay, Loss)
    return {
        "eq19": Eq19Scale(),
        "max_gradient": MaxGradientScale(),
        "learnt": LearntScale(s=Learnable(_START)),
        "decay": decay,
    }
