"""Three-dimensional embeddings on the unit sphere, as seen from one side; what lies behind is pale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .escaped import escape
from .svg import svg_open_tag

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
    """Unit points [N, 3] in the colours of their classes, class weights [C, 3] as rays from the centre."""
    viewed_points, viewed_weights = _rotate_to_view(points), _rotate_to_view(weights)
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
    for k, (x, up, depth) in enumerate(viewed_weights):
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


def _rotate_to_view(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points as (right, up, towards the eye)."""
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
