"""Sub-centres of a trained head: outliers, and a head with only the dominant sub-centres.

With noisy labels the clean samples of a class gather at one of its K sub-centres, the dominant one, and mislabelled
samples at the others. The drop rule of Sub-centre ArcFace uses this to clean the data:

    result = wm.subcenter_outliers(head, x, y)    # embeddings and labels of all training samples
    keep = ~result.is_outlier                     # train again on these, with one weight per class
    head.keep_dominant(result.dominant)           # optional initial weights for that: k=1

Reference: Deng et al., Sub-center ArcFace (ECCV 2020), Section 3.4, and the authors' code (75°).
"""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..io.errors import InputError, format_value
from ..numerics import validation
from ..numerics.angles import group_weights, unit_and_norm
from .classes import rebuild_head

if TYPE_CHECKING:
    from .head import Head

_CHUNK_ELEMENTS = 1 << 22


class SubcenterOutliers(NamedTuple):
    """Result of the drop rule."""

    is_outlier: Tensor
    """Samples [N] that are too far from the dominant sub-centre of their class."""
    dominant: Tensor
    """The dominant sub-centre of each class [C], an index from 0 to K − 1; 0 for a class without a sample."""
    counts: Tensor
    """Number of samples of each class that are nearest to each of its sub-centres [C, K]."""


@torch.no_grad()
def subcenter_outliers(head: Head, x: Tensor, y: Tensor, *, max_angle: float = 75.0) -> SubcenterOutliers:
    """Find samples more than `max_angle` degrees from the dominant sub-centre of their class.

    The dominant sub-centre is the one that is nearest to most samples of the class; ties go to the first. A sample
    nearest to another sub-centre is not an outlier for that reason alone. Samples with the label `ignore_index` are
    ignored and never outliers. Embeddings are processed in blocks, on any device.

    Args:
        head: a trained head; with a single weight per class the angle is measured to that weight.
        x: embeddings [N, D] of all training samples. All ranks of a sharded head call this, each with its own samples
            (or none); the dominant sub-centres are then those of all samples together.
        y: their labels [N].
        max_angle: from 0 to 180 degrees; 75 in the authors' code.

    >>> from widemargin.head.head import Head
    >>> head = Head(2, 2, "subcenter_arcface(k=2)")
    >>> _ = head.weight.data.copy_(torch.tensor([[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]]))
    >>> x = torch.tensor([[2.0, 0.1], [1.0, 0.5], [-1.0, 0.2], [0.3, 1.0]])
    >>> result = subcenter_outliers(head, x, torch.tensor([0, 0, 0, 1]))
    >>> result.is_outlier.tolist(), result.dominant.tolist(), result.counts.tolist()
    ([False, False, True, False], [0, 0], [[2, 1], [1, 0]])
    """
    min_cosine = math.cos(math.radians(_check_degrees(max_angle)))
    validation.check_embeddings(x, head.embedding_dim)
    counted = None
    if head.ignore_index is not None and isinstance(y, Tensor):
        counted = validation.not_ignored_mask(y, head.ignore_index)
        y = torch.where(counted, y, torch.zeros_like(y))
    validation.check_labels(y, len(x), head.num_classes, device=x.device)
    weight = unit_and_norm(group_weights(head.gather_weight()))[0]
    num_classes, count, _ = weight.shape
    labels = y.to(weight.device).long()
    cos = own_cosines(x, labels, weight)
    place = labels * count + cos.argmax(1)
    place = place if counted is None else place[counted.to(place.device)]
    counts = torch.bincount(place, minlength=num_classes * count).view(num_classes, count)
    if head.shard is not None:
        counts = head.shard.all_reduce_sum(counts)
    dominant = counts.argmax(1)
    near = cos.gather(1, dominant[labels].unsqueeze(1)).squeeze(1) > min_cosine
    is_outlier = ~near.to(x.device)
    return SubcenterOutliers(is_outlier if counted is None else is_outlier & counted, dominant, counts)


def _check_degrees(max_angle: Any) -> float:
    if isinstance(max_angle, bool) or not isinstance(max_angle, numbers.Real) or not 0 <= float(max_angle) <= 180:
        raise InputError(f"max_angle={format_value(max_angle)} must be an angle from 0 to 180 degrees")
    return float(max_angle)


def own_cosines(x: Tensor, y: Tensor, unit_weight: Tensor) -> Tensor:
    """Cosines [N, K] of embeddings [N, D] with the K sub-centres of their class, in blocks; unit weights [C, K, D]."""
    _, count, dim = unit_weight.shape
    cos = unit_weight.new_empty(len(x), count, dtype=torch.promote_types(unit_weight.dtype, torch.float32))
    step = max(1, _CHUNK_ELEMENTS // (count * dim))
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        unit, length = unit_and_norm(x[rows].to(cos.device, cos.dtype))
        validation.check_labels(y[rows], len(unit), len(unit_weight), length)  # checks that embeddings are finite
        cos[rows] = torch.einsum("nkd,nd->nk", unit_weight[y[rows]].to(cos.dtype), unit)
    return cos


def nearest_own_subcenters(unit: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Row [N] of the sub-centre nearest to each sample among those of its class, in weights [C, K, D] as [C·K, D]."""
    return y * weight.shape[1] + own_cosines(unit, y, unit_and_norm(weight)[0]).argmax(1)


def dominant_head(head: Head, dominant: Tensor) -> Head:
    """Return a new head with the same loss at k=1 and the sub-centres `dominant` [C] of `head` as class weights."""
    subcenters = head.margin.subcenters
    values = dict(head.spec.named_values())
    if subcenters is None or "k" not in values:
        raise InputError(f"{head.spec!r} has one weight per class; keep_dominant is for losses with k > 1")
    integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if not isinstance(dominant, Tensor) or dominant.dtype not in integers or dominant.shape != (head.num_classes,):
        actual = f"{dominant.dtype} {list(dominant.shape)}" if isinstance(dominant, Tensor) else format_value(dominant)
        raise InputError(
            f"dominant must be integers [{head.num_classes}], as returned by subcenter_outliers, got {actual}"
        )
    dominant = dominant.to(head.weight.device).long()
    if bool(((dominant < 0) | (dominant >= subcenters.count)).any()):
        raise InputError(f"dominant must be indices of sub-centres, from 0 to {subcenters.count - 1}")
    new = rebuild_head(head, type(head.spec)(**{**values, "k": 1}))
    here = dominant if head.shard is None else dominant[head.shard.start : head.shard.stop]
    with torch.no_grad():
        new.weight.copy_(head.weight[torch.arange(len(here), device=here.device), here])
        if head.bias is not None and new.bias is not None:
            new.bias.copy_(head.bias)
    return new
