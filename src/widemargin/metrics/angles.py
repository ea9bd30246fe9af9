"""WC-Intra, W-Inter and C-Inter: how compact and how far apart classes are, in radians.

    WC-Intra = mean_j ∠(Centre_j, W_j)            compactness: feature centre against class weight
    W-Inter  = mean_{i≠j} ∠(W_i, W_j)             separation of the class weights
    C-Inter  = mean_{i≠j} ∠(Centre_i, Centre_j)   separation of the feature centres

`Centre_j` is the mean of the raw embeddings of class j. A class without samples is left out of the metrics that
need its centre, and listed. With K sub-centres per class, W [C, K, D], the angle to a class is the angle to its
nearest sub-centre: WC-Intra uses the sub-centre nearest to the feature centre, W-Inter the two nearest sub-centres
of two classes. Reference: ArcGrad (IJCNN 2020), Eq. 20 to 22, with C-Inter between centres as its text says.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..io.errors import InputError
from ..numerics import distributed
from ..numerics.angles import group_weights, nearest_cosines, safe_arccos, smallest_angle, unit_and_norm
from ..numerics.precision import widest_float_dtype
from ..numerics.validation import (
    allocate_class_matrix,
    check_embeddings,
    check_integer,
    check_labels,
    describe_type,
    device_mismatch_error,
    is_plain_float,
)

# Up to this many classes all pairs are computed (seconds); above it pairs are drawn.
MAX_EXACT_CLASSES = 20_000
NUM_SAMPLED_PAIRS = 200_000
_CHUNK_ELEMENTS = 1 << 22


class Angles(NamedTuple):
    """Angle metrics in radians; a standard error is given if pairs were sampled, None if all pairs were used."""

    wc_intra: float
    w_inter: float
    c_inter: float
    empty_classes: list[int]
    w_inter_error: float | None = None
    c_inter_error: float | None = None

    @property
    def is_sampled(self) -> bool:
        """True if an inter-class angle is estimated from sampled pairs, ± its standard error."""
        return self.w_inter_error is not None or self.c_inter_error is not None


def angles(x: Tensor, y: Tensor, W: Tensor, *, exact: bool | None = None) -> Angles:
    """Angle metrics of embeddings x [N, D], labels y [N] and class weights W [C, D], or [C, K, D] with sub-centres.

    `exact=None` uses all pairs of up to 20,000 classes, and above that 200,000 sampled pairs
    with their standard error; True and False force one or the other.

    >>> metrics = angles(2 * torch.eye(3), torch.tensor([0, 1, 2]), torch.eye(3))
    >>> round(metrics.wc_intra, 6), round(metrics.w_inter, 4), metrics.empty_classes
    (0.0, 1.5708, [])
    """
    if not is_plain_float(W) or W.ndim not in (2, 3):
        raise InputError(f"W must be a float tensor [C, D] or [C, K, D] of class weights, got {describe_type(W)}")
    meter = AngleMeter(W.shape[0], W.shape[-1], device=W.device)
    meter.update(x, y)
    return meter.compute(W, exact=exact, over_ranks=False)


class AngleMeter:
    """Accumulates class centres over batches; `compute` sums them over ranks.

    >>> meter = AngleMeter(num_classes=3, embedding_dim=3)
    >>> for i in range(3): meter.update(torch.eye(3)[i : i + 1], torch.tensor([i]))
    >>> round(meter.compute(torch.eye(3)).c_inter, 4)
    1.5708
    """

    def __init__(self, num_classes: int, embedding_dim: int, device: torch.device | str | None = None) -> None:
        where = torch.device(device or "cpu")
        num_classes, embedding_dim = (
            check_integer("num_classes", num_classes, 1),
            check_integer("embedding_dim", embedding_dim, 1),
        )
        self.sums = allocate_class_matrix(num_classes, embedding_dim, where, widest_float_dtype(where)).zero_()
        self.counts = torch.zeros(num_classes, dtype=torch.int64, device=where)

    @torch.no_grad()
    def update(self, x: Tensor, y: Tensor) -> None:
        """Add a batch."""
        check_embeddings(x, self.sums.shape[1])
        for what, tensor in (("embeddings", x), ("labels", y)):  # any device is accepted except meta
            if isinstance(tensor, Tensor) and tensor.is_meta and not self.sums.is_meta:
                raise device_mismatch_error(what, tensor, "sums of the meter", self.sums.device)
        check_labels(y, len(x), len(self.sums), x.abs().amax(1) if x.numel() else None)
        rows = y.long().to(self.sums.device)
        self.sums.index_add_(0, rows, x.to(self.sums))
        self.counts.index_add_(0, rows, torch.ones_like(rows))

    def merge(self, other: AngleMeter) -> None:
        """Add the sums of another meter."""
        if not isinstance(other, AngleMeter):
            raise InputError(f"a meter can only be merged with another meter, got {type(other).__name__}")
        if other.sums.shape != self.sums.shape:
            raise InputError(f"meters of {list(self.sums.shape)} and {list(other.sums.shape)} cannot be merged")
        self.sums += other.sums.to(self.sums)
        self.counts += other.counts.to(self.counts)

    def merge_ranks(self) -> None:
        """Add the sums of the meters of all other ranks; every rank must call this."""
        self.sums, self.counts = self._sums_of_all_ranks()

    def _sums_of_all_ranks(self) -> tuple[Tensor, Tensor]:
        return distributed.all_reduce_sum(self.sums), distributed.all_reduce_sum(self.counts)

    @torch.no_grad()
    def compute(self, W: Tensor, *, exact: bool | None = None, over_ranks: bool = True) -> Angles:
        """Return the metrics against class weights W [C, D] or [C, K, D]; over all ranks if several train together."""
        if not is_plain_float(W) or W.ndim not in (2, 3) or (len(W), W.shape[-1]) != self.sums.shape or 0 in W.shape:
            actual = list(W.shape) if is_plain_float(W) else describe_type(W)
            raise InputError(f"W must be a float tensor of shape {list(self.sums.shape)}, got {actual}")
        W = W.to(self.sums.device)
        sums, counts = self._sums_of_all_ranks() if over_ranks else (self.sums, self.counts)
        present = (counts > 0).nonzero().squeeze(1)
        all_classes = torch.arange(len(counts), device=counts.device)
        w_inter, w_error = mean_angle(W.detach(), all_classes, exact)
        c_inter, c_error = mean_angle(sums, present, exact)  # the mean and the sum have the same direction
        return Angles(
            wc_intra=_mean_of_pairs(W.detach(), present, sums, present)[0] if len(present) else math.nan,
            w_inter=w_inter,
            c_inter=c_inter,
            empty_classes=(counts == 0).nonzero().squeeze(1).tolist(),
            w_inter_error=w_error,
            c_inter_error=c_error,
        )


def mean_angle(rows: Tensor, indices: Tensor, exact: bool | None = None) -> tuple[float, float | None]:
    """Mean angle over all pairs among the rows `indices` of a matrix, and its standard error (None: exact).

    For rows with sub-centres, [C, K, D], the smallest angle of each pair counts. Works on chunks of rows, for any
    number of classes. NaN for fewer than two rows.
    """
    count = len(indices)
    if count < 2:
        return math.nan, None
    if exact if exact is not None else count <= MAX_EXACT_CLASSES:
        return _mean_of_all_pairs(_directions(rows, indices)), None
    generator = torch.Generator().manual_seed(0)  # the same pairs every time: a metric must not change between calls
    first = torch.randint(count, (NUM_SAMPLED_PAIRS,), generator=generator)
    second = (first + torch.randint(1, count, (NUM_SAMPLED_PAIRS,), generator=generator)) % count
    mean, deviation = _mean_of_pairs(rows, indices[first.to(indices.device)], rows, indices[second.to(indices.device)])
    return mean, deviation / math.sqrt(NUM_SAMPLED_PAIRS)


def _directions(rows: Tensor, indices: Tensor) -> Tensor:
    """Return the unit vectors of some rows, as groups [n, K, D]."""
    return unit_and_norm(group_weights(rows[indices]).to(widest_float_dtype(rows.device)))[0]


def _mean_of_all_pairs(unit: Tensor) -> float:
    count = len(unit)
    step = max(1, _CHUNK_ELEMENTS // (count * unit.shape[1] ** 2))
    total = 0.0
    for start in range(0, count, step):
        theta = safe_arccos(nearest_cosines(unit[start : start + step], unit[start:]))
        total += float(theta.triu(1).sum())  # pairs i < j of this strip
    return total / (count * (count - 1) / 2)


def _mean_of_pairs(rows: Tensor, indices: Tensor, other_rows: Tensor, other_indices: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of the angles between rows `indices` and their partners, in chunks."""
    groups = group_weights(rows[:1]).shape[1] * group_weights(other_rows[:1]).shape[1]
    step = max(1, _CHUNK_ELEMENTS // (rows.shape[-1] * groups))
    chunks = [
        smallest_angle(_directions(rows, a), _directions(other_rows, b))
        for a, b in zip(torch.split(indices, step), torch.split(other_indices, step), strict=True)
    ]
    theta = torch.cat(chunks)
    return float(theta.mean()), float(theta.std(correction=0))
