"""XBM: any pair loss with a memory of earlier batches, whose embeddings are compared too.

Formula: the given loss with more samples to compare with: beside the batch the last `size` embeddings of earlier
batches (of all ranks), without gradient. They take part as positives and negatives, never as anchors. `lifted`,
`angular` and `n_pair` take only negatives from the memory.
Domain: any loss that compares samples (not `center`, not `proxy_anchor`); whole size ≥ 1; whole start ≥ 0, the training
steps before samples are remembered: early embeddings change too fast to be compared with.
When: batches too small for enough pairs of one class. The memory holds size × D numbers in the `state_dict`.
Reference: Wang et al., Cross-batch memory (arXiv 1912.06798), Algorithm 1; size = 8192 as in the authors' code, which
starts at step 2,000 and adds the loss on the memory to that on the batch; here both are one set of columns.

>>> import torch, widemargin as wm
>>> objective = wm.Objective("xbm(supcon(tau=0.5), size=4)", 2, 2)
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> y = torch.tensor([0, 0, 1, 1])
>>> [round(objective(x, y)[0].item(), 4) for _ in range(2)]  # the second time also against the first batch
[0.2333, 1.2573]
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...io.errors import InputError, format_value
from ...numerics.precision import at_least_fp32
from ..base import option
from ..grammar import parse
from ..pair_batch import EMPTY_LABEL, PairBatch
from ..pair_loss import PairLoss, PairLossModule
from .contrastive import Contrastive


def _check_pair_loss(where: str, value: Any) -> PairLoss:
    loss = parse(value) if isinstance(value, str) else value
    if not isinstance(loss, PairLoss):
        raise InputError(f"{where}={format_value(value)} must be a pair loss, such as supcon")
    return loss


@dataclass(frozen=True, repr=False)
class XBM(PairLoss):
    name = "xbm"
    reference = "Wang et al., Cross-batch memory, arXiv 1912.06798, Algorithm 1"
    group = "pairs"
    needs_positives = False  # the memory has some
    allows_memory = False

    loss: PairLoss = option(Contrastive(), "the loss that compares samples", check_loss=_check_pair_loss)
    size: int = option(8192, "embeddings to remember", low=1, high=2**24, kind=int)
    start: int = option(0, "training steps before the memory is filled", low=0, kind=int, hide_default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.loss.compares_samples or not self.loss.allows_memory:
            raise InputError(f"xbm({self.loss.name}): {self.loss.name} compares no samples that could be remembered")

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        raise InputError('xbm keeps a memory: use wm.Objective("xbm(supcon, size=8192)", embedding_dim, num_classes)')

    def build(self, embedding_dim: int, num_classes: int) -> PairLossModule:
        return MemoryModule(self, embedding_dim, num_classes)


class MemoryModule(PairLossModule):
    """The memory: a ring of embeddings [size, D] and labels [size], where to write next, and the steps so far."""

    memory: Tensor
    memory_labels: Tensor
    position: Tensor
    steps: Tensor
    pair_loss: XBM

    def __init__(self, pair_loss: XBM, embedding_dim: int, num_classes: int) -> None:
        super().__init__(pair_loss)
        self.embedding_dim, self.num_classes = embedding_dim, num_classes
        self.inner = pair_loss.loss.build(embedding_dim, num_classes)
        self.register_buffer("memory", torch.zeros(pair_loss.size, embedding_dim))
        self.register_buffer("memory_labels", torch.full((pair_loss.size,), EMPTY_LABEL))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, stats = self.inner.loss_of_pairs(replace(pairs, memory=self.memory, memory_labels=self.memory_labels))
        return loss, stats | {"memory": (self.memory_labels != EMPTY_LABEL).sum()}

    @torch.no_grad()
    def update_state(self, x: Tensor, y: Tensor) -> None:
        """Write the samples of all ranks over the oldest ones."""
        x, y = self.sync_group.gather_rows(at_least_fp32(x)), self.sync_group.gather_rows(y.long())
        size = len(self.memory)
        x, y = x[-size:].to(self.memory.dtype), y[-size:]
        places = (self.position + torch.arange(len(y), device=y.device)) % size
        waits = self.steps < self.pair_loss.start
        # Buffers are replaced, not written into: a backward pass may still need them (see head/state.py).
        self.memory = torch.where(waits, self.memory, self.memory.index_copy(0, places, x))
        self.memory_labels = torch.where(waits, self.memory_labels, self.memory_labels.index_copy(0, places, y))
        self.position = torch.where(waits, self.position, (self.position + len(y)) % size)
        self.steps = self.steps + 1

    def extend(self, n: int) -> None:
        """`n` more classes."""
        assert self.num_classes is not None
        self.num_classes += n
        self.inner.extend(n)

    def set_sync_group(self, group: Any, backend: str | None) -> None:
        super().set_sync_group(group, backend)
        self.inner.set_sync_group(group, backend)
