"""The streamed road: blocks of classes, never an N×C matrix, never a normalised copy of the weights.

Exact, at three matrix products. `sweep` has the loop and where the products are kept, `block` what is done with them,
`fused` the compiled form of that, `room` the gradient's memory from step to step. Runs on a GPU by the same code;
none was at hand to try it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import angle
from ..margin import Margin
from ..precision import island
from .again import again_densely
from .block import Kind, inverse_of
from .own import Own, own_of, pulls_of, turned
from .rays import Rays, kept_lengths
from .road import Others, Target, TargetLogit
from .room import Room
from .sweep import Sweep


class _Split(torch.autograd.Function):
    """(a, directions, ‖x‖, weight, bias, numbers of the margin) → (L, Σ z, θ_y, ‖w_y‖ where it is kept, a·w_y).

    Target and others in one, so that the weights have one gradient: two would be two C×D matrices. Of the target either
    θ_y and ‖w_y‖ or (`plain`) the product a·w_y; the others are None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kind: Kind,
        plain: bool,
        sweep: Sweep,
        room: Room,
        y: Tensor,
        a: Tensor,
        unit: Tensor,
        x_length: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *numbers: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        log_sum, value, total = sweep.log_sum(kind, y, x_length, bias, numbers)
        ctx.kind, ctx.plain, ctx.sweep, ctx.room = kind, plain, sweep, room
        ctx.save_for_backward(y, log_sum, a, unit, x_length, weight, bias, *numbers)
        ctx.set_materialize_grads(False)
        if plain:
            return log_sum, total, None, None, value
        kept = x_length if kind.margin.linear and kind.margin.keeps_x else torch.ones_like(x_length)
        keeps_w = kind.margin.keeps_w
        own = own_of(value, unit, weight, _inside(y, weight), kept, keeps_w and kind.margin.linear)
        if keeps_w and own.w_length is None:
            own = own._replace(w_length=angle.direction(weight.index_select(0, _inside(y, weight)).to(a.dtype))[1])
        # Aliases: a result that its own node holds would never be freed.
        length = own.w_length
        ctx.own = Own(own.theta.detach(), None if length is None else length.detach(), own.per_cosine)
        return log_sum, total, own.theta, own.w_length, None

    @staticmethod
    def backward(
        ctx: Any,
        to_log_sum: Tensor | None,
        to_total: Tensor | None,
        to_theta: Tensor | None,
        to_w_length: Tensor | None,
        to_product: Tensor | None,
    ) -> Any:
        if torch.is_grad_enabled():  # somebody wants a second derivative
            return (None,) * 5 + again_densely(ctx, (to_log_sum, to_total, to_theta, to_w_length, to_product))
        y, log_sum, a, unit, x_length, weight, bias, *numbers = ctx.saved_tensors
        kind: Kind = ctx.kind
        zero = torch.zeros_like(log_sum)
        to_theta = zero if to_theta is None else to_theta
        to_value, along, pulls = zero if to_product is None else to_product, None, None
        with island(a), torch.no_grad():
            sweep, into = _lent(ctx, a, weight, ctx.needs_input_grad[8])
            if not ctx.plain:
                own: Own = ctx.own
                pulls = pulls_of(own, to_theta)
                to_value = pulls.to_value
                if own.w_length is not None:
                    along = zero if to_w_length is None else to_w_length
                    if not kind.divides:  # the cosine is the product over this length
                        along = along + pulls.to_per_cosine * inverse_of(own.w_length)
                    along = along * inverse_of(own.w_length)
            to_a, to_length, to_bias, to_numbers = sweep.gradients(
                kind,
                y,
                x_length,
                bias,
                numbers,
                log_sum,
                zero if to_log_sum is None else to_log_sum,
                zero if to_total is None else to_total,
                to_value,
                along,
                ctx.needs_input_grad[5],
                into,
            )
            to_unit = None
            if pulls is not None and kind.margin.linear and kind.margin.keeps_x:
                more = pulls.to_per_cosine * inverse_of(x_length)
                to_length = more if to_length is None else to_length + more
            if pulls is not None and len(pulls.tiny):
                to_unit = _turn_tiny(unit, weight, y, to_theta, pulls.tiny, into)
        found = iter(to_numbers)
        given = [next(found).to(n.dtype) if learnt else None for n, learnt in zip(numbers, kind.learnt, strict=True)]
        return (None, None, None, None, None, to_a, to_unit, to_length, into, to_bias, *given)


def _turn_tiny(unit: Tensor, weight: Tensor, y: Tensor, to_theta: Tensor, tiny: Tensor, into: Tensor | None) -> Tensor:
    """Gradient to the directions of samples at tiny angles; that of their weights is added to `into`."""
    rows = _inside(y, weight)[tiny]
    with torch.enable_grad():
        some = weight.index_select(0, rows).to(unit.dtype).detach().requires_grad_()
        theirs = angle.direction(some)[0]
    to_u, to_v = turned(unit[tiny], theirs, to_theta[tiny])
    if into is not None:
        (to_rows,) = torch.autograd.grad(theirs, some, to_v)
        into.index_add_(0, rows, to_rows.to(into.dtype))
    return torch.zeros_like(unit).index_copy_(0, tiny, to_u)


