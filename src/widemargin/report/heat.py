"""A grid of figures as a map: darker is better, the number stands in its cell, one cell may be framed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .escaped import escape
from .svg import CHART_WIDTH, svg_open_tag

_HEATMAP_LEFT, _HEATMAP_TOP, _HEATMAP_CELL_WIDTH, _HEATMAP_CELL_HEIGHT = 120, 40, 110, 34


def draw_heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
    highlighted: tuple[str, str] | None,
    colour: str,
    title: str,
) -> str:
    """The map of `values` by (row, column); cells without one stay empty."""
    low, high = min(values.values()), max(values.values())
    parts = [svg_open_tag(CHART_WIDTH, _HEATMAP_TOP + _HEATMAP_CELL_HEIGHT * len(rows) + 12, title)]
    for j, column in enumerate(columns):
        x = _HEATMAP_LEFT + _HEATMAP_CELL_WIDTH * (j + 0.5)
        parts.append(f'<text class="tick" x="{x}" y="{_HEATMAP_TOP - 10}" text-anchor="middle">{escape(column)}</text>')
    for i, row in enumerate(rows):
        y = _HEATMAP_TOP + _HEATMAP_CELL_HEIGHT * i
        parts.append(f'<text class="tick" x="{_HEATMAP_LEFT - 12}" y="{y + 22}" text-anchor="end">{escape(row)}</text>')
        for j, column in enumerate(columns):
            if (row, column) not in values:
                continue
            x, value = _HEATMAP_LEFT + _HEATMAP_CELL_WIDTH * j, values[row, column]
            depth = 0.08 + 0.62 * (value - low) / max(high - low, 1e-9)
            frame = ' stroke="currentColor" stroke-width="3"' if highlighted == (row, column) else ""
            parts.append(
                f'<rect x="{x + 2}" y="{y + 2}" width="{_HEATMAP_CELL_WIDTH - 4}" height="{_HEATMAP_CELL_HEIGHT - 4}" rx="4" fill="{colour}" '
                f'fill-opacity="{depth:.2f}"{frame}/>'
            )
            parts.append(
                f'<text x="{x + _HEATMAP_CELL_WIDTH / 2}" y="{y + 22}" text-anchor="middle">{value:.2f}</text>'
            )
    return "".join(parts) + "</svg>"
