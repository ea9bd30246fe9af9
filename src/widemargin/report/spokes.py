"""Two-dimensional embeddings around their origin, class weights as rays: spokes of a wheel, or a circle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .escaped import escape
from .sphere import INKS
from .svg import begin, shortened

_SIZE, _REACH = 340, 132
_BETWEEN = math.radians(9)  # names
_ACROSS = 0.16  # how far points of the circle are spread across it, or they would hide each other


def spokes(
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
    radius = 1.0 - _ACROSS * golden if on_circle else np.minimum(length / np.quantile(length, 0.98), 1.0)
    middle = _SIZE / 2
    parts = [begin(_SIZE, _SIZE, title)]
    if on_circle:
        parts.append(f'<circle class="grid" cx="{middle}" cy="{middle}" r="{_REACH}" fill="none"/>')
    if weights is not None:
        for k, (x, up) in enumerate(weights / np.maximum(np.linalg.norm(weights, axis=1), 1e-12)[:, None]):
            to = f'x2="{middle + _REACH * x:.1f}" y2="{middle - _REACH * up:.1f}"'
            ink = INKS[k % len(INKS)]
            parts.append(f'<line x1="{middle}" y1="{middle}" {to} stroke="{ink}" stroke-width="1.4" opacity=".55"/>')
    for (x, up), out, label in zip(unit, radius, y, strict=True):
        spot = f'cx="{middle + _REACH * out * x:.1f}" cy="{middle - _REACH * out * up:.1f}"'
        parts.append(f'<circle {spot} r="2.3" fill="{INKS[int(label) % len(INKS)]}" opacity=".6"/>')
    for k, turn in _labels(unit, y):
        at = (middle + 1.16 * _REACH * math.cos(turn), middle - 1.16 * _REACH * math.sin(turn) + 5)
        words = f'style="fill:{INKS[k % len(INKS)]}" text-anchor="middle">{escape(shortened(names[k], 8))}</text>'
        parts.append(f'<text class="strong" x="{at[0]:.1f}" y="{at[1]:.1f}" {words}')
    return "".join(parts) + "</svg>"


def _labels(unit: NDArray[np.float64], y: NDArray[np.int64]) -> list[tuple[int, float]]:
    """Where each class is named: beyond its middle, moved on where another one's name stands already."""
    middles = {k: unit[y == k].mean(0) for k in sorted(set(y.tolist()))}
    turns = sorted((math.atan2(up, x), k) for k, (x, up) in middles.items())
    found: list[tuple[int, float]] = []
    for turn, k in turns:
        free = max(turn, found[-1][1] + _BETWEEN) if found else turn
        found.append((k, free))
    return found