def _inside(y: Tensor, weight: Tensor) -> Tensor:
    """Labels as rows of the weights; one of another rank's classes is some row, of which nothing will be used."""
    return y.clamp(0, len(weight) - 1)


def _lent(ctx: Any, a: Tensor, weight: Tensor, wanted: bool) -> tuple[Sweep, Tensor | None]:
    """The sweep with its kept products and the room they lie in, which the gradient is about to fill.

    Once given away the room is gone: a second backward pass computes its products again, in other room.
    """
    sweep: Sweep = ctx.sweep
    if not wanted:
        return sweep, None
    into = sweep.room
    if into is None or not sweep.filled:
        into = ctx.room.take(weight)
        return Sweep(sweep.divides, a, weight, None if sweep.kept is None else into), into
    ready = Sweep.__new__(Sweep)
    ready.__dict__.update(sweep.__dict__)
    sweep.room = sweep.kept = None
    sweep.filled, sweep.columns = False, 0
    return ready, into


class Stream:
    """A block of classes at a time, from vectors."""

    def __init__(
        self, margin: Margin, rays: Rays, weight: Tensor, bias: Tensor | None, room: Room | None = None
    ) -> None:
        self.margin, self.rays, self.weight, self.bias = margin, rays, weight, bias
        self.classes, self.lengths = len(weight), rays.length
        self._room = Room() if room is None else room
        self._sweep: Sweep | None = None

    def target(self, margin: Margin, y: Tensor) -> Target:
        unit, length = angle.direction(self.weight.index_select(0, _inside(y, self.weight)).to(self.rays.x.dtype))
        theta = angle.between(self.rays.unit, unit)
        return Target(theta, kept_lengths(margin, self.rays.length, length), self._bias(y))

    def _bias(self, y: Tensor) -> Tensor | None:
        return None if self.bias is None else self.bias[_inside(y, self.weight)].to(self.rays.x.dtype)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a loop over blocks would be unrolled into one huge graph
    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target | TargetLogit, Others]:
        kind, numbers = self._kind(margin, total)
        plain = margin.plain_target and margin.keeps_any
        inputs = (self._factor(margin), self.rays.unit, self.rays.length, self.weight, self.bias, *numbers)
        found = _Split.apply(kind, plain, self._swept(margin), self._room, y, *inputs)  # type: ignore[no-untyped-call]
        log_sum, added, theta, w_length, value = found
        others = Others(log_sum, added if total else None)
        bias = self._bias(y)
        if plain:
            logit = margin.s * value
            return TargetLogit(logit if bias is None else logit + bias), others
        return Target(theta, kept_lengths(margin, self.rays.length, w_length), bias), others

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        found: tuple[Target | TargetLogit, Others] = self.both(margin, y, total)
        return found[1]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def largest_cosine(self, y: Tensor) -> Tensor:
        margin = self.margin
        by_direction = not (margin.linear and (margin.keeps_x or margin.keeps_w))
        unit, weight = self.rays.unit.detach(), self.weight.detach()
        sweep = self._swept(margin) if by_direction else Sweep(True, unit, weight, None)
        return sweep.largest_cosine(self._kind(margin, False)[0], y, self.rays.length)

    def _kind(self, margin: Margin, total: bool) -> tuple[Kind, Sequence[Tensor]]:
        # Every number of the margin is an input, so that learnable ones get their gradient wherever φ uses them.
        found = {n: v for n, v in margin.values() if isinstance(v, Tensor) and v.is_floating_point()}
        learnt = {name: value.requires_grad and torch.is_grad_enabled() for name, value in found.items()}
        # In the working dtype, so that a scale kept in fp64 and one adapted to the batch meet the same kernel.
        return Kind.of(margin, total, learnt), [value.to(self.rays.dtype) for value in found.values()]

    def _factor(self, margin: Margin) -> Tensor:
        """What the class weights are multiplied with: embeddings, or their directions."""
        return self.rays.x if margin.linear and margin.keeps_x else self.rays.unit

    def _swept(self, margin: Margin) -> Sweep:
        """The sweep of this call: its products serve the adaptive numbers and the loss, and both labels of a mixup."""
        if self._sweep is None:
            factor = self._factor(margin).detach()
            wanted = self.weight.requires_grad and (torch.is_grad_enabled() or bool(margin.adaptive))
            room = self._room.take(self.weight) if wanted else None
            divides = not (margin.linear and margin.keeps_w)
            self._sweep = Sweep(divides, factor, self.weight.detach(), room)
        return self._sweep
