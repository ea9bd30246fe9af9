"""The stacked road: K small models at once, each with its own class weights, labels and numbers.

Logits are [C, K, N], classes first, so that a number per model, [K, 1], meets target curves [K, N]
and logits [C, K, N] alike, and the curves of a margin need not know of stacks. Cosines come from one
batched product divided by the lengths: with few classes that is far cheaper than unit vectors, and
the angles are as good as those cosines.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import angle
from ..margin import Margin
from .rays import Products, kept_lengths, logits_of
from .road import Others, Target


class _Cosines(torch.autograd.Function):
    """x [K, N, D], w [K, C, D] → cosines [C, K, N], ‖x‖ [K, N], ‖w‖ [C, K, 1]; one node instead of twenty."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # [K, N, 1]
        w_length = torch.linalg.vector_norm(w, dim=-1, keepdim=True)  # [K, C, 1]
        x_inverse, w_inverse = _inverse(x_length), _inverse(w_length)
        cos = torch.bmm(w, x.mT).mul_(w_inverse).mul_(x_inverse.mT)  # [K, C, N]
        ctx.save_for_backward(x, w, cos, x_inverse, w_inverse)
        ctx.set_materialize_grads(False)
        return cos.transpose(0, 1).contiguous(), x_length.squeeze(2), w_length.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, to_cos: Tensor | None, to_x_length: Tensor | None, to_w_length: Tensor | None) -> Any:
        x, w, cos, x_inverse, w_inverse = ctx.saved_tensors
        to_cos = torch.zeros_like(cos) if to_cos is None else to_cos.transpose(0, 1)
        along = to_cos * cos
        pull = (to_cos * w_inverse).mul_(x_inverse.mT)
        # What points along a vector does not turn it; only its length may want that part.
        x_along = along.sum(1).unsqueeze(2).mul_(x_inverse)
        w_along = along.sum(2, keepdim=True).mul_(w_inverse)
        if to_x_length is not None:
            x_along = x_along - to_x_length.unsqueeze(2)
        if to_w_length is not None:
            w_along = w_along - to_w_length.transpose(0, 1)
        to_x = torch.baddbmm(x * x_along.mul_(x_inverse), pull.mT, w, beta=-1)
        to_w = torch.baddbmm(w * w_along.mul_(w_inverse), pull, x, beta=-1)
        return to_x, to_w


class _Dots(torch.autograd.Function):
    """x [K, N, D], w [K, C, D] → products [C, K, N]; an embedding of length 0 has no direction and gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.bmm(w, x.mT).transpose(0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, w = ctx.saved_tensors
        gradient = gradient.transpose(0, 1)
        somewhere = torch.linalg.vector_norm(x, dim=-1, keepdim=True).sign()  # 0 where x is 0, else 1
        return torch.bmm(gradient.mT, w).mul_(somewhere), torch.bmm(gradient, x)


class _LogSumOthers(torch.autograd.Function):
    """Logits z [C, K, N], targets [1, K, N] → log Σ exp z over the other classes [K, N]; its slope is their softmax."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, row: Tensor) -> Tensor:
        others = z.scatter(0, row, -torch.inf)
        top = others.amax(0, keepdim=True)
        share = others.sub_(top).exp_()
        total = share.sum(0, keepdim=True)
        ctx.save_for_backward(share.div_(total))
        return total.log_().add_(top).squeeze(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (share,) = ctx.saved_tensors
        return share * gradient, None


class Stacked:
    """All classes of K models at once, from embeddings [K, N, D] and class weights [K, C, D]."""

    def __init__(self, margin: Margin, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self._x, self._weight, self.classes = x, weight, weight.shape[1]
        self.bias = None if bias is None else bias.T.unsqueeze(2)  # [K, C] → [C, K, 1]
        self._found: tuple[Tensor, Tensor, Tensor] | None = None
        if margin.linear and margin.keeps_x and margin.keeps_w:  # nothing to divide out and multiply in again
            self.product = Products(_Dots.apply(x, weight), None)  # type: ignore[no-untyped-call]
        else:
            cosine, x_length, w_length = self._cosines()
            self.product = Products(cosine, kept_lengths(margin, x_length, w_length))
        self._logits: tuple[Margin, Tensor] | None = None

    def _cosines(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._found is None:
            self._found = _Cosines.apply(self._x, self._weight)  # type: ignore[no-untyped-call]
        return self._found

    @property
    def lengths(self) -> Tensor:
        """‖x‖ [K, N]."""
        return self._cosines()[1]

    def logits(self, margin: Margin) -> Tensor:
        """All logits [C, K, N], no margin applied."""
        if self._logits is None or self._logits[0] is not margin:
            self._logits = margin, logits_of(margin, self.product, self.bias)
        return self._logits[1]

    def own(self, margin: Margin, y: Tensor) -> Tensor:
        return self._at(self.logits(margin), y)

    def target(self, margin: Margin, y: Tensor) -> Target:
        cosine, x_length, w_length = self._cosines()
        radius = kept_lengths(margin, x_length, w_length)
        if margin.keeps_w and radius is not None:
            radius = self._at(radius, y)
        bias = None if self.bias is None else self._at(self.bias, y)
        return Target(angle.from_cosine(self._at(cosine, y)), radius, bias)

    def _at(self, values: Tensor, y: Tensor) -> Tensor:
        return values.expand(self.classes, *y.shape).gather(0, y.unsqueeze(0)).squeeze(0)

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        z, row = self.logits(margin), y.unsqueeze(0)
        log_sum: Tensor = _LogSumOthers.apply(z, row)  # type: ignore[no-untyped-call]
        return Others(log_sum, z.scatter(0, row, 0.0).sum(0) if total else None)

    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target, Others]:
        return self.target(margin, y), self.others(margin, y, total)

    def largest_cosine(self, y: Tensor) -> Tensor:
        return self._cosines()[0].detach().scatter(0, y.unsqueeze(0), -torch.inf).amax(0)


def _inverse(length: Tensor) -> Tensor:
    """1/length, and 0 where there is none, so that a zero vector has cosines and gradients of 0."""
    return length.reciprocal().masked_fill_(length == 0, 0.0)
