"""Parts of a page made from a run's images: its most confident mistakes, its pairs, and how its embeddings lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..metrics.identity_intervals import LEAST_EVENTS
from . import neighbours, page, pairs
from .flat import flat
from .sphere import sphere
from .spokes import spokes

if TYPE_CHECKING:
    from ..training.look import Look

_NAMED = 20  # classes that can be named around a circle


def look_parts(seen: Look) -> list[str]:
    """The parts, in the order of a page."""
    small = ["".join(part) for part in (_mistakes(seen), _embeddings(seen)) if part]
    told = [page.paragraph(seen.told, "note")] if seen.told else []
    return [*told, *([page.side(small)] if small else []), *_pairs(seen)]


def _mistakes(seen: Look) -> list[str]:
    if not seen.mistakes:
        return []
    rows = []
    for mistake in seen.mistakes:
        picture = neighbours.thumbnail(mistake.pixels)
        words = f"{mistake.true}, taken for {mistake.said} at {100 * mistake.chance:.0f} %"
        rows.append(neighbours.captioned(picture, words))
    text = f"Of {seen.images:,} test images, those named wrongly with the greatest confidence."
    return [neighbours.STYLE, page.heading("Most confident mistakes", text), f'<div class="near">{"".join(rows)}</div>']


def _pairs(seen: Look) -> list[str]:
    if seen.pairs is None:
        return []
    found = seen.pairs
    said = f"AUC {found.auc.percent}, "
    said += f"EER {found.eer.percent}" if found.eer is not None else f"no EER: {found.refused['eer']}"
    if min(found.same, found.different) < LEAST_EVENTS:
        said = f"too few for figures, {LEAST_EVENTS} of each kind are needed"
    text = (
        f"All pairs of {seen.images:,} test images, {found.same:,} of one class and {found.different:,} of two: "
        f"{said}. "
        f"TAR over FAR is drawn where at least {LEAST_EVENTS} pairs of each kind are accepted."
    )
    picture = pairs.curve(found.roc, found.same, found.different, "TAR over FAR")
    return [
        page.heading("Same or different", text),
        *([] if picture is None else [page.figure(picture)]),
        page.figure(pairs.spread(found.roc, [], "Cosines of same and different pairs")),
    ]


def _embeddings(seen: Look) -> list[str]:
    dim = seen.directions.shape[1]
    if dim == 1:
        return []
    if dim == 3 and seen.weights is not None:
        text = f"{seen.images:,} test images on the unit sphere; rays are the class weights."
        picture = sphere(seen.directions, seen.y, seen.classes, seen.weights, "Embeddings on the sphere")
        return [page.heading("Embeddings", text), f'<div style="max-width:420px">{page.figure(picture)}</div>']
    if dim == 2 and len(seen.classes) <= _NAMED:
        text = f"{seen.images:,} test images on the unit circle, spread a little across it to be seen"
        text += "." if seen.weights is None else "; rays are the class weights."
        picture = spokes(seen.directions, seen.y, seen.classes, seen.weights, True, "Embeddings on the circle")
        return [page.heading("Embeddings", text), page.figure(picture)]
    if dim == 2:
        points, text = seen.directions, f"{seen.images:,} test images on the unit circle."
    else:
        points = _projected(seen.directions)
        text = f"{seen.images:,} test images: {dim} dimensions, of which only the two of largest spread are seen (PCA)."
    return [page.heading("Embeddings", text), page.figure(flat(points, seen.y, seen.classes, "Embeddings"))]


def _projected(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points [N, D] on the plane of their largest spread, [N, 2]."""
    centred = points - points.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2]
    found: NDArray[np.float64] = centred @ axes[:2].T
    return found
