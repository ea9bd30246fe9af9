"""Criterion: a classical loss on predictions and targets, → [N]; where the line of descent begins.

Thin over torch where torch has it. In an `Objective` a criterion brings its own linear layer from
the embedding to the classes (or to the predicted values).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from .errors import InputError
from .labels import (
    check_embeddings,
    check_mix,
    check_share,
    elsewhere,
    is_plain_float,
    kind_of,
    must_not_wait,
    of_counted,
)
from .option import Loss
from .precision import at_least_fp32, island


class Criterion(Loss):
    """A loss on predictions; subclasses write `pointwise`."""

    kind: ClassVar[str] = "classical"
    takes: ClassVar[str] = "values"
    """What it is given: `values` (regression), `answers` (a logit per yes or no) or `classes` (logits of C classes)."""
    chooses: ClassVar[bool] = False
    """Whether it can tell one of C classes, given logits [N, C] and class numbers [N]."""

    def pointwise(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss of every prediction, [N] or [N, …]."""
        raise NotImplementedError

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Loss [N]: the mean over everything but the first dimension."""
        if not is_plain_float(prediction) or prediction.ndim == 0:
            raise InputError(
                f"{self.name}: predictions must be a float tensor [N] or [N, …], got {kind_of(prediction)}"
            )
        if not isinstance(target, Tensor) or target.ndim == 0 or len(target) != len(prediction) or target.is_complex():
            raise InputError(f"{self.name}: one target per prediction is needed ({len(prediction)})")
        if target.device != prediction.device:
            raise elsewhere("targets", target, "predictions", prediction.device)
        with island(prediction):
            loss = self.pointwise(at_least_fp32(prediction), target)
            return loss.flatten(1).mean(1) if loss.ndim > 1 else loss

    def build(self, dim: int, classes: int) -> CriterionPart:
        """The module that an `Objective` holds."""
        return CriterionPart(self, dim, classes)


def same_shape(name: str, prediction: Tensor, target: Tensor) -> Tensor:
    """The target in the prediction's dtype, once their shapes agree."""
    if prediction.shape != target.shape:
        raise InputError(
            f"{name}: target {list(target.shape)} must have the prediction's shape {list(prediction.shape)}"
        )
    return target.to(prediction.dtype)


def probabilities(what: str, values: Tensor) -> Tensor:
    """The values, once they are seen to lie in [0, 1]; a compiled step does not look."""
    if values.numel() and not must_not_wait(values):
        outside = (values.detach() < 0) | (values.detach() > 1)
        if outside.any():
            worst = values.detach()[outside].flatten()[0].item()
            raise InputError(f"{what} must lie between 0 and 1, got {worst:g}")
    return values


class CriterionPart(nn.Module):
    """A linear layer under a criterion."""

    def __init__(self, criterion: Criterion, dim: int, classes: int) -> None:
        super().__init__()
        self.criterion = criterion
        self.linear = nn.Linear(dim, classes)

    def logits(self, x: Tensor) -> Tensor:
        """Predictions [N, C]."""
        check_embeddings(x, self.linear.in_features, self.linear.weight.device)
        with island(x):
            prediction: Tensor = self.linear(x.to(self.linear.weight.dtype))
            return prediction

    def forward(
        self, x: Tensor, y: Tensor, mix: tuple[Tensor, Any] | None = None, ignore_index: int | None = None
    ) -> Tensor:
        """Loss [N]; `mix=(y_b, lam)` and `ignore_index` as in `Head`."""
        prediction = self.logits(x)
        if isinstance(y, Tensor) and y.ndim == 1 and prediction.shape[1] == 1:
            prediction = prediction.squeeze(1)
        loss = of_counted(self.criterion, prediction, y, ignore_index)
        if mix is not None:
            y_b, lam = check_mix(mix)
            share = check_share(lam, loss)
            loss = share * loss + (1.0 - share) * of_counted(self.criterion, prediction, y_b, ignore_index)
        return loss

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.criterion!r}, {self.linear.in_features}, {self.linear.out_features})"
