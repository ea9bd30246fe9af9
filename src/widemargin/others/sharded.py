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
from .dense import Dense
from .rays import Rays
from .road import Others, Target, TargetLogit
from .shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable

    from .road import Road


class Sharded:
    """A road for this rank's samples over the classes of all ranks; `inner` makes the road over this rank's own.

    `learns` says whether parameters of the head want a gradient.
    """

    def __init__(
        self,
        rays: Rays,
        shard: Shard,
        learns: bool,
        inner: Callable[[Rays], Road],
    ) -> None:
        self.shard, self.classes, self.lengths = shard, shard.classes, rays.length
        self.sizes, x = shard.agree(rays.x, learns)
        start = sum(self.sizes[: shard.rank])
        self.mine = slice(start, start + self.sizes[shard.rank])
        self.inner = inner(Rays(shard.gathered(x, self.sizes)))

    def _columns(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Labels of all samples counted from this rank's first class, and which of them are its own."""
        everyone = self.shard.gathered(y, self.sizes) - self.shard.start
        return everyone, (everyone >= 0) & (everyone < len(self.shard))

    def _everywhere(self, part: Tensor, own: Tensor) -> Tensor:
        """What the rank of each sample's class knows, for this rank's samples."""
        return self.shard.summed(torch.where(own, part, torch.zeros_like(part)))[self.mine]

    def _home(self, found: Target, own: Tensor) -> Target:
        theta, radius, bias = (None if part is None else self._everywhere(part, own) for part in found)
        assert theta is not None
        return Target(theta, radius, bias)

    def target(self, margin: Margin, y: Tensor) -> Target:
        columns, own = self._columns(y)
        return self._home(self.inner.target(margin, columns), own)

    def both(self, margin: Margin, y: Tensor, total: bool) -> tuple[Target | TargetLogit, Others]:
        columns, own = self._columns(y)
        target, others = self.inner.both(self._seen_by_a_part(margin), columns, total)
        added = None if others.total is None else self.shard.summed(others.total)[self.mine]
        here = Others(self.shard.log_summed(others.log_sum)[self.mine], added)
        if isinstance(target, TargetLogit):
            return TargetLogit(self._everywhere(target.value, own)), here
        return self._home(target, own), here

    def others(self, margin: Margin, y: Tensor, total: bool = False) -> Others:
        return self.both(margin, y, total)[1]

    def largest_cosine(self, y: Tensor) -> Tensor:
        return self.shard.largest(self.inner.largest_cosine(self._columns(y)[0]))[self.mine]

    def _seen_by_a_part(self, margin: Margin) -> Margin:
        learnt = {n: v for n, v in margin.values() if isinstance(v, Tensor) and v.requires_grad}
        return margin.with_values(**{n: self.shard.part_of_shared(v) for n, v in learnt.items()}) if learnt else margin


@torch.no_grad()
def shard_logits(
    shard: Shard, margin: Margin, rays: Rays, weight: Tensor, bias: Tensor | None, y: Tensor | None
) -> Tensor:
    """Logits [N, C] of this rank's samples over the classes of all ranks, without a gradient."""
    if y is not None:
        raise InputError("a sharded head gives logits without labels; its loss is head(x, y)")
    sizes = shard.sizes(rays.length)
    everyone = Rays(shard.gathered(rays.x, sizes))
    here = Dense(margin, everyone, weight, bias).logits(margin).T.contiguous()  # classes first: they are gathered
    start = sum(sizes[: shard.rank])
    return shard.gathered_classes(here).T[start : start + sizes[shard.rank]]
