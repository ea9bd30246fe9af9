"""Heads to measure: ours on their roads, pytorch-metric-learning's, and those people copy, written as they are found.

The eager ones are plain autograd on all N×C logits with normalised copies of embeddings and weights; their margins
touch the target alone and their gradients are the loss's, which is more than many copies can say.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...others import fused


@dataclass(frozen=True)
class HeadImplementation:
    """A head by its name: `make(dim, classes)` gives a module whose `forward(x, y)` is a mean loss."""

    name: str
    library: str
    loss: str
    """Which loss it is: heads of the same loss can be compared in their gradients."""
    make: Callable[[int, int], nn.Module]
    keep_grad: bool = False
    """Whether steps zero the gradient of the step before and add to it, where others drop it."""


class EagerHead(nn.Module):
    """Cosines of everything with everything, and a loss on them."""

    def __init__(
        self, embedding_dim: int, num_classes: int, loss: Callable[[Tensor, Tensor, EagerHead], Tensor]
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_classes, embedding_dim) / embedding_dim**0.5)
        self.loss, self.num_classes = loss, num_classes
        self.s = math.sqrt(2.0) * math.log(max(2, num_classes - 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        cos = F.linear(F.normalize(x), F.normalize(self.weight)).clamp(-1 + 1e-7, 1 - 1e-7)
        return self.loss(cos, y, self)


class LinearCrossEntropy(nn.Module):
    """The linear layer and cross-entropy of torch."""

    def __init__(self, embedding_dim: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_classes, embedding_dim) / embedding_dim**0.5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, self.weight), y)


def _cross_entropy_with_target(cos: Tensor, y: Tensor, target_curve: Callable[[Tensor], Tensor], s: float) -> Tensor:
    own = cos.gather(1, y.unsqueeze(1))
    return F.cross_entropy(s * cos.scatter(1, y.unsqueeze(1), target_curve(own)), y)


def _arcface(cos: Tensor, y: Tensor, head: EagerHead) -> Tensor:
    return _cross_entropy_with_target(cos, y, lambda own: torch.cos(torch.acos(own) + 0.5), 64.0)


def _cosface(cos: Tensor, y: Tensor, head: EagerHead) -> Tensor:
    return _cross_entropy_with_target(cos, y, lambda own: own - 0.35, 64.0)


def _arcgrad(cos: Tensor, y: Tensor, head: EagerHead) -> Tensor:
    return F.cross_entropy(-10.0 * torch.acos(cos), y)


def _adacos(cos: Tensor, y: Tensor, head: EagerHead) -> Tensor:
    with torch.no_grad():
        others = torch.exp(head.s * cos).scatter(1, y.unsqueeze(1), 0.0).sum(1).mean()
        median = torch.acos(cos.gather(1, y.unsqueeze(1))).median().clamp(max=math.pi / 4)
        head.s = float(torch.log(others) / torch.cos(median))
    return F.cross_entropy(head.s * cos, y)


EAGER_LOSSES = {"arcface": _arcface, "cosface": _cosface, "arcgrad": _arcgrad, "adacos": _adacos}


class MeanLoss(nn.Module):
    """One of our heads with the mean of its losses."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    @property
    def weight(self) -> Tensor:
        return cast(Tensor, self.head.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = self.head(x, y).mean()
        return found


def widemargin_head(loss: str, backend: str) -> HeadImplementation:
    """One of our heads on a road."""

    def make(dim: int, classes: int) -> nn.Module:
        from ...head import Head

        return MeanLoss(Head(dim, classes, loss, backend=backend))

    return HeadImplementation(f"{loss}, {backend}", "widemargin", loss, make)


def with_kept_grad(implementation: HeadImplementation) -> HeadImplementation:
    """The same with a gradient that is kept from step to step, `zero_grad(set_to_none=False)`."""
    return replace(implementation, name=f"{implementation.name}, kept gradient", keep_grad=True)


class CompiledMeanLoss(MeanLoss):
    """One of our heads with compiled kernels although it is small, as with WIDEMARGIN_FUSED=1."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        before = os.environ.get("WIDEMARGIN_FUSED")
        os.environ["WIDEMARGIN_FUSED"] = "1"
        try:
            return super().forward(x, y)
        finally:
            del os.environ["WIDEMARGIN_FUSED"]
            if before is not None:
                os.environ["WIDEMARGIN_FUSED"] = before


def with_compiled_kernels(implementation: HeadImplementation) -> HeadImplementation:
    """The same with kernels compiled on request."""

    def make(dim: int, classes: int) -> nn.Module:
        return CompiledMeanLoss(cast(MeanLoss, implementation.make(dim, classes)).head)

    return replace(implementation, name=f"{implementation.name}, compiled", make=make)


def eager_head(loss: str) -> HeadImplementation:
    """A head as it is usually copied."""
    return HeadImplementation(
        f"{loss}, eager", "eager PyTorch", loss, lambda dim, classes: EagerHead(dim, classes, EAGER_LOSSES[loss])
    )


def linear_head() -> HeadImplementation:
    """No margin, no normalisation: what torch does best."""
    return HeadImplementation("linear + cross_entropy", "torch", "softmax", LinearCrossEntropy)


def metric_learning_heads() -> Iterator[HeadImplementation]:
    """pytorch-metric-learning's, with the same numbers; nothing if not installed."""
    try:
        from pytorch_metric_learning import losses as peer
    except ImportError:
        return
    library = "pytorch-metric-learning"
    yield HeadImplementation(
        "ArcFaceLoss", library, "arcface", lambda d, c: peer.ArcFaceLoss(c, d, margin=28.6479, scale=64)
    )
    yield HeadImplementation(
        "CosFaceLoss", library, "cosface", lambda d, c: peer.CosFaceLoss(c, d, margin=0.35, scale=64)
    )


def list_head_implementations(
    losses: list[str], backends: list[str], num_logits: int, baseline_losses: list[str]
) -> list[HeadImplementation]:
    """All contestants of a round: ours of `losses`, and others' of `rivals`."""
    found = [widemargin_head(loss, road) for loss in losses for road in backends]
    if num_logits >= fused.MIN_COMPILE_LOGITS:
        found += [with_kept_grad(contestant) for contestant in found]
    elif num_logits >= fused.MIN_FORCED_COMPILE_LOGITS and fused.can_compile(torch.device("cpu")):
        found += [with_compiled_kernels(contestant) for contestant in found]
    if baseline_losses:
        found += [linear_head(), *(eager_head(loss) for loss in baseline_losses if loss in EAGER_LOSSES)]
        found += [peer for peer in metric_learning_heads() if peer.loss in baseline_losses]
    return found
