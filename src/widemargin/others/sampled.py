"""The sampled road (Partial FC): the classes of the batch and a random part of the others, drawn anew every step.

Not the exact loss: the sum runs over the drawn classes alone, and adaptive numbers see only those. The gradient of the
class weights is sparse, a row for every class drawn; `RowOptimizer` moves just these rows with any optimizer. With a
rate of 1 nothing is drawn and everything is exact. Reference: Partial FC (arXiv 2010.05222).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..margin import Margin
from .rays import Rays
from .road import Others, Target, TargetLogit
from .room import Room
from .stream import Stream


class _Rows(torch.autograd.Function):
    """Some rows of the weights; their gradient is sparse."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, which: Tensor) -> Tensor:
        ctx.save_for_backward(which)
        ctx.shape = weight.shape
        return weight.index_select(0, which)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (which,) = ctx.saved_tensors
        found = torch.sparse_coo_tensor(
            which.unsqueeze(0), gradient, ctx.shape, is_coalesced=True, check_invariants=False
        )
        return found, None


@torch.no_grad()
def drawn(y: Tensor, classes: int, rate: float) -> Tensor:
    """Classes of a step in rising order: all labels that lie within `classes`, and others up to the rate."""
    lots = torch.rand(classes, dtype=torch.float32, device=y.device)
    lots[y[(y >= 0) & (y < classes)]] = 2.0  # certain to be among the largest
    count = max(math.ceil(rate * classes), int((lots == 2.0).sum()), 2)
    return lots.topk(min(count, classes), sorted=False).indices.sort().values


class Sampled:
    """A road over drawn classes; one drawing for everything that is asked about the same labels."""

    def __init__(
        self, margin: Margin, rays: Rays, weight: Tensor, bias: Tensor | None, rate: float, room: Room | None = None
    ) -> None:
        self.margin, self.rays, self.weight, self.bias, self.rate = margin, rays, weight, bias, rate
        self.classes, self.lengths = len(weight), rays.length
        self._room, self._learns = room, torch.is_grad_enabled()
        self._of: tuple[Tensor, Stream, Tensor] | None = None

    def _stream(self, y: Tensor) -> tuple[Stream, Tensor]:
        """The road over the classes drawn for these labels, and the labels counted among them."""
        if self._of is None or self._of[0] is not y:
            which = drawn(y, len(self.weight), self.rate)
            with torch.set_grad_enabled(self._learns):  # who asks first may be an adaptive margin, without a gradient
                rows: Tensor = _Rows.apply(self.weight, which)  # type: ignore[no-untyped-call]
                bias = None if self.bias is None else self.bias[which]
            place = torch.searchsorted(which, y)
            inside = (y >= 0) & (y < len(self.weight))  # another rank's classes are nobody's here
            column = torch.where(inside, place, torch.full_like(place, -1))
            self._of = (y, Stream(self.margin, self.rays, rows, bias, self._room), column)
        return self._of[1], self._of[2]

    def target(self, margin: Margin, y: Tensor) -> Target:
        road, column = self._stream(y)
        return road.target(margin, column)

    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target | TargetLogit, Others]:
        road, column = self._stream(y)
        found: tuple[Target | TargetLogit, Others] = road.both(margin, column, total)
        return found

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        return self.both(margin, y, total)[1]

    def largest_cosine(self, y: Tensor) -> Tensor:
        road, column = self._stream(y)
        found: Tensor = road.largest_cosine(column)
        return found
