"""PairLoss: base of losses on embeddings and labels, (x [N, D], y [N]) → [N].

Like a margin, a pair loss is a frozen value; `build` makes the module that an `Objective` holds, because
some have state (the centres of `center`, the memory of `xbm`).

A loss that compares samples defines `loss_of_pairs`, which gets a `PairBatch`: while training with several ranks, the
samples of all ranks that share its `group`, with their gradients. One that compares none, as `center`, defines
`loss_and_stats`.
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
    check_labels_or_defer,
    check_mix,
    check_mix_lam,
    describe_type,
    is_plain_float,
    not_ignored_mask,
    raise_earlier_errors,
)
from .base import Loss
from .pair_batch import PairBatch


class PairLoss(Loss):
    """A loss on embeddings; subclasses write `loss_of_pairs`, or `loss_and_stats` if they compare no samples."""

    kind: ClassVar[str] = "pair"
    is_separable_by_class: ClassVar[bool] = False
    """True if samples of different classes never interact: then K models of C classes are one module of K·C classes."""
    detached: ClassVar[bool] = False
    """True if a factor is taken as a constant by design, so that the gradient is not that of the loss's value."""
    depends_on_order: ClassVar[bool] = False
    """True if the order of the samples of a class matters, as where the first two are a pair."""
    needs_positives: ClassVar[bool] = True
    """True if it learns nothing from a batch without two samples of a class."""
    allows_memory: ClassVar[bool] = True
    """True if `xbm` can give it samples of earlier batches."""

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss [N] of the anchors and what is worth logging (counts as tensors, so that nothing waits for them)."""
        raise NotImplementedError

    def loss_and_stats(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss [N] of a batch by itself and what is worth logging."""
        return self.loss_of_pairs(PairBatch.of_batch(x, y))

    @property
    def compares_samples(self) -> bool:
        """True if samples are compared with each other, and so with those of other ranks and of a memory."""
        return type(self).loss_of_pairs is not PairLoss.loss_of_pairs

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss [N], one per embedding."""
        raise_earlier_errors(x)
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
    largest = x.detach().abs().amax(1) if x.shape[1] else None
    in_range = check_labels_or_defer(y, len(x), num_classes, largest, x.device)
    y = y.long()
    # Labels that are checked later are used as indices now: one out of range stands for the nearest class till then.
    return x, y if in_range is None or num_classes is None else y.clamp(0, num_classes - 1)


class PairLossModule(nn.Module):
    """A pair loss inside an objective; `stats` holds the statistics of the last call."""

    embedding_dim: int | None = None
    """Length that embeddings must have, where the module holds something of that length."""
    num_classes: int | None = None
    """Number of classes, where the module holds something per class."""
    has_logits: ClassVar[bool] = False
    """True if the loss learns class weights, as the proxies of `proxy_anchor`, and so has logits."""

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
        x, y = prepare_batch(x, y, self.embedding_dim, self.num_classes)
        if not self.pair_loss.compares_samples:
            return self.pair_loss.loss_and_stats(x, y)
        return self.loss_of_pairs(self.gather_pairs(x, y))

    def gather_pairs(self, x: Tensor, y: Tensor) -> PairBatch:
        """The samples of this rank as anchors; in training they are compared with those of all ranks of the group."""
        if not self.training:
            return PairBatch.of_batch(x, y)
        every, labels, start = self.sync_group.gather_rows_with_gradient(x, y)
        return PairBatch(every, labels, start, len(y))

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss [N] of the anchors and statistics."""
        return self.pair_loss.loss_of_pairs(pairs)

    def logits(self, x: Tensor) -> Tensor:
        """Logits [N, C], where the loss has class weights."""
        raise NotImplementedError

    def class_weights(self) -> Tensor:
        """Class weights [C, D], where the loss has some."""
        raise NotImplementedError

    def extend(self, n: int) -> None:
        """Add `n` classes if the loss has per-class state."""

    def set_sync_group(self, group: Any, backend: str | None) -> None:
        """Compare and update with the batches of all ranks of `group`; by default all with a sharded head, else one."""
        check_group(group)
        if group is None and backend == "sharded" and has_multiple_ranks():
            group = torch.distributed.group.WORLD
        self.sync_group = SyncGroup(group, self.pair_loss.name)

    def update_state(self, x: Tensor, y: Tensor) -> None:
        """Update the state after the loss of a training batch."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pair_loss!r})"
