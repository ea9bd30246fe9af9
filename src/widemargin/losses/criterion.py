"""Criterion: base of classical losses on predictions and targets, → [N].

A thin layer over torch where torch has the loss. In an `Objective` a criterion has its own linear layer from the
embedding to the classes (or to the predicted values).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from ..io.errors import InputError
from ..numerics.distributed import check_unsharded
from ..numerics.precision import at_least_fp32, autocast_disabled
from ..numerics.validation import (
    apply_with_ignore_index,
    check_embeddings,
    check_mix,
    check_mix_lam,
    describe_type,
    device_mismatch_error,
    is_plain_float,
    must_not_sync,
)
from .base import Loss


class Criterion(Loss):
    """A loss on predictions; subclasses define `elementwise_loss`."""

    kind: ClassVar[str] = "classical"
    target_type: ClassVar[str] = "values"
    """Kind of targets: `values` (regression), `answers` (binary, one per logit) or `classes` (one of C)."""
    is_multiclass: ClassVar[bool] = False
    """True if it can train a classifier, given logits [N, C] and class numbers [N]."""

    def elementwise_loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the loss of every prediction, [N] or [N, …]."""
        raise NotImplementedError

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the loss [N]: the mean over all dimensions but the first."""
        if not is_plain_float(prediction) or prediction.ndim == 0:
            raise InputError(
                f"{self.name}: predictions must be a float tensor [N] or [N, …], got {describe_type(prediction)}"
            )
        if not isinstance(target, Tensor) or target.ndim == 0 or len(target) != len(prediction) or target.is_complex():
            raise InputError(f"{self.name}: targets must be a tensor, one target per prediction ({len(prediction)})")
        if target.device != prediction.device:
            raise device_mismatch_error("targets", target, "predictions", prediction.device)
        with autocast_disabled(prediction):
            loss = self.elementwise_loss(at_least_fp32(prediction), target)
            return loss.flatten(1).mean(1) if loss.ndim > 1 else loss

    def build(self, embedding_dim: int, num_classes: int) -> CriterionModule:
        """Return the module for an `Objective`."""
        return CriterionModule(self, embedding_dim, num_classes)


def check_target_shape(name: str, prediction: Tensor, target: Tensor) -> Tensor:
    """Return the target in the prediction's dtype; raise an error if their shapes differ."""
    if prediction.shape != target.shape:
        raise InputError(
            f"{name}: target {list(target.shape)} must have the prediction's shape {list(prediction.shape)}"
        )
    return target.to(prediction.dtype)


def check_probabilities(what: str, values: Tensor) -> Tensor:
    """Return the values; raise an error if some lie outside [0, 1] (not checked while compiling)."""
    if values.numel() and not must_not_sync(values):
        outside = (values.detach() < 0) | (values.detach() > 1)
        if outside.any():
            worst = values.detach()[outside].flatten()[0].item()
            raise InputError(f"{what} must lie between 0 and 1, got {worst:g}")
    return values


class CriterionModule(nn.Module):
    """A linear layer followed by a criterion."""

    def __init__(self, criterion: Criterion, embedding_dim: int, num_classes: int) -> None:
        super().__init__()
        self.criterion = criterion
        self.linear = nn.Linear(embedding_dim, num_classes)

    def logits(self, x: Tensor) -> Tensor:
        """Predictions [N, C]."""
        check_unsharded(self.linear.weight, "the weights")
        check_embeddings(x, self.linear.in_features, self.linear.weight.device)
        with autocast_disabled(x):
            prediction: Tensor = self.linear(x.to(self.linear.weight.dtype))
            return prediction

    def forward(
        self, x: Tensor, y: Tensor, mix: tuple[Tensor, Any] | None = None, ignore_index: int | None = None
    ) -> Tensor:
        """Loss [N]; `mix=(y_b, lam)` and `ignore_index` as in `Head`."""
        prediction = self.logits(x)
        if isinstance(y, Tensor) and y.ndim == 1 and prediction.shape[1] == 1:
            prediction = prediction.squeeze(1)
        loss = apply_with_ignore_index(self.criterion, prediction, y, ignore_index)
        if mix is not None:
            y_b, lam = check_mix(mix)
            share = check_mix_lam(lam, loss)
            loss = share * loss + (1.0 - share) * apply_with_ignore_index(self.criterion, prediction, y_b, ignore_index)
        return loss

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.criterion!r}, {self.linear.in_features}, {self.linear.out_features})"
