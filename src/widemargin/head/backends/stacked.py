"""The stacked backend: K small models at once, each with its own class weights, labels and numbers.

Logits are [C, K, N], classes first, so that a number per model, [K, 1], meets target curves [K, N]
and logits [C, K, N] alike, and the curves of a margin need not know of stacks. Cosines come from one
batched product divided by the lengths: with few classes that is far cheaper than unit vectors, and
the angles are as good as those cosines.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...losses.margin import Margin
from ...numerics import angles
from ...numerics.log_sums import NonTargetLogSumExp
from .base import DotProducts, NonTargetSums, Target, TargetLogit, compute_logits, compute_radius
from .dense import CosinesAndNorms


class _BatchedDotProducts(torch.autograd.Function):
    """x [K, N, D], w [K, C, D] → products [C, K, N]; an embedding of length 0 has no direction and gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.bmm(w, x.mT).transpose(0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, w = ctx.saved_tensors
        gradient = gradient.transpose(0, 1)
        is_nonzero = torch.linalg.vector_norm(x, dim=-1, keepdim=True).sign()  # 0 where x is 0, else 1
        return torch.bmm(gradient.mT, w).mul_(is_nonzero), torch.bmm(gradient, x)


class StackedBackend:
    """All classes of K models at once, from embeddings [K, N, D] and class weights [K, C, D]."""

    def __init__(self, margin: Margin, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self._x, self._weight, self.num_classes = x, weight, weight.shape[1]
        self.bias = None if bias is None else bias.T.unsqueeze(2)  # [K, C] → [C, K, 1]
        self._cosines_cache: tuple[Tensor, Tensor, Tensor] | None = None
        if margin.is_linear and margin.uses_x_norm and margin.uses_w_norm:  # no lengths to divide out and multiply in
            self.product = DotProducts(_BatchedDotProducts.apply(x, weight), None)  # type: ignore[no-untyped-call]
        else:
            cosine, x_norm, w_norm = self._compute_cosines()
            self.product = DotProducts(cosine, compute_radius(margin, x_norm, w_norm))
        self._logits_cache: tuple[Margin, Tensor] | None = None

    def _compute_cosines(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._cosines_cache is None:
            cos, x_norm, w_norm = CosinesAndNorms.apply(self._x, self._weight, None, None)  # type: ignore[no-untyped-call]
            self._cosines_cache = cos.transpose(0, 1).contiguous(), x_norm, w_norm.T.unsqueeze(2)
        return self._cosines_cache

    @property
    def x_norm(self) -> Tensor:
        """‖x‖ [K, N]."""
        return self._compute_cosines()[1]

    def logits(self, margin: Margin) -> Tensor:
        """All logits [C, K, N], no margin applied."""
        if self._logits_cache is None or self._logits_cache[0] is not margin:
            self._logits_cache = margin, compute_logits(margin, self.product, self.bias)
        return self._logits_cache[1]

    def target(self, margin: Margin, y: Tensor) -> Target:
        cosine, x_norm, w_norm = self._compute_cosines()
        radius = compute_radius(margin, x_norm, w_norm)
        if margin.uses_w_norm and radius is not None:
            radius = self._gather_target(radius, y)
        bias = None if self.bias is None else self._gather_target(self.bias, y)
        return Target(angles.safe_arccos(self._gather_target(cosine, y)), radius, bias)

    def _gather_target(self, values: Tensor, y: Tensor) -> Tensor:
        return values.expand(self.num_classes, *y.shape).gather(0, y.unsqueeze(0)).squeeze(0)

    def non_target_sums(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> NonTargetSums:
        z, row = self.logits(margin), y.unsqueeze(0)
        log_sum: Tensor = NonTargetLogSumExp.apply(z, row)  # type: ignore[no-untyped-call]
        return NonTargetSums(log_sum, z.scatter(0, row, 0.0).sum(0) if with_logit_sum else None)

    def target_and_non_target(
        self, margin: Margin, y: Tensor, with_logit_sum: bool
    ) -> tuple[Target | TargetLogit, NonTargetSums]:
        others = self.non_target_sums(margin, y, with_logit_sum)
        if margin.has_plain_target:  # also on the unit sphere: the angle would be read off the same cosine
            return TargetLogit(self._gather_target(self.logits(margin), y)), others
        return self.target(margin, y), others

    def largest_cosine(self, y: Tensor) -> Tensor:
        return self._compute_cosines()[0].detach().scatter(0, y.unsqueeze(0), -torch.inf).amax(0)
