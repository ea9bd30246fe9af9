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
class Contestant:
    """A head by its name: `make(dim, classes)` gives a module whose `forward(x, y)` is a mean loss."""

    name: str
    library: str
    loss: str
    """Which loss it is: heads of the same loss can be compared in their gradients."""
    make: Callable[[int, int], nn.Module]
    keep: bool = False
    """Whether steps zero the gradient of the step before and add to it, where others drop it."""


class Eager(nn.Module):
    """Cosines of everything with everything, and a loss on them."""

    def __init__(self, dim: int, classes: int, loss: Callable[[Tensor, Tensor, Eager], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, dim) / dim**0.5)
        self.loss, self.classes = loss, classes
        self.s = math.sqrt(2.0) * math.log(max(2, classes - 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        cos = F.linear(F.normalize(x), F.normalize(self.weight)).clamp(-1 + 1e-7, 1 - 1e-7)
        return self.loss(cos, y, self)


class Plain(nn.Module):
    """The linear layer and cross-entropy of torch."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, dim) / dim**0.5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, self.weight), y)


def _with_target(cos: Tensor, y: Tensor, target: Callable[[Tensor], Tensor], s: float) -> Tensor:
    own = cos.gather(1, y.unsqueeze(1))
    return F.cross_entropy(s * cos.scatter(1, y.unsqueeze(1), target(own)), y)


def _arcface(cos: Tensor, y: Tensor, head: Eager) -> Tensor:
    return _with_target(cos, y, lambda own: torch.cos(torch.acos(own) + 0.5), 64.0)


def _cosface(cos: Tensor, y: Tensor, head: Eager) -> Tensor:
    return _with_target(cos, y, lambda own: own - 0.35, 64.0)


def _arcgrad(cos: Tensor, y: Tensor, head: Eager) -> Tensor:
    return F.cross_entropy(-10.0 * torch.acos(cos), y)


def _adacos(cos: Tensor, y: Tensor, head: Eager) -> Tensor:
    with torch.no_grad():
        others = torch.exp(head.s * cos).scatter(1, y.unsqueeze(1), 0.0).sum(1).mean()
        median = torch.acos(cos.gather(1, y.unsqueeze(1))).median().clamp(max=math.pi / 4)
        head.s = float(torch.log(others) / torch.cos(median))
    return F.cross_entropy(head.s * cos, y)


EAGER = {"arcface": _arcface, "cosface": _cosface, "arcgrad": _arcgrad, "adacos": _adacos}


class Mean(nn.Module):
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


def ours(loss: str, road: str) -> Contestant:
    """One of our heads on a road."""

    def make(dim: int, classes: int) -> nn.Module:
        from ...head import Head

        return Mean(Head(dim, classes, loss, road=road))

    return Contestant(f"{loss}, {road}", "widemargin", loss, make)


def kept(contestant: Contestant) -> Contestant:
    """The same with a gradient that is kept from step to step, `zero_grad(set_to_none=False)`."""
    return replace(contestant, name=f"{contestant.name}, kept gradient", keep=True)


class Compiled(Mean):
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


def compiled(contestant: Contestant) -> Contestant:
    """The same with kernels compiled on request."""

    def make(dim: int, classes: int) -> nn.Module:
        return Compiled(cast(Mean, contestant.make(dim, classes)).head)

    return replace(contestant, name=f"{contestant.name}, compiled", make=make)


def eager(loss: str) -> Contestant:
    """A head as it is usually copied."""
    return Contestant(f"{loss}, eager", "eager PyTorch", loss, lambda dim, classes: Eager(dim, classes, EAGER[loss]))


def plain() -> Contestant:
    """No margin, no normalisation: what torch does best."""
    return Contestant("linear + cross_entropy", "torch", "softmax", Plain)


def metric_learning() -> Iterator[Contestant]:
    """pytorch-metric-learning's, with the same numbers; nothing if not installed."""
    try:
        from pytorch_metric_learning import losses as peer
    except ImportError:
        return
    library = "pytorch-metric-learning"
    yield Contestant("ArcFaceLoss", library, "arcface", lambda d, c: peer.ArcFaceLoss(c, d, margin=28.6479, scale=64))
    yield Contestant("CosFaceLoss", library, "cosface", lambda d, c: peer.CosFaceLoss(c, d, margin=0.35, scale=64))


def field(losses: list[str], roads: list[str], logits: int, rivals: list[str]) -> list[Contestant]:
    """All contestants of a round: ours of `losses`, and others' of `rivals`."""
    found = [ours(loss, road) for loss in losses for road in roads]
    if logits >= fused.FROM:
        found += [kept(contestant) for contestant in found]
    elif logits >= fused.ASKED_FROM and fused.available(torch.device("cpu")):
        found += [compiled(contestant) for contestant in found]
    if rivals:
        found += [plain(), *(eager(loss) for loss in rivals if loss in EAGER)]
        found += [peer for peer in metric_learning() if peer.loss in rivals]
    return found
