"""Embeddings and images of a run: points on a sphere or a circle as SVG text, rows of thumbnails.

`inspection_sections` makes the parts of a page from a run's test images: its most confident mistakes, its pairs, and
its embeddings.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..io.text import escape
from ..metrics.intervals import MIN_EVENTS
from . import page, pair_charts
from .charts import draw_embedding_scatter
from .svg import svg_open_tag, truncate_label

if TYPE_CHECKING:
    from ..training.report import RunInspection


CLASS_COLOURS = (
    "#4477AA",
    "#EE6677",
    "#228833",
    "#CCBB44",
    "#66CCEE",
    "#AA3377",
    "#999933",
    "#882255",
    "#44AA99",
    "#777777",
)
_SPHERE_SIZE, _SPHERE_RADIUS = 300, 130
_VIEW_AZIMUTH, _VIEW_ELEVATION = math.radians(35), math.radians(25)


def draw_embedding_sphere(
    points: NDArray[np.float64], y: NDArray[np.int64], names: Sequence[str], weights: NDArray[np.float64], title: str
) -> str:
    """Unit points [N, 3] in the colours of their classes, class weights [C, 3] or [C, K, 3] as lines from the centre.

    Seen from one side; points behind the sphere are pale. Drawn by hand: matplotlib has no sphere with a visible front.
    """
    rays, ray_classes = _class_rays(weights)
    viewed_points, viewed_weights = _rotate_to_view(points), _rotate_to_view(rays)
    middle = _SPHERE_SIZE / 2
    parts = [svg_open_tag(_SPHERE_SIZE, _SPHERE_SIZE + 30, title)]
    parts.append(
        f'<circle cx="{middle}" cy="{middle}" r="{_SPHERE_RADIUS}" fill="none" class="grid" stroke-width="1.5"/>'
    )
    parts += [_great_circle(axis, middle) for axis in range(3)]
    for k in np.argsort(viewed_points[:, 2]):
        x, up, depth = viewed_points[k]
        colour, opacity = CLASS_COLOURS[int(y[k]) % len(CLASS_COLOURS)], 0.75 if depth >= 0 else 0.18
        spot = f'cx="{middle + _SPHERE_RADIUS * x:.1f}" cy="{middle - _SPHERE_RADIUS * up:.1f}"'
        parts.append(f'<circle {spot} r="2" fill="{colour}" opacity="{opacity}"/>')
    for k, (x, up, depth) in zip(ray_classes, viewed_weights, strict=True):
        colour, opacity = CLASS_COLOURS[k % len(CLASS_COLOURS)], 1.0 if depth >= 0 else 0.35
        to = (middle + _SPHERE_RADIUS * x, middle - _SPHERE_RADIUS * up)
        parts.append(
            f'<line x1="{middle}" y1="{middle}" x2="{to[0]:.1f}" y2="{to[1]:.1f}" stroke="{colour}" stroke-width="2" '
            f'opacity="{opacity}"/>'
        )
        beyond = (middle + 1.09 * _SPHERE_RADIUS * x, middle - 1.09 * _SPHERE_RADIUS * up + 4)
        parts.append(
            f'<text x="{beyond[0]:.1f}" y="{beyond[1]:.1f}" text-anchor="middle" opacity="{max(opacity, 0.6)}">'
            f"{escape(names[k])}</text>"
        )
    parts.append(f'<text x="{middle}" y="{_SPHERE_SIZE + 18}" text-anchor="middle">{escape(title)}</text>')
    return "".join(parts) + "</svg>"


def _class_rays(weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[int]]:
    """Class weights [C, D], or all sub-centres of [C, K, D], as rows, and the class of each."""
    count = 1 if weights.ndim == 2 else weights.shape[1]
    return weights.reshape(-1, weights.shape[-1]), [row // count for row in range(len(weights) * count)]


def _rotate_to_view(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points [N, 3] in the coordinates of the viewer: right, up, towards the eye."""
    turn = np.array(
        [
            [math.cos(_VIEW_AZIMUTH), math.sin(_VIEW_AZIMUTH), 0],
            [-math.sin(_VIEW_AZIMUTH), math.cos(_VIEW_AZIMUTH), 0],
            [0, 0, 1],
        ]
    )
    x, y, z = (points @ turn.T).T
    up = z * math.cos(_VIEW_ELEVATION) - y * math.sin(_VIEW_ELEVATION)
    towards = z * math.sin(_VIEW_ELEVATION) + y * math.cos(_VIEW_ELEVATION)
    return np.stack((x, up, towards), 1)


