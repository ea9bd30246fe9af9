"""Regularizer: a penalty on the class weights of another part of a sum, `arcface + 0.1*mhe`.

It is computed for the classes of the batch, (W [C, K, D], y [N]) → [N], so that its cost is N × C like that of the
logits, and the mean over a batch is that over the samples. It has no weights of its own: `Objective` hands it those of
the first part that has some.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..numerics.angles import group_weights, unit_and_norm
from ..numerics.precision import at_least_fp32, autocast_disabled
from ..numerics.validation import apply_with_ignore_index, check_labels_or_defer, check_mix, check_mix_lam
from .base import Loss


class Regularizer(Loss):
    """A penalty on class weights; subclasses write `penalty`."""

    kind: ClassVar[str] = "regularizer"

    def penalty(self, cos: Tensor, is_other: Tensor) -> Tensor:
        """Penalty [...] of weights, from cosines to all weights [..., M] and the mask of those of other classes."""
        raise NotImplementedError

    def class_penalties(self, weight: Tensor, y: Tensor) -> Tensor:
        """Penalty [N] of the classes `y` [N] under weights [C, D], or [C, K, D] with K sub-centres."""
        unit = unit_and_norm(at_least_fp32(group_weights(weight)))[0]
        classes, count, _ = unit.shape
        cos = unit[y] @ unit.flatten(0, 1).T  # [N, K, C·K]
        owner = torch.arange(classes, device=y.device).repeat_interleave(count)
        is_other = (owner != y.view(-1, 1)).unsqueeze(1).expand_as(cos)
        return self.penalty(cos, is_other).mean(1)

    def build(self, embedding_dim: int, num_classes: int) -> RegularizerModule:
        """The module that an `Objective` holds."""
        return RegularizerModule(self)


class RegularizerModule(nn.Module):
    """A regularizer inside an objective, which hands it the class weights."""

    def __init__(self, regularizer: Regularizer) -> None:
        super().__init__()
        self.regularizer = regularizer

    def forward(
        self, weight: Tensor, y: Tensor, mix: tuple[Tensor, Any] | None = None, ignore_index: int | None = None
    ) -> Tensor:
        """Penalty [N]; `mix=(y_b, lam)` and `ignore_index` as in `Head`."""

        def penalties(_: Tensor, labels: Tensor) -> Tensor:
            in_range = check_labels_or_defer(labels, len(labels), len(weight), None, weight.device)
            classes = labels.long() if in_range is None else labels.long().clamp(0, len(weight) - 1)
            return self.regularizer.class_penalties(weight, classes)

        with autocast_disabled(weight):
            rows = weight.new_zeros(len(y))
            found = apply_with_ignore_index(penalties, rows, y, ignore_index)
            if mix is not None:
                y_b, lam = check_mix(mix)
                share = check_mix_lam(lam, found)
                found = share * found + (1.0 - share) * apply_with_ignore_index(penalties, rows, y_b, ignore_index)
            return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.regularizer!r})"
