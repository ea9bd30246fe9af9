"""A grid of figures as a map: darker is better, the number stands in its cell, one cell may be framed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .escaped import escape
from .svg import WIDTH, begin

_LEFT, _TOP, _WIDE, _TALL = 120, 40, 110, 34


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
    framed: tuple[str, str] | None,
    ink: str,
    title: str,
) -> str:
    """The map of `values` by (row, column); cells without one stay empty."""
    low, high = min(values.values()), max(values.values())
    parts = [begin(WIDTH, _TOP + _TALL * len(rows) + 12, title)]
    for j, column in enumerate(columns):
        x = _LEFT + _WIDE * (j + 0.5)
        parts.append(f'<text class="tick" x="{x}" y="{_TOP - 10}" text-anchor="middle">{escape(column)}</text>')
    for i, row in enumerate(rows):
        y = _TOP + _TALL * i
        parts.append(f'<text class="tick" x="{_LEFT - 12}" y="{y + 22}" text-anchor="end">{escape(row)}</text>')
        for j, column in enumerate(columns):
            if (row, column) not in values:
                continue
            x, value = _LEFT + _WIDE * j, values[row, column]
            depth = 0.08 + 0.62 * (value - low) / max(high - low, 1e-9)
            frame = ' stroke="currentColor" stroke-width="3"' if framed == (row, column) else ""
            parts.append(
                f'<rect x="{x + 2}" y="{y + 2}" width="{_WIDE - 4}" height="{_TALL - 4}" rx="4" fill="{ink}" '
                f'fill-opacity="{depth:.2f}"{frame}/>'
            )
            parts.append(f'<text x="{x + _WIDE / 2}" y="{y + 22}" text-anchor="middle">{value:.2f}</text>')
    return "".join(parts) + "</svg>"
