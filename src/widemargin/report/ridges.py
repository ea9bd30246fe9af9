"""Histograms one under the other, as slices that lie over each other a little: how a spread changes with time."""

from __future__ import annotations

from collections.abc import Sequence

from .escaped import escape
from .svg import svg_open_tag

_RIDGE_LEFT, _RIDGE_RIGHT, _RIDGE_TOP, _RIDGE_PEAK_HEIGHT, _RIDGE_WIDTH = (
    56,
    540,
    14,
    54,
    560,
)  # small: two of them stand side by side


def draw_ridgeline(
    names: Sequence[str], counts: Sequence[Sequence[int]], colour: str, title: str, max_rows: int = 24
) -> str:
    """A slice per name from top to bottom, at most so many of them; bins share the half circle, 0° to 180°."""
    step = max(1, -(-len(names) // max_rows))
    chosen = list(range(0, len(names), step))
    if chosen[-1] != len(names) - 1:
        chosen.append(len(names) - 1)
    row_step = 26 if len(chosen) <= 12 else 16
    base = _RIDGE_TOP + _RIDGE_PEAK_HEIGHT + row_step * (len(chosen) - 1)
    parts = [svg_open_tag(_RIDGE_WIDTH, base + 44, title)]
    for degrees in range(0, 181, 30):
        x = _RIDGE_LEFT + degrees / 180 * (_RIDGE_RIGHT - _RIDGE_LEFT)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_RIDGE_TOP}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{base + 18}" text-anchor="middle">{degrees}°</text>')
    middle = (_RIDGE_LEFT + _RIDGE_RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{base + 36}" text-anchor="middle">angle to the own class</text>')
    max_share = max((max(counts[i]) / max(1, sum(counts[i])) for i in chosen), default=1.0) or 1.0
    for row, i in enumerate(chosen):
        y = _RIDGE_TOP + _RIDGE_PEAK_HEIGHT + row_step * row
        parts.append(_ridge(counts[i], y, max_share, colour, 0.35 + 0.5 * row / max(1, len(chosen) - 1), names[i]))
        parts.append(
            f'<text class="tick" x="{_RIDGE_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(names[i])}</text>'
        )
    parts.append(f'<text class="tick" x="{_RIDGE_LEFT - 10}" y="{_RIDGE_TOP + 8}" text-anchor="end">epoch</text>')
    return "".join(parts) + "</svg>"


def _ridge(counts: Sequence[int], y: float, max_share: float, colour: str, opacity: float, name: str) -> str:
    total, width = max(1, sum(counts)), (_RIDGE_RIGHT - _RIDGE_LEFT) / len(counts)
    points = [f"{_RIDGE_LEFT},{y:.1f}"]
    for k, count in enumerate(counts):
        points.append(f"{_RIDGE_LEFT + (k + 0.5) * width:.1f},{y - count / total / max_share * _RIDGE_PEAK_HEIGHT:.1f}")
    points.append(f"{_RIDGE_RIGHT},{y:.1f}")
    tip = f"epoch {name}: median {histogram_quantile(counts, 0.5):.1f}°"
    shape = (
        f'points="{" ".join(points)}" fill="{colour}" fill-opacity="{opacity:.2f}" stroke="{colour}" stroke-width="1.2"'
    )
    return f"<g><title>{escape(tip)}</title><polygon {shape}/></g>"


def histogram_quantile(counts: Sequence[int], q: float) -> float:
    """The angle in degrees below which so large a share of the counts lies, within a bin as if evenly spread.

    >>> quantile([0, 10, 0, 0], 0.5), quantile([5, 5], 0.5)
    (67.5, 90.0)
    """
    wanted, width, below = q * sum(counts), 180 / len(counts), 0
    for k, count in enumerate(counts):
        if count and below + count >= wanted:
            return (k + (wanted - below) / count) * width
        below += count
    return 0.0
