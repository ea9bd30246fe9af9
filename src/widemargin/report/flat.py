"""Embeddings as points on a plane: the circle they are on in two dimensions, or a projection, which is said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .escaped import escape
from .sphere import INKS
from .svg import begin, shortened

_SIZE, _PAD = 420, 24
_LISTED = 12  # names beside the picture


def flat(points: NDArray[np.float64], y: NDArray[np.int64], names: Sequence[str], title: str) -> str:
    """Points [N, 2] in the colours of their classes, both axes alike."""
    middle = (points.max(0) + points.min(0)) / 2
    reach = float(np.abs(points - middle).max()) or 1.0
    parts = [begin(_SIZE + 200, _SIZE, title)]
    places = _SIZE / 2 + (points - middle) / reach * (_SIZE / 2 - _PAD) * np.array([1.0, -1.0])
    for (x, up), label in zip(places, y, strict=True):
        parts.append(
            f'<circle cx="{x:.1f}" cy="{up:.1f}" r="2.2" fill="{INKS[int(label) % len(INKS)]}" opacity=".65"/>'
        )
    for k, name in enumerate(names[:_LISTED]):
        at = 30 + 22 * k
        parts.append(f'<rect x="{_SIZE + 10}" y="{at - 10}" width="12" height="12" fill="{INKS[k % len(INKS)]}"/>')
        parts.append(f'<text x="{_SIZE + 28}" y="{at}">{escape(shortened(name, 20))}</text>')
    if len(names) > _LISTED:
        more = f"and {len(names) - _LISTED} more, colours repeat"
        parts.append(f'<text class="tick" x="{_SIZE + 10}" y="{30 + 22 * _LISTED}">{more}</text>')
    return "".join(parts) + "</svg>"