def _great_circle(axis: int, middle: float) -> str:
    """A great circle across an axis, as a guide for the eye."""
    t = np.linspace(0, 2 * math.pi, 61)
    ring = np.zeros((len(t), 3))
    ring[:, (axis + 1) % 3], ring[:, (axis + 2) % 3] = np.cos(t), np.sin(t)
    spots = " ".join(
        f"{middle + _SPHERE_RADIUS * x:.1f},{middle - _SPHERE_RADIUS * up:.1f}" for x, up, _ in _rotate_to_view(ring)
    )
    return f'<polyline points="{spots}" fill="none" class="grid"/>'


_CIRCLE_SIZE, _CIRCLE_RADIUS = 340, 132
_MIN_LABEL_ANGLE = math.radians(9)  # between the names of two classes
_RADIAL_JITTER = 0.16  # points of the circle are spread over this fraction of the radius, or they would hide each other


def draw_embedding_circle(
    points: NDArray[np.float64],
    y: NDArray[np.int64],
    names: Sequence[str],
    weights: NDArray[np.float64] | None,
    on_circle: bool,
    title: str,
) -> str:
    """Points [N, 2] around their origin in the colours of their classes, class weights as lines from it.

    Weights are [C, 2], or [C, K, 2] with sub-centres.
    `on_circle` where only directions count: points then lie on the circle. Drawn by hand: the tour has one of these
    pictures per position of its sliders.
    """
    length = np.linalg.norm(points, axis=1)
    unit = points / np.maximum(length, 1e-12)[:, None]
    golden = (np.arange(len(points)) * (math.sqrt(5) - 1) / 2) % 1.0  # even, and the same every time
    radius = 1.0 - _RADIAL_JITTER * golden if on_circle else np.minimum(length / np.quantile(length, 0.98), 1.0)
    middle = _CIRCLE_SIZE / 2
    parts = [svg_open_tag(_CIRCLE_SIZE, _CIRCLE_SIZE, title)]
    if on_circle:
        parts.append(f'<circle class="grid" cx="{middle}" cy="{middle}" r="{_CIRCLE_RADIUS}" fill="none"/>')
    if weights is not None:
        rays, ray_classes = _class_rays(weights)
        unit_rays = rays / np.maximum(np.linalg.norm(rays, axis=1), 1e-12)[:, None]
        for k, (x, up) in zip(ray_classes, unit_rays, strict=True):
            to = f'x2="{middle + _CIRCLE_RADIUS * x:.1f}" y2="{middle - _CIRCLE_RADIUS * up:.1f}"'
            colour = CLASS_COLOURS[k % len(CLASS_COLOURS)]
            parts.append(f'<line x1="{middle}" y1="{middle}" {to} stroke="{colour}" stroke-width="1.4" opacity=".55"/>')
    for (x, up), out, label in zip(unit, radius, y, strict=True):
        spot = f'cx="{middle + _CIRCLE_RADIUS * out * x:.1f}" cy="{middle - _CIRCLE_RADIUS * out * up:.1f}"'
        parts.append(f'<circle {spot} r="2.3" fill="{CLASS_COLOURS[int(label) % len(CLASS_COLOURS)]}" opacity=".6"/>')
    for k, angle in _place_class_labels(unit, y):
        at = (middle + 1.16 * _CIRCLE_RADIUS * math.cos(angle), middle - 1.16 * _CIRCLE_RADIUS * math.sin(angle) + 5)
        fill = f'style="fill:{CLASS_COLOURS[k % len(CLASS_COLOURS)]}"'
        parts.append(
            f'<text class="strong" x="{at[0]:.1f}" y="{at[1]:.1f}" {fill} text-anchor="middle">'
            f"{escape(truncate_label(names[k], 8))}</text>"
        )
    return "".join(parts) + "</svg>"


def _place_class_labels(directions: NDArray[np.float64], y: NDArray[np.int64]) -> list[tuple[int, float]]:
    """Angle at which each class is named: its mean direction, moved on where another name is too close."""
    middles = {k: directions[y == k].mean(0) for k in sorted(set(y.tolist()))}
    sorted_angles = sorted((math.atan2(up, x), k) for k, (x, up) in middles.items())
    placed: list[tuple[int, float]] = []
    for angle, k in sorted_angles:
        free = max(angle, placed[-1][1] + _MIN_LABEL_ANGLE) if placed else angle
        placed.append((k, free))
    return placed


