"""Parts of a page made from a run's images: its most confident mistakes, its pairs, and how its embeddings lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..metrics.identity_intervals import MIN_EVENTS
from . import neighbours, page, pairs
from .flat import draw_embedding_scatter
from .sphere import draw_embedding_sphere
from .spokes import draw_embedding_circle

if TYPE_CHECKING:
    from ..training.look import RunInspection

_MAX_CIRCLE_CLASSES = 20  # classes that can be named around a circle


def inspection_sections(inspection: RunInspection) -> list[str]:
    """The parts, in the order of a page."""
    small = ["".join(part) for part in (_mistakes_section(inspection), _embeddings_section(inspection)) if part]
    notes = [page.paragraph(inspection.note, "note")] if inspection.note else []
    return [*notes, *([page.side_by_side(small)] if small else []), *_pairs_section(inspection)]


def _mistakes_section(inspection: RunInspection) -> list[str]:
    if not inspection.mistakes:
        return []
    rows = []
    for mistake in inspection.mistakes:
        picture = neighbours.thumbnail(mistake.pixels)
        words = f"{mistake.true_class}, taken for {mistake.predicted_class} at {100 * mistake.probability:.0f} %"
        rows.append(neighbours.captioned_thumbnail(picture, words))
    text = f"Of {inspection.num_images:,} test images, those named wrongly with the greatest confidence."
    return [
        neighbours.THUMBNAIL_STYLE,
        page.heading("Most confident mistakes", text),
        f'<div class="near">{"".join(rows)}</div>',
    ]


def _pairs_section(inspection: RunInspection) -> list[str]:
    if inspection.verification is None:
        return []
    verification = inspection.verification
    summary = f"AUC {verification.auc.percent_text}, "
    summary += (
        f"EER {verification.eer.percent_text}"
        if verification.eer is not None
        else f"no EER: {verification.missing_reasons['eer']}"
    )
    if min(verification.num_same, verification.num_different) < MIN_EVENTS:
        summary = f"too few for figures, {MIN_EVENTS} of each kind are needed"
    text = (
        f"All pairs of {inspection.num_images:,} test images, {verification.num_same:,} of one class and {verification.num_different:,} of two: "
        f"{summary}. "
        f"TAR over FAR is drawn where at least {MIN_EVENTS} pairs of each kind are accepted."
    )
    picture = pairs.draw_roc_curve(verification.roc, verification.num_same, verification.num_different, "TAR over FAR")
    return [
        page.heading("Same or different", text),
        *([] if picture is None else [page.figure(picture)]),
        page.figure(pairs.draw_score_histogram(verification.roc, [], "Cosines of same and different pairs")),
    ]


def _embeddings_section(inspection: RunInspection) -> list[str]:
    dim = inspection.unit_embeddings.shape[1]
    if dim == 1:
        return []
    if dim == 3 and inspection.weights is not None:
        text = f"{inspection.num_images:,} test images on the unit sphere; rays are the class weights."
        picture = draw_embedding_sphere(
            inspection.unit_embeddings,
            inspection.y,
            inspection.class_names,
            inspection.weights,
            "Embeddings on the sphere",
        )
        return [page.heading("Embeddings", text), f'<div style="max-width:420px">{page.figure(picture)}</div>']
    if dim == 2 and len(inspection.class_names) <= _MAX_CIRCLE_CLASSES:
        text = f"{inspection.num_images:,} test images on the unit circle, spread a little across it to be seen"
        text += "." if inspection.weights is None else "; rays are the class weights."
        picture = draw_embedding_circle(
            inspection.unit_embeddings,
            inspection.y,
            inspection.class_names,
            inspection.weights,
            True,
            "Embeddings on the circle",
        )
        return [page.heading("Embeddings", text), page.figure(picture)]
    if dim == 2:
        points, text = inspection.unit_embeddings, f"{inspection.num_images:,} test images on the unit circle."
    else:
        points = _project_to_plane(inspection.unit_embeddings)
        text = f"{inspection.num_images:,} test images: {dim} dimensions, of which only the two of largest spread are seen (PCA)."
    return [
        page.heading("Embeddings", text),
        page.figure(draw_embedding_scatter(points, inspection.y, inspection.class_names, "Embeddings")),
    ]


def _project_to_plane(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points [N, D] on the plane of their largest spread, [N, 2]."""
    centred = points - points.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2]
    found: NDArray[np.float64] = centred @ axes[:2].T
    return found
