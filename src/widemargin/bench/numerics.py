"""`widemargin bench numerics`: how exact the gradients are, ours beside pytorch-metric-learning's.

Error is ‖g − g64‖ / ‖g64‖ of the fp32 gradient against the same head in fp64 on the same inputs, the
larger of the one to x and the one to W. Regimes: random initialisation, and embeddings pulled
towards their class until the mean loss is 1e-2, 1e-4, 1e-6 (a dash where a loss cannot get there:
its scale bounds it from below). Degenerate points: x = w_y, x = −w_y, x = w_other and x = 0, in
fp32, fp16 and bf16; what is shown is whether loss and gradient are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..angle import direction
from ..catalogue import losses, parse_margin
from ..head import Head
from ..margin import Margin

SAMPLES, DIM, CLASSES = 256, 512, 1000
TARGET_LOSSES = (1e-2, 1e-4, 1e-6)
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Contestant:
    """A loss to measure: a name, and how to make it on given class weights [C, D] in a dtype."""

    name: str
    library: str
    make: Callable[[Tensor], tuple[LossFunction, nn.Parameter]]
    length: float
    """Length of the embeddings: 1 on the sphere, 64 where the loss keeps it, to reach small losses."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    library: str
    initial: float
    trained: tuple[float | None, ...]
    finite: dict[str, bool]


def ours(spec: str, road: str = "dense") -> Contestant:
    """One of our margins."""
    margin: Margin = parse_margin(spec)

    def make(weight: Tensor) -> tuple[LossFunction, nn.Parameter]:
        head = Head(weight.shape[1], weight.shape[0], margin, road=road, dtype=weight.dtype)
        with torch.no_grad():
            head.weight.copy_(weight)
        return head, head.weight

    return Contestant(repr(margin), f"widemargin, {road}", make, 64.0 if margin.keeps_x else 1.0)


def peers() -> Iterator[Contestant]:
    """The margins that pytorch-metric-learning has, with the same numbers; nothing if not installed."""
    try:
        from pytorch_metric_learning import losses as peer
    except ImportError:
        return

    def contestant(name: str, build: Callable[[int, int], Any], length: float = 1.0) -> Contestant:
        def make(weight: Tensor) -> tuple[LossFunction, nn.Parameter]:
            loss = build(weight.shape[0], weight.shape[1]).to(weight.dtype)
            with torch.no_grad():
                loss.W.copy_(weight.T)
            loss.reducer = _per_sample(loss.reducer)
            return loss, loss.W

        return Contestant(name, "pytorch-metric-learning", make, length)

    yield contestant("ArcFaceLoss", lambda c, d: peer.ArcFaceLoss(c, d, margin=28.6479, scale=64))
    yield contestant("CosFaceLoss", lambda c, d: peer.CosFaceLoss(c, d, margin=0.35, scale=64))
    yield contestant("NormalizedSoftmaxLoss", lambda c, d: peer.NormalizedSoftmaxLoss(c, d, temperature=1 / 30))
    yield contestant("SphereFaceLoss", lambda c, d: peer.SphereFaceLoss(c, d, margin=4, scale=1), 64.0)
    yield contestant("LargeMarginSoftmaxLoss", lambda c, d: peer.LargeMarginSoftmaxLoss(c, d, margin=2, scale=1), 64.0)


def _per_sample(reducer: Any) -> Any:
    from pytorch_metric_learning.reducers import DoNothingReducer

    class Elements(DoNothingReducer):  # type: ignore[misc]
        def forward(self, loss_dict: Any, embeddings: Tensor, labels: Tensor) -> Tensor:
            elements: Tensor = loss_dict["loss"]["losses"]
            return elements

    return Elements()


def measure(contestant: Contestant) -> Row:
    """All figures of one loss."""
    x, y, weight = inputs(contestant.length)
    return Row(
        name=contestant.name,
        library=contestant.library,
        initial=gradient_error(contestant, x, y, weight),
        trained=tuple(_trained_error(contestant, x, y, weight, target) for target in TARGET_LOSSES),
        finite={name: all_finite(contestant, weight, dtype) for name, dtype in DTYPES.items()},
    )


def inputs(length: float) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings [N, D] in random directions, labels [N], class weights [C, D] of length about 1."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, DIM, generator=draw)
    weight = torch.randn(CLASSES, DIM, generator=draw) / DIM**0.5
    return direction(x)[0] * length, torch.randint(CLASSES, (SAMPLES,), generator=draw), weight


def pulled(x: Tensor, y: Tensor, weight: Tensor, share: float) -> Tensor:
    """Embeddings of the same length, turned towards their class by `share` (0: as they are, 1: there)."""
    own, (start, length) = direction(weight[y])[0], direction(x)
    return direction((1 - share) * start + share * own)[0] * length.unsqueeze(1)


def gradients(contestant: Contestant, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss [N] and the gradients of its sum to x and to the class weights."""
    function, parameter = contestant.make(weight)
    x = x.clone().requires_grad_()
    loss = function(x, y)
    to_x, to_weight = torch.autograd.grad(loss.sum(), (x, parameter))
    return loss.detach(), to_x, to_weight


def gradient_error(contestant: Contestant, x: Tensor, y: Tensor, weight: Tensor) -> float:
    """The larger relative error of the two fp32 gradients against fp64 on the same inputs."""
    _, *single = gradients(contestant, x, y, weight)
    _, *double = gradients(contestant, x.double(), y, weight.double())
    return max(float(torch.dist(g.double(), h) / torch.linalg.norm(h)) for g, h in zip(single, double, strict=True))


def _trained_error(contestant: Contestant, x: Tensor, y: Tensor, weight: Tensor, target: float) -> float | None:
    """Error where the mean fp64 loss is `target`, found by bisection; None where it cannot be reached."""

    def mean_loss(share: float) -> float:
        function, _ = contestant.make(weight.double())
        with torch.no_grad():
            return float(function(pulled(x.double(), y, weight.double(), share), y).mean())

    low, high = 0.0, 0.995
    if mean_loss(high) > target:
        return None
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_loss(middle) > target else (low, middle)
    return gradient_error(contestant, pulled(x, y, weight, high), y, weight)


def all_finite(contestant: Contestant, weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether loss and gradients are finite at x = w_y, −w_y, w_other and 0."""
    rows = direction(weight[:4])[0]
    x = torch.stack([rows[0], -rows[1], rows[3], torch.zeros_like(rows[2])]).to(dtype)
    loss, to_x, to_weight = gradients(contestant, x, torch.tensor([0, 1, 2, 2]), rows)
    return all(bool(torch.isfinite(t).all()) for t in (loss, to_x, to_weight))


def contestants(wanted: list[str] | None = None, road: str = "dense") -> list[Contestant]:
    """Our margins (all, or those asked for) and the peers.

    Where a margin's own scale is too small for the small losses, it comes once more with s = 64.
    """
    specs = wanted or [spelling for name in losses("margins") for spelling in _spellings(name)]
    return [*(ours(spec, road) for spec in specs), *peers()]


def _spellings(name: str) -> list[str]:
    small = "s" in type(parse_margin(name)).options() and (parse_margin(name).sized(CLASSES).s or 0.0) < 64.0
    return [name, f"{name}(s=64)"] if small else [name]
