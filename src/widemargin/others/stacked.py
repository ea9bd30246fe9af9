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
from .cosines import Cosines, LogSumOthers
from .rays import Products, kept_lengths, logits_of
from .road import Others, Target, TargetLogit


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
            cos, x_length, w_length = Cosines.apply(self._x, self._weight, None, None)  # type: ignore[no-untyped-call]
            self._found = cos.transpose(0, 1).contiguous(), x_length, w_length.T.unsqueeze(2)
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
        log_sum: Tensor = LogSumOthers.apply(z, row)  # type: ignore[no-untyped-call]
        return Others(log_sum, z.scatter(0, row, 0.0).sum(0) if total else None)

    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target | TargetLogit, Others]:
        others = self.others(margin, y, total)
        if margin.plain_target:  # also on the unit sphere: the angle would be read off the same cosine
            return TargetLogit(self._at(self.logits(margin), y)), others
        return self.target(margin, y), others

    def largest_cosine(self, y: Tensor) -> Tensor:
        return self._cosines()[0].detach().scatter(0, y.unsqueeze(0), -torch.inf).amax(0)
