"""A row per method with a dot per seed, a bar at their mean, and a hollow diamond where others stand."""

from __future__ import annotations

from collections.abc import Sequence

from .escaped import escape
from .svg import WIDTH, begin, reach, shortened, ticks

_LEFT, _RIGHT, _TOP, _ROW = 270, 720, 12, 28


def dot_rows(
    names: Sequence[str],
    ours: Sequence[Sequence[float]],
    theirs: Sequence[float | None],
    colours: Sequence[str],
    unit: str,
    title: str,
) -> str:
    """The picture; every row of `ours` has at least one value."""
    low, high = reach([v for row in ours for v in row] + [v for v in theirs if v is not None], 0.06)
    base = _TOP + _ROW * len(names)
    beside = any(value is not None for value in theirs)
    parts = [begin(WIDTH, base + 46 + 18 * beside, title)]

    def x(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_RIGHT - _LEFT)

    for tick in ticks(low, high):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{base + 18}" text-anchor="middle">{tick:g}</text>')
    middle = (_LEFT + _RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{base + 37}" text-anchor="middle">{escape(unit)}</text>')
    for i, name in enumerate(names):
        y, mean = _TOP + _ROW * (i + 0.5), sum(ours[i]) / len(ours[i])
        tip = f"{name}: {', '.join(f'{v:.2f}' for v in ours[i])}" + (f"; paper {theirs[i]:.2f}" if theirs[i] else "")
        parts.append(f'<g fill="{colours[i]}" stroke="{colours[i]}"><title>{escape(tip)}</title>')
        parts += [f'<circle cx="{x(v):.1f}" cy="{y}" r="5" stroke="none" opacity=".6"/>' for v in ours[i]]
        parts.append(f'<line x1="{x(mean):.1f}" x2="{x(mean):.1f}" y1="{y - 9}" y2="{y + 9}" stroke-width="3"/>')
        other = theirs[i]
        if other is not None:
            parts.append(_diamond(x(other), y))
        parts.append(f'</g><text x="{_LEFT - 12}" y="{y + 4.5}" text-anchor="end">{escape(shortened(name))}</text>')
        parts.append(f'<text class="tick" x="{_RIGHT + 12}" y="{y + 4.5}">{mean:.2f}</text>')
    if beside:
        parts.append(f'<g stroke="currentColor">{_diamond(_LEFT + 4, base + 54)}</g>')
        parts.append(f'<text class="tick" x="{_LEFT + 18}" y="{base + 58}">the paper</text>')
    return "".join(parts) + "</svg>"


def _diamond(x: float, y: float) -> str:
    points = f"{x:.1f},{y - 7:.1f} {x + 7:.1f},{y:.1f} {x:.1f},{y + 7:.1f} {x - 7:.1f},{y:.1f}"
    return f'<polygon points="{points}" fill="none" stroke-width="2"/>'
