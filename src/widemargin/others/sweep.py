"""A sweep over the classes, block by block: products once, sums forward, gradients backward.

The products are kept where the gradient of the class weights will be: row j of the gradient has room for D numbers,
the products of class j with N embeddings are N. Backward reads a block of them and writes that block's gradient over
them. So there is no N×C matrix and no fourth matrix product; where N is larger than the room, the rest is computed
again. Never a normalised copy of the weights either: 1/‖w‖ is taken of a block while it is in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import angle
from . import block as kernels
from . import fused
from .block import Block, Kind

_ENTRIES = 1 << 18  # of one block×N matrix: large enough to make up for a block's fixed cost, small beside the rest
_KEPT_APART = 1 << 20  # products that are so few are kept by themselves where the gradient has no room for them
_FEW = 64
_LEAST_SUM = 0.5
_LOW, _HIGH = 1e-15, 1e15  # lengths whose squares and inverses are safe in fp32


def rows_of_a_block(samples: int, dim: int) -> int:
    """How many classes are worked on together at the most, 64 to 4096."""
    most = min(_ENTRIES // max(samples, 1), 4 * _ENTRIES // max(dim, 1))
    return min(4096, max(64, most - most % 64))


def even_rows(classes: int, most: int) -> int:
    """About that many rows, so that hardly any class is left for a last, smaller block: it costs more than its share.

    >>> even_rows(10_000, 1024), even_rows(100_003, 1024), even_rows(500, 1024)
    (1000, 1000, 500)
    """
    if classes <= most:
        return max(classes, 1)
    return min(range(most, most * 3 // 4, -1), key=lambda rows: classes % rows)


class Sweep:
    """The products of embeddings `a` [N, D] with all class weights [C, D], kept as long as there is room."""

    def __init__(self, kind_divides: bool, a: Tensor, weight: Tensor, room: Tensor | None) -> None:
        self.a, self.weight, self.room, self.divides = a, weight, room, kind_divides
        self.step = even_rows(len(weight), rows_of_a_block(*a.shape))
        self.inverse = torch.empty(len(weight), dtype=a.dtype, device=a.device)
        self.kept = room if room is None else _as_products(room, a)
        self.columns = 0 if self.kept is None else min(len(a), self.kept.shape[1])
        if self.columns < len(a) and len(a) * len(weight) <= _KEPT_APART:
            self.kept, self.columns = a.new_empty(len(weight), len(a)), len(a)
        self.filled = self.measured = False
        self.odd: set[int] = set()  # blocks with weights of extreme or no length
        self.scratch: Tensor | None = None
        self.kernels: dict[Any, Callable[..., Any]] = {}

    def blocks(self) -> Iterator[slice]:
        """Slices of classes; from the last to the first on the way back, whose weights are still in the cache."""
        starts = range(0, len(self.weight), self.step)
        for start in reversed(starts) if self.measured else starts:
            yield slice(start, min(start + self.step, len(self.weight)))

    def rows(self, block: slice) -> tuple[Tensor, Tensor | None]:
        """A block of class weights in the working dtype, and by what its rows were multiplied to be safe, if at all."""
        rows = self.weight[block].to(self.a.dtype)
        if block.start not in self.odd:
            return rows, None
        # Very long, very short or zero weights: their directions, which are as good as any other's.
        unit, length = angle.direction(rows)
        self.inverse[block] = (length > 0).to(rows.dtype)
        return unit, kernels.inverse_of(length)

    def measure(self, block: slice, rows: Tensor) -> bool:
        """Take down the inverse lengths of a block's weights; whether they are safe. After their product: it waits less
        for memory than a norm does."""
        length = torch.linalg.vector_norm(rows, dim=1)
        low, high = torch.stack(torch.aminmax(length)).tolist()  # one wait
        if low > _LOW and high < _HIGH:
            torch.reciprocal(length, out=self.inverse[block])
            return True
        self.odd.add(block.start)
        return False

    def products(self, block: slice, rows: Tensor) -> Tensor:
        """Products [B, N] of a block: kept ones if there are any, else computed, and kept as far as there is room."""
        size, count = block.stop - block.start, len(self.a)
        whole = self.kept is not None and self.columns == count
        if whole:
            assert self.kept is not None
            place = self.kept[block, :count]
            return place if self.filled else torch.mm(rows, self.a.T, out=place)
        if self.scratch is None:
            self.scratch = self.a.new_empty(self.step, count)
        place = self.scratch[:size]
        if not self.filled or self.kept is None:
            torch.mm(rows, self.a.T, out=place)
            if self.kept is not None:
                self.kept[block, : self.columns] = place[:, : self.columns]
            return place
        place[:, : self.columns] = self.kept[block, : self.columns]
        torch.mm(rows, self.a[self.columns :].T, out=place[:, self.columns :])
        return place

    def walk(
        self, y: Tensor, x_length: Tensor, bias: Tensor | None
    ) -> Iterator[tuple[slice, Tensor, Tensor | None, Block]]:
        """Every block as the kernels take it, with its rows and their factor."""
        columns = y.to(torch.int32)  # half the width of the comparisons that find the targets
        x_length, bias = x_length.detach(), None if bias is None else bias.detach()
        for place in self.blocks():
            rows, factor = self.rows(place)
            part = None if bias is None else bias[place].to(self.a.dtype)
            raw = self.products(place, rows)
            if self.divides and not self.measured and not self.measure(place, rows):
                rows, factor = self.rows(place)
                raw = self.products(place, rows)
            yield place, rows, factor, Block(raw, self.inverse[place], x_length, columns - place.start, part)
        self.filled, self.measured = self.kept is not None, True

    def run(self, function: Callable[..., Any], kind: Kind, block: Block, inputs: Sequence[Tensor]) -> Any:
        """A kernel on a block: compiled where the head is large and the block a full one."""
        if block.raw.shape[0] != self.step:
            return function(kind, block, *inputs)
        # The block is the same throughout a sweep; a kernel is compiled for the dtypes and shapes of the rest.
        key = (function, kind, tuple((t.dtype, t.shape) for t in inputs))
        found = self.kernels.get(key)
        if found is None:
            large = fused.wanted(len(self.a) * len(self.weight), self.a.device)
            found = self.kernels[key] = fused.kernel(function, kind, block, inputs) if large else function
        return found(kind, block, *inputs)

    # ---------------------------------------------------------------- forward

    @torch.no_grad()
    def log_sum(
        self, kind: Kind, y: Tensor, x_length: Tensor, bias: Tensor | None, numbers: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`L` [N] over the classes that are not the target, its own product, and the others' sum (0 if unwanted)."""
        anchor = running = total = None
        numbers = [number.detach() for number in numbers]
        for _, _, _, block in self.walk(y, x_length, bias):
            if anchor is None:
                # The largest of the first few logits serves all: sums of exp have room for e^88 above it.
                few = block._replace(raw=block.raw[:_FEW], inverse=block.inverse[:_FEW], bias=_first(block.bias))
                (top,) = kernels.peak(kind, few, *numbers)
                anchor = torch.where(top == -torch.inf, torch.zeros_like(top), top)
            found = self.run(kernels.sums, kind, block, (anchor, *numbers))
            running = found[0] if running is None else running + found[0]
            if kind.total:
                total = found[1] if total is None else total + found[1]
        assert anchor is not None
        assert running is not None
        # Rarely: a later block holds a logit far above the first's; or the first few were the target alone, so that the
        # anchor is 0 and exp underflows far below it. With a true anchor the sum is at least 1.
        far_off = (running == torch.inf) | (running < _LEAST_SUM)
        if len(self.weight) > 1 and bool(far_off.any()):
            anchor, running = self._sum_below_the_peak(kind, y, x_length, bias, numbers)
        log_sum = (anchor.to(running.dtype) + torch.log(running)).to(self.a.dtype)
        return log_sum, self._own(y), torch.zeros_like(log_sum) if total is None else total.to(self.a.dtype)

    def _own(self, y: Tensor) -> Tensor:
        """The products [N] of the targets, after a whole sweep; 0 where a target is another rank's."""
        rows = y.clamp(0, len(self.weight) - 1)
        if self.kept is not None and self.filled and self.columns == len(self.a):
            found = self.kept[rows, torch.arange(len(rows), device=rows.device)]
            if self.divides:
                found = found * self.inverse[rows]
        else:
            theirs = self.weight.index_select(0, rows).to(self.a.dtype)
            found = (self.a * (angle.direction(theirs)[0] if self.divides else theirs)).sum(1)
        return torch.where(y == rows, found, 0.0)

    def _sum_below_the_peak(
        self, kind: Kind, y: Tensor, x_length: Tensor, bias: Tensor | None, numbers: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        tops = [self.run(kernels.peak, kind, block, numbers)[0] for *_, block in self.walk(y, x_length, bias)]
        anchor = torch.stack(tops).amax(0)
        parts = [
            self.run(kernels.sums, kind, block, (anchor, *numbers))[0] for *_, block in self.walk(y, x_length, bias)
        ]
        return anchor, torch.stack(parts).sum(0)

    @torch.no_grad()
    def largest_cosine(self, kind: Kind, y: Tensor, x_length: Tensor) -> Tensor:
        """Cosine [N] of the nearest class that is not the target."""
        best: Tensor | None = None
        for *_, block in self.walk(y, x_length, None):
            (found,) = self.run(kernels.largest_cosine, kind, block, ())
            best = found if best is None else torch.maximum(best, found)
        assert best is not None
        return best

    # ---------------------------------------------------------------- backward

    @torch.no_grad()
    def gradients(
        self,
        kind: Kind,
        y: Tensor,
        x_length: Tensor,
        bias: Tensor | None,
        numbers: Sequence[Tensor],
        log_sum: Tensor,
        to_log_sum: Tensor,
        to_total: Tensor,
        to_own: Tensor,
        along_own: Tensor | None,
        wants_a: bool,
        into: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor]]:
        """Gradients to the embeddings, their lengths, the bias and the learnt numbers; that of the weights in `into`.

        `to_own` [N] pulls at the targets' products; `along_own` [N] lengthens their weights, if given.
        """
        numbers, log_sum = [number.detach() for number in numbers], log_sum.detach()
        to_a = torch.zeros_like(self.a) if wants_a else None
        to_length = torch.zeros_like(x_length) if kind.lengths else None
        to_bias = None if bias is None else torch.empty_like(bias)
        to_numbers: list[Tensor] = []
        inside = y.clamp(0, len(self.weight) - 1)  # what another rank's class wants is 0
        targets = None if along_own is None else _samples_by_block(inside, self.step, len(self.weight))
        whole = into is not None and into.dtype == self.a.dtype
        for place, rows, factor, block in self.walk(y, x_length, bias):
            pull, along, *rest = self.run(
                kernels.gradients, kind, block, (log_sum, to_log_sum, to_total, to_own, *numbers)
            )
            if to_a is not None:
                to_a.addmm_(pull.T, rows)
            if to_length is not None:
                to_length += rest.pop(0)
            if to_bias is not None:
                to_bias[place] = rest.pop(0)
            to_numbers = [a.add_(b) for a, b in zip(to_numbers, rest, strict=True)] if to_numbers else rest
            if into is None:
                continue
            if targets is not None and along_own is not None:
                samples = targets[place.start // self.step]
                along = along.index_add(0, inside[samples] - place.start, along_own[samples])
            found = torch.mm(pull, self.a, out=into[place]) if whole else torch.mm(pull, self.a)
            if self.divides or kind.lengths or targets is not None:
                found.addcmul_(rows, along.unsqueeze(1))
            if factor is not None:
                found.mul_(factor.unsqueeze(1))
            if not whole:
                into[place] = found
        return to_a, to_length, to_bias, to_numbers


def _first(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias[:_FEW]


def _samples_by_block(y: Tensor, step: int, classes: int) -> tuple[Tensor, ...]:
    """For every block of classes the samples whose target lies in it."""
    order = y.argsort()
    ends = torch.searchsorted(y[order], torch.arange(step, max(step, classes), step, device=y.device))
    return torch.tensor_split(order, ends.cpu())


def _as_products(room: Tensor, a: Tensor) -> Tensor | None:
    """The gradient's memory as numbers of the working dtype, [C, as many as fit into a row]."""
    if room.dtype == a.dtype:
        return room
    if room.shape[1] * room.element_size() % a.element_size() or room.shape[1] * room.element_size() < a.element_size():
        return None
    return room.view(a.dtype)
