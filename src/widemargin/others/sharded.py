"""The sharded road: every rank streams over its own classes for the samples of all ranks.

Exchanged are embeddings and labels (once), per sample one logsumexp, one angle and what goes with it, and back the
gradients of these: nothing that grows with the number of classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import InputError
from ..margin import Margin
from .dense import DenseBackend
from .rays import NormalizedEmbeddings
from .road import NonTargetSums, Target, TargetLogit
from .shard import ClassShard

if TYPE_CHECKING:
    from collections.abc import Callable

    from .road import Backend


class ShardedBackend:
    """A road for this rank's samples over the classes of all ranks; `inner` makes the road over this rank's own.

    `learns` says whether parameters of the head want a gradient.
    """

    def __init__(
        self,
        embeddings: NormalizedEmbeddings,
        shard: ClassShard,
        head_requires_grad: bool,
        make_inner: Callable[[NormalizedEmbeddings], Backend],
    ) -> None:
        self.shard, self.num_classes, self.x_norm = shard, shard.num_classes, embeddings.norm
        self.sizes, x = shard.sync_sizes_and_grad(embeddings.x, head_requires_grad)
        start = sum(self.sizes[: shard.rank])
        self.local_slice = slice(start, start + self.sizes[shard.rank])
        self.inner = make_inner(NormalizedEmbeddings(shard.all_gather(x, self.sizes)))

    def _local_labels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Labels of all samples counted from this rank's first class, and which of them are its own."""
        all_labels = self.shard.all_gather(y, self.sizes) - self.shard.start
        return all_labels, (all_labels >= 0) & (all_labels < len(self.shard))

    def _sum_from_owner(self, value: Tensor, is_own: Tensor) -> Tensor:
        """What the rank of each sample's class knows, for this rank's samples."""
        return self.shard.all_reduce_sum(torch.where(is_own, value, torch.zeros_like(value)))[self.local_slice]

    def _sum_target_from_owner(self, target: Target, is_own: Tensor) -> Target:
        theta, radius, bias = (None if part is None else self._sum_from_owner(part, is_own) for part in target)
        assert theta is not None
        return Target(theta, radius, bias)

    def target(self, margin: Margin, y: Tensor) -> Target:
        columns, is_own = self._local_labels(y)
        return self._sum_target_from_owner(self.inner.target(margin, columns), is_own)

    def target_and_non_target(
        self, margin: Margin, y: Tensor, with_logit_sum: bool
    ) -> tuple[Target | TargetLogit, NonTargetSums]:
        columns, is_own = self._local_labels(y)
        target, others = self.inner.target_and_non_target(self._scale_margin_gradients(margin), columns, with_logit_sum)
        added = None if others.logit_sum is None else self.shard.all_reduce_sum(others.logit_sum)[self.local_slice]
        here = NonTargetSums(self.shard.all_reduce_logsumexp(others.log_sum)[self.local_slice], added)
        if isinstance(target, TargetLogit):
            return TargetLogit(self._sum_from_owner(target.value, is_own)), here
        return self._sum_target_from_owner(target, is_own), here

    def non_target_sums(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> NonTargetSums:
        return self.target_and_non_target(margin, y, with_logit_sum)[1]

    def largest_cosine(self, y: Tensor) -> Tensor:
        return self.shard.all_reduce_max(self.inner.largest_cosine(self._local_labels(y)[0]))[self.local_slice]

    def _scale_margin_gradients(self, margin: Margin) -> Margin:
        learnt = {n: v for n, v in margin.named_values() if isinstance(v, Tensor) and v.requires_grad}
        return margin.with_values(**{n: self.shard.scale_gradient(v) for n, v in learnt.items()}) if learnt else margin


@torch.no_grad()
def shard_logits(
    shard: ClassShard,
    margin: Margin,
    embeddings: NormalizedEmbeddings,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor | None,
) -> Tensor:
    """Logits [N, C] of this rank's samples over the classes of all ranks, without a gradient."""
    if y is not None:
        raise InputError("a sharded head gives logits without labels; its loss is head(x, y)")
    sizes = shard.gather_sizes(embeddings.norm)
    all_embeddings = NormalizedEmbeddings(shard.all_gather(embeddings.x, sizes))
    here = (
        DenseBackend(margin, all_embeddings, weight, bias).logits(margin).T.contiguous()
    )  # classes first: they are gathered
    start = sum(sizes[: shard.rank])
    return shard.all_gather_classes(here).T[start : start + sizes[shard.rank]]
