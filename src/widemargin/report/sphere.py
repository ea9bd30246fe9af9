"""Three-dimensional embeddings on the unit sphere, as seen from one side; what lies behind is pale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .escaped import escape
from .svg import begin

INKS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#999933", "#882255", "#44AA99", "#777777")
_SIZE, _RADIUS = 300, 130
_TURN, _TILT = math.radians(35), math.radians(25)


def sphere(
    points: NDArray[np.float64], y: NDArray[np.int64], names: Sequence[str], weights: NDArray[np.float64], title: str
) -> str:
    """Unit points [N, 3] in the colours of their classes, class weights [C, 3] as rays from the centre."""
    seen, rays = _turned(points), _turned(weights)
    middle = _SIZE / 2
    parts = [begin(_SIZE, _SIZE + 30, title)]
    parts.append(f'<circle cx="{middle}" cy="{middle}" r="{_RADIUS}" fill="none" class="grid" stroke-width="1.5"/>')
    parts += [_ring(axis, middle) for axis in range(3)]
    for k in np.argsort(seen[:, 2]):
        x, up, depth = seen[k]
        ink, pale = INKS[int(y[k]) % len(INKS)], 0.75 if depth >= 0 else 0.18
        spot = f'cx="{middle + _RADIUS * x:.1f}" cy="{middle - _RADIUS * up:.1f}"'
        parts.append(f'<circle {spot} r="2" fill="{ink}" opacity="{pale}"/>')
    for k, (x, up, depth) in enumerate(rays):
        ink, pale = INKS[k % len(INKS)], 1.0 if depth >= 0 else 0.35
        to = (middle + _RADIUS * x, middle - _RADIUS * up)
        parts.append(
            f'<line x1="{middle}" y1="{middle}" x2="{to[0]:.1f}" y2="{to[1]:.1f}" stroke="{ink}" stroke-width="2" '
            f'opacity="{pale}"/>'
        )
        beyond = (middle + 1.09 * _RADIUS * x, middle - 1.09 * _RADIUS * up + 4)
        parts.append(
            f'<text x="{beyond[0]:.1f}" y="{beyond[1]:.1f}" text-anchor="middle" opacity="{max(pale, 0.6)}">'
            f"{escape(names[k])}</text>"
        )
    parts.append(f'<text x="{middle}" y="{_SIZE + 18}" text-anchor="middle">{escape(title)}</text>')
    return "".join(parts) + "</svg>"


def _turned(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points as (right, up, towards the eye)."""
    turn = np.array([[math.cos(_TURN), math.sin(_TURN), 0], [-math.sin(_TURN), math.cos(_TURN), 0], [0, 0, 1]])
    x, y, z = (points @ turn.T).T
    up = z * math.cos(_TILT) - y * math.sin(_TILT)
    towards = z * math.sin(_TILT) + y * math.cos(_TILT)
    return np.stack((x, up, towards), 1)


def _ring(axis: int, middle: float) -> str:
    """A great circle across an axis, as a guide for the eye."""
    t = np.linspace(0, 2 * math.pi, 61)
    ring = np.zeros((len(t), 3))
    ring[:, (axis + 1) % 3], ring[:, (axis + 2) % 3] = np.cos(t), np.sin(t)
    spots = " ".join(f"{middle + _RADIUS * x:.1f},{middle - _RADIUS * up:.1f}" for x, up, _ in _turned(ring))
    return f'<polyline points="{spots}" fill="none" class="grid"/>'
