"""Embeddings as points on a plane: the circle they are on in two dimensions, or a projection, which is said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .escaped import escape
from .sphere import CLASS_COLOURS
from .svg import svg_open_tag, truncate_label

_SCATTER_SIZE, _SCATTER_PAD = 420, 24
_MAX_LEGEND_NAMES = 12  # names beside the picture


def draw_embedding_scatter(points: NDArray[np.float64], y: NDArray[np.int64], names: Sequence[str], title: str) -> str:
    """Points [N, 2] in the colours of their classes, both axes alike."""
    middle = (points.max(0) + points.min(0)) / 2
    half_range = float(np.abs(points - middle).max()) or 1.0
    parts = [svg_open_tag(_SCATTER_SIZE + 200, _SCATTER_SIZE, title)]
    places = _SCATTER_SIZE / 2 + (points - middle) / half_range * (_SCATTER_SIZE / 2 - _SCATTER_PAD) * np.array(
        [1.0, -1.0]
    )
    for (x, up), label in zip(places, y, strict=True):
        parts.append(
            f'<circle cx="{x:.1f}" cy="{up:.1f}" r="2.2" fill="{CLASS_COLOURS[int(label) % len(CLASS_COLOURS)]}" opacity=".65"/>'
        )
    for k, name in enumerate(names[:_MAX_LEGEND_NAMES]):
        at = 30 + 22 * k
        parts.append(
            f'<rect x="{_SCATTER_SIZE + 10}" y="{at - 10}" width="12" height="12" fill="{CLASS_COLOURS[k % len(CLASS_COLOURS)]}"/>'
        )
        parts.append(f'<text x="{_SCATTER_SIZE + 28}" y="{at}">{escape(truncate_label(name, 20))}</text>')
    if len(names) > _MAX_LEGEND_NAMES:
        more = f"and {len(names) - _MAX_LEGEND_NAMES} more, colours repeat"
        parts.append(f'<text class="tick" x="{_SCATTER_SIZE + 10}" y="{30 + 22 * _MAX_LEGEND_NAMES}">{more}</text>')
    return "".join(parts) + "</svg>"
