"""PairBatch: the samples that a pair loss compares, as anchors (rows) and all that they are compared with (columns).

In a single process both are the batch. With several ranks the columns are the batches of all ranks, with their
gradients, and a cross-batch memory adds columns without gradient. A loss sees none of this: it asks for cosines or
distances [N, M] and for the masks of the pairs of one class and of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..numerics import angles, host_reads, torch_compat
from ..numerics.log_sums import EMPTY_LOG_SUM
from .margin import softplus

EMPTY_LABEL = -1
"""Label of a place of the memory that holds no sample yet."""
MAX_BLOCK_ELEMENTS = 2**22
"""Numbers of one block where pairs × samples are needed: 16 MiB in fp32."""
_MAX_ROW_BLOCK_ELEMENTS = 2**17
"""Numbers of one block of rows, which stay in a core's cache."""
_CLOSE = 1e-3  # squared distances below this share of the squared lengths have lost more than four of fp32's digits


class PairList:
    """Where a mask [N, M] of pairs is True; found when asked for.

    The number of pairs sizes tensors, so Python reads it, which an accelerator waits for. A list that is passed to
    `PairBatch.squared_distances`, which waits too, is counted there: one host synchronisation for both.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self._count: int | None = None

    def find(self) -> tuple[Tensor, Tensor]:
        """Rows [T] and columns [T] of the pairs, in order."""
        if self._count is None and _reads_nothing(self.mask):
            rows, columns = self.mask.nonzero(as_tuple=True)
            return rows, columns
        if self._count is None:
            PairList.count_together(self)
        assert self._count is not None
        rows, columns = torch.nonzero_static(self.mask, size=self._count).unbind(1)
        return rows, columns

    @staticmethod
    def count_together(*lists: PairList) -> None:
        """Read the number of pairs of several lists at once."""
        counts = host_reads.read_integers(torch.stack([one.mask.sum() for one in lists]))
        for one, count in zip(lists, counts, strict=True):
            one._count = count


def _reads_nothing(mask: Tensor) -> bool:
    """True if the places of a mask are found without waiting: on a CPU, and where a compiler traces the step."""
    return host_reads.is_read_free(mask, "pair_list") or torch.compiler.is_compiling()


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Anchors `x[start : start + count]` and the samples they are compared with: `x` [B, D], then `memory` [Q, D]."""

    x: Tensor
    y: Tensor
    start: int
    count: int
    memory: Tensor | None = None
    memory_labels: Tensor | None = None

    @classmethod
    def of_batch(cls, x: Tensor, y: Tensor) -> PairBatch:
        """Every sample of a batch as an anchor, compared with all the others."""
        return cls(x, y, 0, len(y))

    def with_all_anchors(self) -> PairBatch:
        """Return the batch with the samples of all ranks as anchors, for losses on the negatives of positives."""
        return replace(self, start=0, count=len(self.y))

    def own_rows(self, rows: Tensor) -> Tensor:
        """This rank's part of what was computed with `with_all_anchors`."""
        return rows[self.start : self.start + self.count]

    @property
    def labels(self) -> Tensor:
        """Labels of the anchors [N]."""
        return self.own_rows(self.y)

    @property
    def column_labels(self) -> Tensor:
        """Labels of the samples that anchors are compared with [M]; `EMPTY_LABEL` where the memory is empty."""
        return self.y if self.memory_labels is None else torch.cat([self.y, self.memory_labels])

    def itself(self) -> Tensor:
        """Mask [N, M] of each anchor's own column."""
        columns = torch.arange(len(self.column_labels), device=self.y.device)
        return columns == (torch.arange(self.count, device=self.y.device) + self.start).unsqueeze(1)

    def masks(self) -> tuple[Tensor, Tensor]:
        """Pairs of one class without each anchor itself, and pairs of two classes: two [N, M] masks."""
        columns = self.column_labels
        same = self.labels.unsqueeze(1) == columns
        different = ~same
        if self.memory_labels is not None:
            different &= columns != EMPTY_LABEL
        same.diagonal(self.start).fill_(False)
        return same, different

    def pairs_per_anchor(self) -> Tensor | int:
        """Number of samples that each anchor is compared with, at least 1."""
        others = max(len(self.y) - 1, 0)
        if self.memory_labels is None:
            return max(others, 1)
        return (others + (self.memory_labels != EMPTY_LABEL).sum()).clamp(min=1)

    def dots(self, scale: float = 1.0) -> Tensor:
        """Cosines [N, M], times `scale`."""
        rows, columns, memory = self._vectors(normalize=True)
        return _products(rows if scale == 1.0 else scale * rows, columns, memory)

    def squared_distances(self, normalize: bool = True, *, also_count: PairList | None = None) -> Tensor:
        """Squared Euclidean distances [N, M], on unit embeddings unless `normalize` is False; small ones are exact.

        `also_count` is counted in the same host synchronisation.
        """
        rows, columns, memory = self._vectors(normalize)
        # Far from their mean, two squares would swallow the difference of points that are close together.
        centre = columns.detach().sum(0, keepdim=True) / max(len(columns), 1)
        columns = columns - centre
        memory = None if memory is None else memory - centre
        rows = rows - centre if self.count < len(columns) else columns
        row_squares = rows.square().sum(1)
        column_squares = row_squares if rows is columns else columns.square().sum(1)
        distance = torch.addmm(column_squares, rows, columns.T, alpha=-2.0)
        if memory is not None:
            distance = torch.cat([distance, torch.addmm(memory.square().sum(1), rows, memory.T, alpha=-2.0)], 1)
        distance = distance.add_(row_squares.unsqueeze(1)).relu_()  # in place: an N×M matrix each
        if torch_compat.is_inside_transform():
            return distance
        close = distance.detach() < (2.0 * _CLOSE * row_squares.detach()).unsqueeze(
            1
        )  # where lengths are as good as equal
        close.diagonal(self.start).fill_(False)
        close_pairs = PairList(close)
        if not _reads_nothing(close):
            PairList.count_together(close_pairs, *([] if also_count is None else [also_count]))
        first, second = close_pairs.find()
        if not torch.compiler.is_compiling() and not len(first):
            return distance
        every = columns if memory is None else torch.cat([columns, memory])

        def exact(i: Tensor, j: Tensor) -> Tensor:
            return (rows[i] - every[j]).square().sum(1)

        return distance.index_put((first, second), map_pairs(exact, first, second, rows.shape[1]))

    def distances(self, normalize: bool = True, *, also_count: PairList | None = None) -> Tensor:
        """Euclidean distances [N, M]; those of points that coincide are next to 0 and have the gradient 0."""
        return safe_sqrt(self.squared_distances(normalize, also_count=also_count))

    def statistics(self, same: Tensor, different: Tensor) -> dict[str, Tensor]:
        """Counts worth logging: pairs of one class (each from both ends), and anchors without such a pair."""
        return {
            "positive_pairs": same.sum(),
            "anchors_without": (~(same.any(1) & different.any(1))).sum(),
        }

    def _vectors(self, normalize: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        columns = angles.unit_and_norm(self.x)[0] if normalize else self.x
        memory = None if self.memory is None else self.memory.to(columns.dtype)
        if memory is not None and normalize:
            memory = angles.unit_and_norm(memory)[0]
        return self.own_rows(columns) if self.count < len(columns) else columns, columns, memory


def _products(rows: Tensor, columns: Tensor, memory: Tensor | None) -> Tensor:
    """Scalar products with the columns and with the memory, whose part needs no gradient of its columns."""
    found = rows @ columns.T
    return found if memory is None else torch.cat([found, rows @ memory.T], 1)


def safe_sqrt(squares: Tensor) -> Tensor:
    """√ of numbers that are not negative; that of 0 is about 1e-19 (1e-154 in fp64) and has the slope 0."""
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt_()


def map_pairs(compute: Callable[[Tensor, Tensor], Tensor], first: Tensor, second: Tensor, width: int) -> Tensor:
    """`compute(first, second)` [T] of T pairs, each of which takes `width` numbers, in blocks.

    More than one block is computed again in the backward pass, so that no more than `MAX_BLOCK_ELEMENTS` are kept.
    """
    rows = max(1, MAX_BLOCK_ELEMENTS // max(width, 1))
    if torch.compiler.is_compiling() or len(first) <= rows:
        return compute(first, second)
    blocks = zip(torch.split(first, rows), torch.split(second, rows), strict=True)
    return torch.cat([checkpoint(compute, i, j, use_reentrant=False) for i, j in blocks])


def map_rows(compute: Callable[..., tuple[Tensor, ...]], *matrices: Tensor) -> tuple[Tensor, ...]:
    """`compute(*matrices)`, vectors [N] from matrices [N, M] (or [N, 1]), in blocks of rows.

    So what the steps of a formula compute in between, forward and backward, takes no N×M matrices, and stays in the
    cache; what the backward pass needs is kept.
    """
    rows = max(1, _MAX_ROW_BLOCK_ELEMENTS // max(matrices[0].shape[1], 1))
    if torch.compiler.is_compiling() or torch_compat.is_inside_transform() or len(matrices[0]) <= rows:
        return compute(*matrices)
    blocks = zip(*(torch.split(matrix, rows) for matrix in matrices), strict=True)
    found = [compute(*block) for block in blocks]
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def logsumexp_of_pairs(values: Tensor, anchor: Tensor, count: int) -> Tensor:
    """log Σ exp [N] of one value per pair [T] over the pairs of each of `count` anchors; as `masked_logsumexp`."""
    peak = values.new_full((count,), EMPTY_LOG_SUM).scatter_reduce(0, anchor, values.detach(), "amax")
    sums = values.new_zeros(count).index_add(0, anchor, torch.exp(values - peak[anchor]))
    return torch.where(sums > 0, torch.log(torch.where(sums > 0, sums, 1.0)) + peak, EMPTY_LOG_SUM)


def softplus_of_pairs(z: Tensor) -> Tensor:
    """`log(1 + exp(z))` of a list of pairs.

    torch.compile cannot differentiate `logsigmoid`, whose slope is exact too, where the number of pairs is not known.
    """
    return torch.logaddexp(torch.zeros_like(z), z) if torch.compiler.is_compiling() else softplus(z)


def mean_over_positives(values: Tensor, anchor: Tensor, count: int) -> Tensor:
    """Mean [N] of one value per positive pair [T] over the pairs of each of `count` anchors; 0 where there is none."""
    total = values.new_zeros(count).index_add(0, anchor, values)
    pairs = values.new_zeros(count).index_add(0, anchor, torch.ones_like(values))
    return total / pairs.clamp(min=1.0)


def pair_masks(y: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of one class without the diagonal, and pairs of two classes: two [N, N] masks of a batch."""
    return PairBatch(y.new_zeros(len(y), 1), y, 0, len(y)).masks()
