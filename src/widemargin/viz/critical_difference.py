"""The critical-difference diagram (Demšar, JMLR 7, 2006) as SVG text.

Drawn by hand: its leaders, names on both sides and bars of groups are no chart that matplotlib has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..io.text import escape
from .svg import CHART_WIDTH, axis_limits, svg_open_tag, tick_values, truncate_label


def draw_critical_difference_diagram(
    names: Sequence[str],
    positions: Sequence[float],
    indistinguishable: Sequence[Sequence[int]],
    axis_label: str,
    title: str,
    scale_bar: tuple[float, str] | None = None,
    best_left: bool = True,
    decimals: int = 2,
) -> str:
    """Methods on an axis, and a bar under those that do not differ significantly (Demšar's diagram)."""
    order = sorted(range(len(names)), key=lambda i: positions[i] if best_left else -positions[i])
    first = min(positions)
    low, high = axis_limits([*positions, first + scale_bar[0]] if scale_bar else positions, 0.06, decimals)
    left, right, line = 300, 540, 62

    def x(value: float) -> float:
        share = (value - low) / (high - low)
        return left + (share if best_left else 1 - share) * (right - left)

    half = math.ceil(len(order) / 2)
    bars = line + 14
    first_row = bars + 10 * len(indistinguishable) + 22
    height = first_row + 24 * half + 8
    parts = [svg_open_tag(CHART_WIDTH, height, title)]
    parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{line}" y2="{line}"/>')
    for tick in tick_values(low, high, 5):
        parts.append(f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{line - 5}" y2="{line}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{line - 10}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text class="tick" x="{left - 12}" y="{line + 4}" text-anchor="end">{escape(axis_label)}</text>')
    if scale_bar:
        start, end = x(first), x(first + scale_bar[0])
        parts.append(f'<line class="axis" x1="{start:.1f}" x2="{end:.1f}" y1="16" y2="16" stroke-width="3"/>')
        parts.append(f'<text class="tick" x="{end + 8:.1f}" y="20">{escape(scale_bar[1])}</text>')
    for level, members in enumerate(indistinguishable):
        ends = [x(positions[i]) for i in members]
        y = bars + 10 * level
        parts.append(f'<line class="bar" x1="{min(ends) - 5:.1f}" x2="{max(ends) + 5:.1f}" y1="{y}" y2="{y}"/>')
    for k, i in enumerate(order):
        on_left = k < half
        row = first_row + 24 * (k if on_left else len(order) - 1 - k)
        edge = left - 20 if on_left else right + 20
        place = x(positions[i])
        parts.append(f'<polyline class="lead" points="{place:.1f},{line} {place:.1f},{row} {edge},{row}"/>')
        anchor, at = ("end", edge - 6) if on_left else ("start", edge + 6)
        label = (
            f"{truncate_label(names[i])}  {positions[i]:.{decimals}f}"
            if on_left
            else f"{positions[i]:.{decimals}f}  {truncate_label(names[i])}"
        )
        parts.append(f'<text x="{at}" y="{row + 4.5}" text-anchor="{anchor}">{escape(label)}</text>')
    return "".join(parts) + "</svg>"
