"""Retrieval metrics: recall@k, R-precision and MAP@R, exact and in bounded memory.

Queries are compared with the gallery one block at a time: no more than batch × block similarities exist at once.
Similarity is the cosine; see `neighbors`. If the queries are the gallery itself, a query does not find itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io.errors import InputError, format_value
from ..numerics.validation import check_embeddings_and_labels, check_integer
from .intervals import leave_one_out_means, mean_interval
from .neighbors import NeighborSearch


@dataclass(frozen=True)
class RetrievalMetrics:
    """Metrics in percent, means over the queries that have a match in the gallery."""

    recall: dict[int, float]
    r_precision: float
    map_at_r: float
    queries: int
    """Number of queries that count."""
    without_match: int
    """Queries of a class that the gallery does not have; they do not count."""
    intervals: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    """95 % intervals over the classes of the queries by name (`recall@1`, `r_precision`, `map_at_r`), percent.

    None for fewer than ten classes, or fewer than ten queries' worth of hits or misses.
    """
    leave_one_out: dict[str, NDArray[np.float64]] = field(default_factory=dict, repr=False, compare=False)
    """The same metrics without the queries of each class in turn, in the order of the class labels, percent."""


def retrieval_metrics(
    queries: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    ks: Sequence[int] = (1, 5, 10),
    batch_size: int = 1024,
    faiss: bool = False,
) -> RetrievalMetrics:
    """Compute the metrics of queries [N, D] against a gallery [M, D], or among themselves without one."""
    is_self_search = gallery is None
    gallery, gallery_labels = resolve_gallery(queries, labels, gallery, gallery_labels)
    check_search_inputs(queries, labels, gallery, gallery_labels, batch_size)
    if not ks or not all(isinstance(k, int) and not isinstance(k, bool) and k >= 1 for k in ks):
        raise InputError(f"ks={format_value(ks)} must be whole numbers of at least 1")
    classes, sizes = torch.unique(gallery_labels, return_counts=True)
    relevant = _count_relevant(labels, classes, sizes) - int(is_self_search)
    counted = relevant > 0
    if not bool(counted.any()):
        raise InputError("retrieval needs at least one query with another image of its class in the gallery")
    depth = min(max(int(relevant.max()), *ks), len(gallery) - int(is_self_search))
    query_classes, of_class = torch.unique(labels, return_inverse=True)
    sums = torch.zeros(len(query_classes), len(ks) + 2, dtype=torch.float64)
    search = NeighborSearch(gallery, faiss=faiss)
    for start in range(0, len(queries), batch_size):
        rows = slice(start, start + batch_size)
        skip = torch.arange(start, start + len(labels[rows])) if is_self_search else None
        _, neighbors = search(queries[rows], depth, skip)
        figures = _metrics_per_query(gallery_labels[neighbors] == labels[rows].unsqueeze(1), relevant[rows], ks)
        sums.index_add_(0, of_class[rows][counted[rows]], figures)
    total = int(counted.sum())
    means = (100.0 * sums.sum(0) / total).tolist()
    names = [*(f"recall@{k}" for k in ks), "r_precision", "map_at_r"]
    counts = torch.bincount(of_class[counted], minlength=len(query_classes)).numpy()
    by_name = dict(zip(names, sums.T.numpy(), strict=True))
    return RetrievalMetrics(
        dict(zip(ks, means, strict=False)),
        means[-2],
        means[-1],
        total,
        len(labels) - total,
        {name: interval_to_percent(mean_interval(part, counts)) for name, part in by_name.items()},
        {name: 100.0 * leave_one_out_means(part, counts) for name, part in by_name.items()},
    )


def interval_to_percent(ends: tuple[float, float] | None) -> tuple[float, float] | None:
    """Convert an interval of a proportion to percent."""
    return None if ends is None else (100.0 * ends[0], 100.0 * ends[1])


def resolve_gallery(
    queries: Tensor, labels: Tensor, gallery: Tensor | None, gallery_labels: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gallery and its labels; the queries themselves if neither is given."""
    if (gallery is None) != (gallery_labels is None):  # with half a gallery every query would find itself
        raise InputError("give both gallery and gallery_labels, or neither to search among the queries")
    return (queries, labels) if gallery is None or gallery_labels is None else (gallery, gallery_labels)


def check_search_inputs(
    queries: Tensor, labels: Tensor, gallery: Tensor, gallery_labels: Tensor, batch_size: int
) -> None:
    """Check the queries, gallery and batch size of a search."""
    check_embeddings_and_labels("queries", queries, labels)
    check_embeddings_and_labels("the gallery", gallery, gallery_labels)
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(f"queries have {queries.shape[1]} dimensions, the gallery has {gallery.shape[1]}")
    check_integer("batch_size", batch_size, 1)


def _count_relevant(labels: Tensor, classes: Tensor, counts: Tensor) -> Tensor:
    """Number of gallery images of each query's class."""
    place = torch.searchsorted(classes, labels).clamp(max=len(classes) - 1)
    return torch.where(classes[place] == labels, counts[place], 0)


def _metrics_per_query(hits: Tensor, relevant: Tensor, ks: Sequence[int]) -> Tensor:
    """For each query: recall at every k, R-precision, average precision at R, [N, metrics]."""
    counted = relevant > 0
    hits, relevant = hits[counted], relevant[counted]
    place = torch.arange(1, hits.shape[1] + 1)
    within = hits & (place <= relevant.unsqueeze(1))
    precision = hits.cumsum(1).double() / place
    metrics = [hits[:, :k].any(1).double() for k in ks]
    metrics.append(within.sum(1).double() / relevant)
    metrics.append((precision * within).sum(1) / relevant)
    return torch.stack(metrics, 1)
