"""Elementwise work on one block of classes: from products to sums, and from sums' gradients to products'.

Everything is [B, N], classes first: a row's samples lie side by side, sums over classes run down the columns. The
logit is `rays.logits_of`, the only definition; its slope is autograd's. These functions are plain PyTorch; `fused`
turns them into one compiled loop each, where a compiler is at hand (which is why each returns a tuple).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..margin import Margin
from ..precision import widest
from .rays import Products, kept_lengths, logits_of

_TOGETHER = 64  # rows that are added up in the working precision before the sum goes on in the widest


@dataclass(frozen=True)
class Kind:
    """What does not change from block to block; two equal kinds are one compiled kernel."""

    margin: Margin
    names: tuple[str, ...]
    """Numbers of the margin that are tensors: they come with every call."""
    learnt: tuple[bool, ...]
    """Which of them want a gradient."""
    total: bool
    """Whether the sum of the logits is wanted (label smoothing)."""

    @classmethod
    def of(cls, margin: Margin, total: bool, learnt: dict[str, bool]) -> Kind:
        # Their values are no part of the kind, or every step of a schedule would be compiled anew.
        bare = margin.with_values(**dict.fromkeys(learnt, 1.0)) if learnt else margin
        return cls(bare, tuple(learnt), tuple(learnt.values()), total)

    @property
    def divides(self) -> bool:
        """Whether a product is divided by the length of the class weight."""
        return not (self.margin.linear and self.margin.keeps_w)

    @property
    def lengths(self) -> bool:
        """Whether lengths are multiplied in after φ."""
        return not self.margin.linear and (self.margin.keeps_x or self.margin.keeps_w)


class Block(NamedTuple):
    """One block as the kernels take it; everything a tensor."""

    raw: Tensor
    """Products of class weights and embeddings [B, N]."""
    inverse: Tensor
    """1/‖w‖ [B]; 0 for a zero weight, whose cosines are 0 and which gets no gradient."""
    x_length: Tensor
    """‖x‖ [N]."""
    column: Tensor
    """Row of each sample's target in this block [N]; outside 0 … B−1 where the target lies elsewhere."""
    bias: Tensor | None


def inverse_of(length: Tensor) -> Tensor:
    """1/length, and 0 where that is 0."""
    return torch.where(length == 0, torch.zeros_like(length), 1.0 / length)


def _value(kind: Kind, block: Block) -> Tensor:
    return block.raw * block.inverse.unsqueeze(1) if kind.divides else block.raw


def _logits(
    kind: Kind, value: Tensor, x_length: Tensor, w_length: Tensor, bias: Tensor | None, numbers: Sequence[Tensor]
) -> Tensor:
    """[B, N] through the one definition, which is written for [N, B]."""
    margin = kind.margin.with_values(**dict(zip(kind.names, numbers, strict=True))) if numbers else kind.margin
    radius = kept_lengths(margin, x_length.unsqueeze(1), w_length) if kind.lengths else None
    return logits_of(margin, Products(value.T, radius), bias).T


def _w_length(kind: Kind, block: Block) -> Tensor:
    return inverse_of(block.inverse) if kind.lengths else block.inverse


def _is_target(block: Block) -> Tensor:
    rows = torch.arange(block.raw.shape[0], dtype=block.column.dtype, device=block.raw.device)
    return rows.unsqueeze(1) == block.column


def _down(values: Tensor) -> Tensor:
    """Sum over the classes [N] in the widest float; short runs in the working one, which costs no digits."""
    rows, wide = values.shape[0], widest(values.device)
    together = _together(rows)
    whole = rows - rows % together
    found = values[:whole].view(whole // together, together, values.shape[1]).sum(1).to(wide).sum(0)
    return found if whole == rows else found + values[whole:].sum(0).to(wide)


def _together(rows: int) -> int:
    """Rows of a run: a divisor if there is a fair one, so that a compiler makes one loop of it all.

    >>> _together(1000), _together(1024), _together(997)
    (50, 64, 64)
    """
    return next((run for run in range(_TOGETHER, _TOGETHER // 4, -1) if rows % run == 0), _TOGETHER)


def peak(kind: Kind, block: Block, *numbers: Tensor) -> tuple[Tensor]:
    """The largest logit [N] of the block's classes that are not the target; −inf where there is none."""
    z = _logits(kind, _value(kind, block), block.x_length, _w_length(kind, block), block.bias, numbers)
    return (torch.where(_is_target(block), -torch.inf, z).amax(0),)


def largest_cosine(kind: Kind, block: Block, *numbers: Tensor) -> tuple[Tensor]:
    """The largest cosine [N], where the products are those of directions."""
    cos = block.raw * block.inverse.unsqueeze(1)
    return (torch.where(_is_target(block), -torch.inf, cos).amax(0),)


def sums(kind: Kind, block: Block, anchor: Tensor, *numbers: Tensor) -> tuple[Tensor, ...]:
    """`Σ exp(z − anchor)` [N] over the classes that are not the target, and `Σ z` where that is wanted."""
    z = _logits(kind, _value(kind, block), block.x_length, _w_length(kind, block), block.bias, numbers)
    target = _is_target(block)
    found = _down(torch.where(target, 0.0, torch.exp(z - anchor)))
    return (found, _down(torch.where(target, 0.0, z))) if kind.total else (found,)


def gradients(
    kind: Kind, block: Block, log_sum: Tensor, to_log_sum: Tensor, to_total: Tensor, to_own: Tensor, *numbers: Tensor
) -> tuple[Tensor, ...]:
    """What pulls at the products, as the two matrix products want it, and what is added to each class weight.

    Gives pull [B, N] and along [B], so that ∂/∂w = pull · a + along · w; then what the lengths of the embeddings [N],
    the bias [B] and the learnt numbers want, as far as they are there.
    """
    inverse, w_length = block.inverse, _w_length(kind, block)
    with torch.enable_grad():
        value = _value(kind, block).detach().requires_grad_()
        of_x, of_w = (t.detach().requires_grad_(kind.lengths) for t in (block.x_length, w_length))
        bias = None if block.bias is None else block.bias.detach().requires_grad_()
        taken = [n.detach().requires_grad_(learnt) for n, learnt in zip(numbers, kind.learnt, strict=True)]
        z = _logits(kind, value, of_x, of_w, bias, taken)
        share = torch.exp(z.detach() - log_sum) * to_log_sum
        if kind.total:
            share = share + to_total
        target = _is_target(block)
        share = torch.where(target, 0.0, share)
        wanted = [
            value,
            *((of_x, of_w) if kind.lengths else ()),
            *([] if bias is None else [bias]),
            *(n for n in taken if n.requires_grad),
        ]
        grads = torch.autograd.grad(z, wanted, share, allow_unused=True)
        found = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, wanted, strict=True)]
    to_value = torch.where(target, to_own, found.pop(0))  # the target's product pulls by its angle instead
    with torch.no_grad():
        if kind.divides:
            # A pull along the weight itself does not turn it: that part is taken off again.
            along = -(to_value * value).sum(1) * inverse * inverse
            pull = to_value * inverse.unsqueeze(1)
        else:
            along, pull = torch.zeros_like(inverse), to_value
        if kind.lengths:
            along = along + found.pop(1) * inverse
        return (pull.contiguous(), along, *found)
