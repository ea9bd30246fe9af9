"""Two-dimensional embeddings around their origin, class weights as rays: spokes of a wheel, or a circle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .escaped import escape
from .sphere import CLASS_COLOURS
from .svg import svg_open_tag, truncate_label

_CIRCLE_SIZE, _CIRCLE_RADIUS = 340, 132
_MIN_LABEL_ANGLE = math.radians(9)  # names
_RADIAL_JITTER = 0.16  # how far points of the circle are spread across it, or they would hide each other


def draw_embedding_circle(
    points: NDArray[np.float64],
    y: NDArray[np.int64],
    names: Sequence[str],
    weights: NDArray[np.float64] | None,
    on_circle: bool,
    title: str,
) -> str:
    """Points [N, 2] in the colours of their classes; `on_circle` where only their directions count."""
    length = np.linalg.norm(points, axis=1)
    unit = points / np.maximum(length, 1e-12)[:, None]
    golden = (np.arange(len(points)) * (math.sqrt(5) - 1) / 2) % 1.0  # even, and the same every time
    radius = 1.0 - _RADIAL_JITTER * golden if on_circle else np.minimum(length / np.quantile(length, 0.98), 1.0)
    middle = _CIRCLE_SIZE / 2
    parts = [svg_open_tag(_CIRCLE_SIZE, _CIRCLE_SIZE, title)]
    if on_circle:
        parts.append(f'<circle class="grid" cx="{middle}" cy="{middle}" r="{_CIRCLE_RADIUS}" fill="none"/>')
    if weights is not None:
        for k, (x, up) in enumerate(weights / np.maximum(np.linalg.norm(weights, axis=1), 1e-12)[:, None]):
            to = f'x2="{middle + _CIRCLE_RADIUS * x:.1f}" y2="{middle - _CIRCLE_RADIUS * up:.1f}"'
            colour = CLASS_COLOURS[k % len(CLASS_COLOURS)]
            parts.append(f'<line x1="{middle}" y1="{middle}" {to} stroke="{colour}" stroke-width="1.4" opacity=".55"/>')
    for (x, up), out, label in zip(unit, radius, y, strict=True):
        spot = f'cx="{middle + _CIRCLE_RADIUS * out * x:.1f}" cy="{middle - _CIRCLE_RADIUS * out * up:.1f}"'
        parts.append(f'<circle {spot} r="2.3" fill="{CLASS_COLOURS[int(label) % len(CLASS_COLOURS)]}" opacity=".6"/>')
    for k, angle in _place_class_labels(unit, y):
        at = (middle + 1.16 * _CIRCLE_RADIUS * math.cos(angle), middle - 1.16 * _CIRCLE_RADIUS * math.sin(angle) + 5)
        words = f'style="fill:{CLASS_COLOURS[k % len(CLASS_COLOURS)]}" text-anchor="middle">{escape(truncate_label(names[k], 8))}</text>'
        parts.append(f'<text class="strong" x="{at[0]:.1f}" y="{at[1]:.1f}" {words}')
    return "".join(parts) + "</svg>"


def _place_class_labels(directions: NDArray[np.float64], y: NDArray[np.int64]) -> list[tuple[int, float]]:
    """Where each class is named: beyond its middle, moved on where another one's name stands already."""
    middles = {k: directions[y == k].mean(0) for k in sorted(set(y.tolist()))}
    sorted_angles = sorted((math.atan2(up, x), k) for k, (x, up) in middles.items())
    placed: list[tuple[int, float]] = []
    for angle, k in sorted_angles:
        free = max(angle, placed[-1][1] + _MIN_LABEL_ANGLE) if placed else angle
        placed.append((k, free))
    return placed
