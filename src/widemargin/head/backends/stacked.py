"""The stacked backend: K small models at once, each with its own class weights, labels and numbers.

Logits are [C, K, N], classes first, so that a number per model, [K, 1], broadcasts to target curves [K, N] and logits
[C, K, N], and the curves of a margin need no special case for stacks. Cosines are one batched product divided by the
norms: with few classes that is far cheaper than unit vectors, and the angles are as accurate as those cosines.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...losses.margin import Margin, Subcenters
from ...numerics import angles
from ...numerics.log_sums import NonTargetLogSumExp
from .base import (
    Backend,
    DotProducts,
    SplitLogits,
    Target,
    TargetLogit,
    compute_logits,
    compute_radius,
    fold_subcenters,
    sum_weight_penalty,
)
from .dense import Cosines


class _CosinesAndNorms(NamedTuple):
    cos: Tensor
    """[C, K, N]"""
    x_norm: Tensor
    """[K, N]"""
    w_norm: Tensor
    """[C, K, 1]"""


class StackedBackend(Backend):
    """All classes of K models at once, from embeddings [K, N, D] and class weights [K, C, D].

    With `subcenters` the weights are [K, C·S, D], those of a class adjacent.
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, subcenters: Subcenters | None = None) -> None:
        self._x, self._weight, self.subcenters = x, weight, subcenters
        self.num_classes = weight.shape[1] // (1 if subcenters is None else subcenters.count)
        self.bias = None if bias is None else bias.T.unsqueeze(2)  # [K, C] → [C, K, 1]
        # Adaptive margins come first and need no gradient; the results are shared with the loss.
        self._grad_enabled = torch.is_grad_enabled()
        self._cosines_cache: _CosinesAndNorms | None = None
        self._dot_products_cache: Tensor | None = None
        self._logits_cache: tuple[Margin, bool, Tensor] | None = None

    @property
    def x_norm(self) -> Tensor:
        """‖x‖ [K, N]."""
        return self._cosines().x_norm

    def _cosines(self) -> _CosinesAndNorms:
        if self._cosines_cache is None:
            with torch.set_grad_enabled(self._grad_enabled):
                cos, x_norm, w_norm, _ = Cosines.apply(self._x, self._weight, None, None)  # type: ignore[no-untyped-call]
                cos = fold_subcenters(self.subcenters, cos.transpose(0, 1).contiguous(), 0)
                self._cosines_cache = _CosinesAndNorms(cos, x_norm, w_norm.T.unsqueeze(2))
        return self._cosines_cache

    def _dot_products(self) -> Tensor:
        """w·x [C, K, N]; an embedding of norm 0 has no direction and gets no gradient."""
        if self._dot_products_cache is None:
            with torch.set_grad_enabled(self._grad_enabled):
                is_nonzero = torch.linalg.vector_norm(self._x.detach(), dim=-1, keepdim=True).sign()  # 0 or 1
                products = torch.bmm(self._weight, (self._x * is_nonzero).mT)
                self._dot_products_cache = products.transpose(0, 1).contiguous()
        return self._dot_products_cache

    def _products(self, margin: Margin) -> DotProducts:
        if margin.is_linear and margin.uses_x_norm and margin.uses_w_norm:  # no norms to divide out and multiply in
            return DotProducts(self._dot_products(), None)
        cos, x_norm, w_norm = self._cosines()
        return DotProducts(cos, compute_radius(margin, x_norm, w_norm))

    def logits(self, margin: Margin) -> Tensor:
        """All logits [C, K, N], without margin."""
        cache, grad_enabled = self._logits_cache, torch.is_grad_enabled()
        if cache is None or cache[0] is not margin or cache[1] is not grad_enabled:
            cache = margin, grad_enabled, compute_logits(margin, self._products(margin), self.bias)
            self._logits_cache = cache
        return cache[2]

    def target_angles(self, y: Tensor) -> Tensor:
        return angles.safe_arccos(self._gather_target(self._cosines().cos, y))

    def _gather_target(self, values: Tensor, y: Tensor) -> Tensor:
        return values.expand(self.num_classes, *y.shape).gather(0, y.unsqueeze(0)).squeeze(0)

    def _target(self, margin: Margin, y: Tensor) -> Target | TargetLogit:
        if margin.has_plain_target:  # also without norms: the angle would come from the same cosine
            return TargetLogit(self._gather_target(self.logits(margin), y))
        _, x_norm, w_norm = self._cosines()
        radius = compute_radius(margin, x_norm, w_norm)
        if margin.uses_w_norm and radius is not None:
            radius = self._gather_target(radius, y)
        bias = None if self.bias is None else self._gather_target(self.bias, y)
        return Target(self.target_angles(y), radius, bias)

    def split(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> SplitLogits:
        z, row = self.logits(margin), y.unsqueeze(0)
        logit_sum = z.scatter(0, row, 0.0).sum(0) if with_logit_sum else None
        others: Tensor = (
            margin.other_loss(z).scatter(0, row, 0.0).sum(0) if margin.one_vs_all else NonTargetLogSumExp.apply(z, row)  # type: ignore[no-untyped-call]
        )
        penalty = None
        if margin.has_weight_penalty:
            unit = angles.unit_and_norm(self._weight)[0]
            penalty = torch.stack([sum_weight_penalty(margin, one) for one in unit]).unsqueeze(1)
        return SplitLogits(self._target(margin, y), others, logit_sum, penalty)

    def largest_cosines(self, y: Tensor, count: int = 1) -> Tensor:
        others = self._cosines().cos.detach().scatter(0, y.unsqueeze(0), -torch.inf)
        return others.topk(count, 0).values.movedim(0, -1)
