"""A row per method with a dot per seed, a bar at their mean, and a hollow diamond where others stand."""

from __future__ import annotations

from collections.abc import Sequence

from .escaped import escape
from .svg import CHART_WIDTH, axis_limits, svg_open_tag, tick_values, truncate_label

_STRIP_LEFT, _STRIP_RIGHT, _STRIP_TOP, _STRIP_ROW_HEIGHT = 270, 720, 12, 28


def draw_strip_plot(
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    paper_values: Sequence[float | None],
    colours: Sequence[str],
    unit: str,
    title: str,
) -> str:
    """The picture; every row of `ours` has at least one value."""
    low, high = axis_limits([v for row in values for v in row] + [v for v in paper_values if v is not None], 0.06)
    base = _STRIP_TOP + _STRIP_ROW_HEIGHT * len(names)
    has_paper_values = any(value is not None for value in paper_values)
    parts = [svg_open_tag(CHART_WIDTH, base + 46 + 18 * has_paper_values, title)]

    def x(value: float) -> float:
        return _STRIP_LEFT + (value - low) / (high - low) * (_STRIP_RIGHT - _STRIP_LEFT)

    for tick in tick_values(low, high):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_STRIP_TOP}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{base + 18}" text-anchor="middle">{tick:g}</text>')
    middle = (_STRIP_LEFT + _STRIP_RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{base + 37}" text-anchor="middle">{escape(unit)}</text>')
    for i, name in enumerate(names):
        y, mean = _STRIP_TOP + _STRIP_ROW_HEIGHT * (i + 0.5), sum(values[i]) / len(values[i])
        tip = f"{name}: {', '.join(f'{v:.2f}' for v in values[i])}" + (
            f"; paper {paper_values[i]:.2f}" if paper_values[i] else ""
        )
        parts.append(f'<g fill="{colours[i]}" stroke="{colours[i]}"><title>{escape(tip)}</title>')
        parts += [f'<circle cx="{x(v):.1f}" cy="{y}" r="5" stroke="none" opacity=".6"/>' for v in values[i]]
        parts.append(f'<line x1="{x(mean):.1f}" x2="{x(mean):.1f}" y1="{y - 9}" y2="{y + 9}" stroke-width="3"/>')
        other = paper_values[i]
        if other is not None:
            parts.append(_diamond(x(other), y))
        parts.append(
            f'</g><text x="{_STRIP_LEFT - 12}" y="{y + 4.5}" text-anchor="end">{escape(truncate_label(name))}</text>'
        )
        parts.append(f'<text class="tick" x="{_STRIP_RIGHT + 12}" y="{y + 4.5}">{mean:.2f}</text>')
    if has_paper_values:
        parts.append(f'<g stroke="currentColor">{_diamond(_STRIP_LEFT + 4, base + 54)}</g>')
        parts.append(f'<text class="tick" x="{_STRIP_LEFT + 18}" y="{base + 58}">the paper</text>')
    return "".join(parts) + "</svg>"


def _diamond(x: float, y: float) -> str:
    points = f"{x:.1f},{y - 7:.1f} {x + 7:.1f},{y:.1f} {x:.1f},{y + 7:.1f} {x - 7:.1f},{y:.1f}"
    return f'<polygon points="{points}" fill="none" stroke-width="2"/>'
