"""The streamed road: blocks of classes, never an N×C matrix, never a normalised copy of the weights.

Forward keeps a running maximum and sum per sample. Backward walks over the blocks again, computes a
block's logits once more *with the same definition* and lets autograd turn `q_j · ∂L` into gradients
of that block. Exact; costs one more matrix product than the dense road, and N×block memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import angle
from ..errors import InputError
from ..margin import Margin
from ..precision import island
from .rays import Rays, kept_lengths, logits_of, products
from .road import Others, Target

# Entries of one N×block or block×D matrix. Large enough for the matrix product to run at full speed,
# small enough to stay in cache; never fewer than 256 classes.
_BLOCK_ENTRIES = 1 << 20


def _blocks(x: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of classes for embeddings [N, D] and class weights [C, D]."""
    step = max(256, _BLOCK_ENTRIES // max(*x.shape, 1))
    for start in range(0, len(weight), step):
        yield slice(start, min(start + step, len(weight)))


def _block_logits(margin: Margin, rays: Rays, rows: Tensor, bias: Tensor | None) -> Tensor:
    rows = rows.to(rays.x.dtype)
    unit, lengths = angle.direction(rows)
    return logits_of(margin, products(margin, rays, rows, unit, lengths), bias)


def _fill_targets(z: Tensor, y: Tensor, block: slice, fill: float) -> Tensor:
    """A block's logits [N, B] with the targets that lie in it replaced by `fill`."""
    inside = (y >= block.start) & (y < block.stop)
    column = torch.where(inside, y - block.start, 0)
    current = z.gather(1, column.unsqueeze(1)).squeeze(1)
    return z.scatter(1, column.unsqueeze(1), torch.where(inside, fill, current).unsqueeze(1))


class _LogSum(torch.autograd.Function):
    """(x, unit, length, weight, bias, numbers of the margin) → (L, Σ z) over the classes that are not `y`."""

    @staticmethod
    def forward(
        ctx: Any,
        margin: Margin,
        names: tuple[str, ...],
        y: Tensor,
        total: bool,
        x: Tensor,
        unit: Tensor,
        length: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *numbers: Tensor,
    ) -> tuple[Tensor, Tensor]:
        rays = Rays(x, unit, length)
        top = torch.full_like(length, -torch.inf)
        running = torch.zeros_like(length)
        added = torch.zeros_like(length)
        for block in _blocks(x, weight):
            z = _block_logits(margin, rays, weight[block], None if bias is None else bias[block])
            if total:
                added += _fill_targets(z, y, block, 0.0).sum(1)
            z = _fill_targets(z, y, block, -torch.inf)
            new_top = torch.maximum(top, z.amax(1))
            # A block that holds nothing but targets leaves the maximum at −inf: nothing to add yet.
            anchor = torch.where(new_top == -torch.inf, torch.zeros_like(new_top), new_top)
            running = running * torch.exp(top - anchor) + torch.exp(z - anchor.unsqueeze(1)).sum(1)
            top = new_top
        log_sum = top + torch.log(running)
        ctx.margin, ctx.names, ctx.total = margin, names, total
        ctx.save_for_backward(y, log_sum, x, unit, length, weight, bias, *numbers)
        return log_sum, added

    @staticmethod
    def backward(ctx: Any, to_log_sum: Tensor, to_total: Tensor) -> Any:
        if torch.is_grad_enabled():  # a second derivative would silently lack this part
            raise InputError('the streamed road cannot be differentiated twice (create_graph): use road="dense"')
        y, log_sum, x, unit, length, weight, bias, *numbers = ctx.saved_tensors
        with island(x), torch.enable_grad():
            shared = [t.detach().requires_grad_() for t in (x, unit, length, *numbers)]
            margin = ctx.margin.with_values(**dict(zip(ctx.names, shared[3:], strict=True)))
            sums: list[Tensor | None] = [None] * len(shared)
            # Frozen weights need no gradient, and with many classes none should be held for them.
            to_weight = torch.empty_like(weight) if ctx.needs_input_grad[7] else None
            to_bias = None if bias is None else torch.empty_like(bias)
            for block in _blocks(x, weight):
                rows = weight[block].detach().requires_grad_(to_weight is not None)
                some_bias = None if bias is None else bias[block].detach().requires_grad_()
                z = _block_logits(margin, Rays(*shared[:3]), rows, some_bias)
                share = torch.exp(z.detach() - log_sum.unsqueeze(1)) * to_log_sum.unsqueeze(1)
                if ctx.total:
                    share = share + to_total.unsqueeze(1)
                share = _fill_targets(share, y, block, 0.0)
                own = [t for t in (rows, some_bias) if t is not None and t.requires_grad]
                found = torch.autograd.grad(z, [*shared, *own], share, allow_unused=True)
                for i, part in enumerate(found[: len(shared)]):
                    if part is not None:
                        before = sums[i]
                        sums[i] = part if before is None else before.add_(part)
                if to_weight is not None:
                    to_weight[block] = found[len(shared)]
                if to_bias is not None:
                    to_bias[block] = found[-1]
        return (None, None, None, None, *sums[:3], to_weight, to_bias, *sums[3:])


@torch.no_grad()
def largest_cosine(rays: Rays, weight: Tensor, y: Tensor) -> Tensor:
    """Cosine [N] of the nearest class that is not `y`, a block at a time, without a gradient."""
    best = torch.full_like(rays.length, -torch.inf)
    for block in _blocks(rays.x, weight):
        cos = rays.unit @ angle.direction(weight[block].to(best.dtype))[0].T
        best = torch.maximum(best, _fill_targets(cos, y, block, -torch.inf).amax(1))
    return best


class Stream:
    """A block of classes at a time, from vectors."""

    def __init__(self, margin: Margin, rays: Rays, weight: Tensor, bias: Tensor | None) -> None:
        self.rays, self.weight, self.bias = rays, weight, bias
        self.classes, self.lengths = len(weight), rays.length

    def target(self, margin: Margin, y: Tensor) -> Target:
        unit, length = angle.direction(self.weight.index_select(0, y).to(self.rays.x.dtype))
        theta = angle.between(self.rays.unit, unit)
        bias = None if self.bias is None else self.bias[y].to(theta.dtype)
        return Target(theta, kept_lengths(margin, self.rays.length, length), bias)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a loop over blocks would be unrolled into one huge graph
    def own(self, margin: Margin, y: Tensor) -> None:
        return None

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        # Every number of the margin is an input, so that learnable ones get their gradient wherever φ uses them.
        numbers = {n: v for n, v in margin.values() if isinstance(v, Tensor) and v.is_floating_point()}
        inputs = (*self.rays, self.weight, self.bias, *numbers.values())
        log_sum, added = _LogSum.apply(margin, tuple(numbers), y, total, *inputs)  # type: ignore[no-untyped-call]
        return Others(log_sum, added if total else None)

    def largest_cosine(self, y: Tensor) -> Tensor:
        return largest_cosine(self.rays, self.weight, y)
