"""PairLoss: base of losses on embeddings and labels, (x [N, D], y [N]) → [N].

Like a margin, a pair loss is a frozen value; `build` returns the module for an `Objective`, because some losses have
state (the centres of `center`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..io.errors import InputError
from ..numerics.distributed import SyncGroup, check_group, has_multiple_ranks
from ..numerics.precision import at_least_fp32, autocast_disabled
from ..numerics.validation import (
    apply_with_ignore_index,
    check_labels,
    check_mix,
    check_mix_lam,
    describe_type,
    is_plain_float,
    not_ignored_mask,
)
from .base import Loss


class PairLoss(Loss):
    """A loss on embeddings; subclasses define `loss_and_stats`."""

    kind: ClassVar[str] = "pair"
    is_separable_by_class: ClassVar[bool] = False
    """Whether samples of different classes never interact; then K models of C classes are one module of K·C classes."""

    def loss_and_stats(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss [N] and statistics to log (counts as tensors, which do not synchronise)."""
        raise NotImplementedError

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss [N], one per embedding."""
        x, y = prepare_batch(x, y)
        with autocast_disabled(x):
            return self.loss_and_stats(x, y)[0]

    def build(self, embedding_dim: int, num_classes: int) -> PairLossModule:
        """Return the module for an `Objective`."""
        return PairLossModule(self)


def prepare_batch(
    x: Tensor, y: Tensor, embedding_dim: int | None = None, num_classes: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return checked embeddings in at least fp32 and labels in int64."""
    if not is_plain_float(x) or x.ndim != 2:
        actual = f"{list(x.shape)} {describe_type(x)}" if isinstance(x, Tensor) else describe_type(x)
        raise InputError(f"embeddings must be a float tensor [N, D], got {actual}")
    if embedding_dim is not None and x.shape[1] != embedding_dim:
        raise InputError(f"embeddings must have shape [N, {embedding_dim}], got {list(x.shape)}")
    x = at_least_fp32(x).contiguous()  # the same bits for any memory layout
    check_labels(y, len(x), num_classes, x.detach().abs().amax(1) if x.shape[1] else None, x.device)
    return x, y.long()


class PairLossModule(nn.Module):
    """A pair loss inside an objective; `stats` holds the statistics of the last call."""

    def __init__(self, pair_loss: PairLoss) -> None:
        super().__init__()
        self.pair_loss = pair_loss
        self.stats: dict[str, Tensor] = {}
        self.sync_group = SyncGroup(None, pair_loss.name)

    def forward(
        self, x: Tensor, y: Tensor, mix: tuple[Tensor, Any] | None = None, ignore_index: int | None = None
    ) -> Tensor:
        """Loss [N]; `mix=(y_b, lam)` and `ignore_index` as in `Head`. The state is updated from y, not from y_b."""
        with autocast_disabled(x):
            loss = apply_with_ignore_index(self._compute_loss, x, y, ignore_index)
            if mix is not None:
                stats = self.stats
                y_b, lam = check_mix(mix)
                share = check_mix_lam(lam, loss)
                loss = share * loss + (1.0 - share) * apply_with_ignore_index(self._compute_loss, x, y_b, ignore_index)
                self.stats = stats
            if self.training:
                sample_mask = slice(None) if ignore_index is None else not_ignored_mask(y, ignore_index)
                self.update_state(x[sample_mask].detach(), y[sample_mask])
            return loss

    def _compute_loss(self, x: Tensor, y: Tensor) -> Tensor:
        loss, self.stats = self.loss_and_stats(x, y)
        return loss

    def loss_and_stats(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss [N] and statistics."""
        return self.pair_loss.loss_and_stats(*prepare_batch(x, y))

    def extend(self, n: int) -> None:
        """Add `n` classes if the loss has per-class state."""

    def set_sync_group(self, group: Any, backend: str | None) -> None:
        """Update the state from all ranks of `group`; default: all ranks with a sharded head, otherwise this rank."""
        check_group(group)
        if group is None and backend == "sharded" and has_multiple_ranks():
            group = torch.distributed.group.WORLD
        self.sync_group = SyncGroup(group, self.pair_loss.name)

    def update_state(self, x: Tensor, y: Tensor) -> None:
        """Update the state after the loss of a training batch."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pair_loss!r})"
