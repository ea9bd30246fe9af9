"""Exact nearest neighbours by cosine in bounded memory, correct also for nearly equal embeddings.

The cosines of embeddings an angle θ apart differ from 1 by θ²/2: below about 3e-4 radians single precision rounds them
to 1. So similarities are computed in single precision first, and those that rounding could put in the wrong order are
recomputed in double precision.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io.errors import InputError
from ..numerics.angles import unit_and_norm

_GALLERY_BLOCK_ROWS = 16_384
_SPARE_CANDIDATES = 16  # candidates beyond `depth`, to detect a tie at the end
_PAIR_CHUNK_VALUES = 1 << 22  # embedding values that are gathered at once


class NeighborSearch:
    """Searches a gallery of embeddings [M, D]; with `faiss`, its exact index finds the candidates.

    Embeddings may have any length and float dtype; a gallery or queries in double precision are searched in it.
    """

    def __init__(self, gallery: Tensor, *, faiss: bool = False) -> None:
        self.gallery = gallery
        self.is_double = gallery.dtype == torch.float64
        self.unit = unit_and_norm(gallery if self.is_double else gallery.float())[0]
        self.index = _faiss_index(self.unit.float()) if faiss else None

    def __call__(self, queries: Tensor, depth: int, skip: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return cosines and indices [N, depth] of the nearest gallery entries, best first.

        `skip` [N] is the gallery index that each query must not return, its own.
        """
        available = len(self.gallery) - (skip is not None)
        if self.is_double or queries.dtype == torch.float64:
            return self._search_in_double(queries, depth, skip)
        num_candidates = min(depth + _SPARE_CANDIDATES, available)
        unit = unit_and_norm(queries.float())[0]
        if self.index is None:
            scores, places = nearest_neighbors(unit, self.unit, num_candidates, skip)
        else:
            scores, places = _search_index(self.index, unit, num_candidates, skip)
        return self._order_ties(queries, scores, places, depth, skip)

    def _order_ties(
        self, queries: Tensor, scores: Tensor, places: Tensor, depth: int, skip: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the nearest candidates; those within rounding of each other are ordered in double precision."""
        available = len(self.gallery) - (skip is not None)
        # Twice the error of a sum of D products of unit vectors, assuming that rounding errors add up randomly.
        tolerance = torch.finfo(torch.float32).eps * (4.0 + self.gallery.shape[1] ** 0.5)
        close = scores[:, :-1] - scores[:, 1:] < tolerance
        edge = close.new_zeros(len(close), 1)
        tied = torch.cat((edge, close), 1) | torch.cat((close, edge), 1)
        # If others may be as near as the last candidate, or many are tied, the whole gallery is searched again.
        again = tied.sum(1) > len(self.gallery) // 8
        if scores.shape[1] < available:
            again |= scores[:, depth - 1] - scores[:, -1] < tolerance
        below_one = scores.double() - 1.0  # cosine − 1, which keeps all digits of a small angle
        row, column = (tied & ~again.unsqueeze(1)).nonzero(as_tuple=True)
        step = max(1, _PAIR_CHUNK_VALUES // self.gallery.shape[1])
        for start in range(0, len(row), step):
            r, c = row[start : start + step], column[start : start + step]
            one, other = (unit_and_norm(part.double())[0] for part in (queries[r], self.gallery[places[r, c]]))
            below_one[r, c] = -0.5 * (one - other).square().sum(1)
        below_one, order = below_one.sort(dim=1, descending=True, stable=True)
        exact, places = 1.0 + below_one[:, :depth], places.gather(1, order)[:, :depth]
        if bool(again.any()):
            rows = again.nonzero().squeeze(1)
            refined = self._search_in_double(queries[rows], depth, None if skip is None else skip[rows])
            exact[rows], places[rows] = refined
        return exact, places

    def _search_in_double(self, queries: Tensor, depth: int, skip: Tensor | None) -> tuple[Tensor, Tensor]:
        """Search the whole gallery in double precision, by distances from a common centre.

        A cosine near 1 has few digits left for a small angle even in double precision; a squared distance has all of
        them.
        """
        unit = unit_and_norm(queries.double())[0]
        centre = self.unit.double().mean(0) if self.is_double else _mean_direction(self.gallery)
        centred = unit - centre
        base = 1.0 - 0.5 * centred.square().sum(1, keepdim=True)
        best: tuple[Tensor, Tensor] | None = None
        for start in range(0, len(self.gallery), _GALLERY_BLOCK_ROWS):
            part = unit_and_norm(self.gallery[start : start + _GALLERY_BLOCK_ROWS].double())[0] - centre
            scores = torch.addmm(-0.5 * part.square().sum(1), centred, part.T)
            best = _merge_block(best, scores, start, depth, skip)
        assert best is not None
        return best[0] + base, best[1]


def nearest_neighbors(
    queries: Tensor, gallery: Tensor, depth: int, skip: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return similarities and indices [N, depth] of the nearest unit vectors of the gallery, best first.

    Ties within rounding are not resolved; `NeighborSearch` does that. `skip` [N] is the gallery index that each query
    must not return, its own.
    """
    blocks = (
        (start, gallery[start : start + _GALLERY_BLOCK_ROWS]) for start in range(0, len(gallery), _GALLERY_BLOCK_ROWS)
    )
    return nearest_in_blocks(queries, blocks, depth, skip)


@torch.no_grad()
def nearest_in_blocks(
    queries: Tensor, blocks: Iterable[tuple[int, Tensor]], depth: int, skip: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`nearest_neighbors` in a gallery given as blocks of unit vectors, each with the place of its first row.

    Holds the scores of one block and the best so far: a memory-mapped gallery is never in memory as a whole.
    """
    best: tuple[Tensor, Tensor] | None = None
    memory = queries.new_empty(0)  # of the scores, for all blocks: fresh pages would cost a sixth of the time
    for start, block in blocks:
        num_scores = len(queries) * len(block)
        memory = memory if len(memory) >= num_scores else queries.new_empty(num_scores)
        scores = torch.mm(queries, block.T, out=memory[:num_scores].view(len(queries), len(block)))
        best = _merge_block(best, scores, start, depth, skip)
    assert best is not None
    return best


def _merge_block(
    best: tuple[Tensor, Tensor] | None, scores: Tensor, start: int, depth: int, skip: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Merge the best so far with the scores of a block of the gallery that begins at `start`.

    A block seldom has a better one for a query than those of all blocks before: only rows whose largest score is above
    the last of the best are sorted.
    """
    if skip is not None:
        rows = ((skip >= start) & (skip < start + scores.shape[1])).nonzero().squeeze(1)
        scores[rows, skip[rows] - start] = -torch.inf
    if best is None or best[0].shape[1] < depth:
        return _merge_rows(best, scores, start, depth)
    changed = (~(scores.amax(1) <= best[0][:, -1])).nonzero().squeeze(1)  # NaN is sorted, as by topk
    if 2 * len(changed) > len(scores):  # without a copy of the scores
        return _merge_rows(best, scores, start, depth)
    if len(changed):
        merged = _merge_rows((best[0][changed], best[1][changed]), scores[changed], start, depth)
        best[0][changed], best[1][changed] = merged
    return best


def _merge_rows(best: tuple[Tensor, Tensor] | None, scores: Tensor, start: int, depth: int) -> tuple[Tensor, Tensor]:
    values, places = scores.topk(min(depth, scores.shape[1]), 1)
    places = places + start
    if best is None:
        return values, places
    values, places = torch.cat((best[0], values), 1), torch.cat((best[1], places), 1)
    values, order = values.topk(min(depth, values.shape[1]), 1)
    return values, places.gather(1, order)


def _mean_direction(gallery: Tensor) -> Tensor:
    """Mean [D] of the unit vectors of a gallery in double precision, one block at a time."""
    total = gallery.new_zeros(gallery.shape[1], dtype=torch.float64)
    for block in torch.split(gallery, _GALLERY_BLOCK_ROWS):
        total += unit_and_norm(block.double())[0].sum(0)
    return total / len(gallery)


def _faiss_index(gallery: Tensor) -> Any:
    """Return faiss' exact index of unit vectors."""
    try:
        faiss: Any = importlib.import_module("faiss")
    except ImportError:
        raise InputError('faiss is not installed: pip install "widemargin[faiss]"') from None
    index = faiss.IndexFlatIP(gallery.shape[1])
    index.add(gallery.contiguous().numpy())
    return index


def _search_index(index: Any, queries: Tensor, depth: int, skip: Tensor | None) -> tuple[Tensor, Tensor]:
    """`nearest_neighbors` with an index, which returns one more result if a query must not find itself."""
    values, places = index.search(queries.contiguous().numpy(), depth + (skip is not None))
    scores, indices = torch.from_numpy(values), torch.from_numpy(places)
    if skip is None:
        return scores, indices
    own = indices == skip.unsqueeze(1)
    own[~own.any(1), -1] = True  # an equal entry was returned instead of the query itself: drop the last one
    keep = ~own
    return scores[keep].view(len(queries), depth), indices[keep].view(len(queries), depth)


VectorIndex = Callable[[NDArray[np.float32], int], tuple[NDArray[np.float32], NDArray[np.int64]]]
"""`index(queries, depth)`: cosines and places [N, depth] of the nearest vectors."""


def build_index(library: str, parts: Sequence[NDArray[np.float32]], dim: int) -> VectorIndex:
    """An index in memory over unit vectors: `faiss` (flat, exact) or `usearch` (HNSW graph, approximate)."""
    return (_build_faiss if library == "faiss" else _build_usearch)(parts, dim)


def _build_faiss(parts: Sequence[NDArray[np.float32]], dim: int) -> VectorIndex:
    index = _faiss_index(torch.empty(0, dim))
    for part in parts:
        index.add(np.ascontiguousarray(part))

    def search(queries: NDArray[np.float32], depth: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        cosines, places = index.search(np.ascontiguousarray(queries), depth)
        return cosines, places

    return search


def _build_usearch(parts: Sequence[NDArray[np.float32]], dim: int) -> VectorIndex:
    try:
        usearch: Any = importlib.import_module("usearch.index")
    except ImportError:
        raise InputError('usearch is not installed: pip install "widemargin[usearch]"') from None
    index = usearch.Index(ndim=dim, metric="ip", dtype="f32")
    start = 0
    for part in parts:
        index.add(np.arange(start, start + len(part)), np.ascontiguousarray(part))
        start += len(part)

    def search(queries: NDArray[np.float32], depth: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        found = index.search(np.ascontiguousarray(queries), depth)
        keys, distances = (np.asarray(part).reshape(len(queries), -1) for part in (found.keys, found.distances))
        return (1.0 - distances).astype(np.float32), keys.astype(np.int64)

    return search