THUMBNAIL_STYLE = """
<style>
.near { display: flex; gap: 6px; align-items: center; margin: 4px 0; flex-wrap: wrap; }
.near figure { margin: 0; } .near img { width: 56px; height: 56px; image-rendering: pixelated; border-radius: 4px;
  border: 3px solid transparent; display: block; }
.near figure.asked img { margin-right: 18px; border-color: var(--soft); }
.near figure.wrong img { border-color: var(--accent); }
.near figcaption { font-size: .7rem; max-width: 60px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.near figure.captioned { width: 110px; } .near figure.captioned img { width: 84px; height: 84px; }
.near figure.captioned figcaption { max-width: 108px; white-space: normal; font-size: .74rem; line-height: 1.25; }
</style>
"""


def thumbnail(pixels: NDArray[np.uint8]) -> str:
    """Pixels [C, H, W] as a PNG in a `data:` URI."""
    from PIL import Image

    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, 2))
    image.thumbnail((64, 64))
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def neighbour_row(query: tuple[str, str], matches: Sequence[tuple[str, str, float]]) -> str:
    """HTML of a query (picture, class) and its neighbours (picture, class, cosine); other classes are framed."""
    cells = [_thumbnail_figure(*query, "asked", "asked for")]
    cells += [
        _thumbnail_figure(picture, name, "" if name == query[1] else "wrong", pair_charts.format_cosine(cos))
        for picture, name, cos in matches
    ]
    return f'<div class="near">{"".join(cells)}</div>'


def _thumbnail_figure(image_uri: str, name: str, css_class: str, note: str) -> str:
    caption = escape(f"{name} ({note})")
    inside = f'<img src="{image_uri}" alt="{caption}"><figcaption>{escape(name)}</figcaption>'
    return f'<figure class="{css_class}" title="{caption}">{inside}</figure>'


def captioned_thumbnail(image_uri: str, caption: str) -> str:
    """One picture with a caption under it."""
    text = escape(caption)
    return f'<figure class="captioned"><img src="{image_uri}" alt="{text}"><figcaption>{text}</figcaption></figure>'


_MAX_CIRCLE_CLASSES = 20  # classes that can be named around a circle


def inspection_sections(inspection: RunInspection) -> list[str]:
    """Sections of a page on a run's test images, in their order."""
    small = ["".join(part) for part in (_mistakes_section(inspection), _embeddings_section(inspection)) if part]
    notes = [page.paragraph(inspection.note, "note")] if inspection.note else []
    return [*notes, *([page.side_by_side(small)] if small else []), *_pairs_section(inspection)]


def _mistakes_section(inspection: RunInspection) -> list[str]:
    if not inspection.mistakes:
        return []
    rows = []
    for mistake in inspection.mistakes:
        picture = thumbnail(mistake.pixels)
        words = f"{mistake.true_class}, taken for {mistake.predicted_class} at {100 * mistake.probability:.0f} %"
        rows.append(captioned_thumbnail(picture, words))
    text = f"Of {inspection.num_images:,} test images, those named wrongly with the greatest confidence."
    return [
        THUMBNAIL_STYLE,
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
        f"All pairs of {inspection.num_images:,} test images, {verification.num_same:,} of one class and "
        f"{verification.num_different:,} of two: {summary}. "
        f"TAR over FAR is drawn where at least {MIN_EVENTS} pairs of each kind are accepted."
    )
    picture = pair_charts.draw_roc_curve(
        verification.roc, verification.num_same, verification.num_different, "TAR over FAR"
    )
    return [
        page.heading("Same or different", text),
        *([] if picture is None else [page.figure(picture)]),
        page.figure(pair_charts.draw_score_histogram(verification.roc, [], "Cosines of same and different pairs")),
    ]


def _embeddings_section(inspection: RunInspection) -> list[str]:
    dim = inspection.unit_embeddings.shape[1]
    if dim == 1:
        return []
    if dim == 3 and inspection.weights is not None:
        rays = _describe_rays(inspection.weights)
        text = f"{inspection.num_images:,} test images on the unit sphere; rays are {rays}."
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
        text += "." if inspection.weights is None else f"; rays are {_describe_rays(inspection.weights)}."
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
        text = f"{inspection.num_images:,} test images: {dim} dimensions, of which only the two of largest spread are "
        text += "seen (PCA)."
    return [
        page.heading("Embeddings", text),
        page.figure(draw_embedding_scatter(points, inspection.y, inspection.class_names, CLASS_COLOURS, "Embeddings")),
    ]


def _describe_rays(weights: NDArray[np.float64]) -> str:
    return "the class weights" if weights.ndim == 2 else f"the {weights.shape[1]} sub-centres of each class"


def _project_to_plane(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points [N, D] on the plane of their largest spread, [N, 2]."""
    centred = points - points.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2]
    projected: NDArray[np.float64] = centred @ axes[:2].T
    return projected
