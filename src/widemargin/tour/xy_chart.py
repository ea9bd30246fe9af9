"""Curves over a linear axis with dots and marks, as SVG text: the pictures that a slider of the tour goes through.

Drawn by hand: a page holds a picture per position of its sliders, more than a hundred, which matplotlib draws slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..io.text import escape
from ..viz.svg import svg_open_tag, tick_values

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 500, 60, 484, 26, 276


@dataclass(frozen=True)
class Curve:
    """A named line."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class AxesSpec:
    """Limits and labels of the axes."""

    xlim: tuple[float, float]
    ylim: tuple[float, float]
    xlabel: str
    ylabel: str
    x_tick_suffix: str = ""
    """Written after the tick labels of x, such as °."""


@dataclass(frozen=True)
class Marks:
    """Marks in addition to the curves."""

    dots: Sequence[tuple[float, float, str]] = field(default_factory=tuple)
    """(x, y, colour)."""
    vertical_lines: Sequence[tuple[float, str, str]] = field(default_factory=tuple)
    """(x, colour, label)."""
    vertical_bands: Sequence[tuple[float, float, str, str]] = field(default_factory=tuple)
    """(from, to, colour, label)."""


def draw_xy_chart(curves: Sequence[Curve], axes: AxesSpec, title: str, marks: Marks | None = None) -> str:
    """A chart of curves over a linear axis; points outside the y limits are not drawn."""
    marks = marks or Marks()

    def to_pixel(x: float, y: float) -> tuple[float, float]:
        inside = min(max(y, axes.ylim[0]), axes.ylim[1])
        along, up = (
            (x - axes.xlim[0]) / (axes.xlim[1] - axes.xlim[0]),
            (inside - axes.ylim[0]) / (axes.ylim[1] - axes.ylim[0]),
        )
        return _LEFT + along * (_RIGHT - _LEFT), _BOTTOM - up * (_BOTTOM - _TOP)

    legend, below = _legend(curves)
    parts = [svg_open_tag(_WIDTH, below, title)]
    for k, (low, high, colour, label) in enumerate(marks.vertical_bands):
        a, b = to_pixel(max(low, axes.xlim[0]), 0)[0], to_pixel(min(high, axes.xlim[1]), 0)[0]
        label_y = _TOP + 13 + 15 * (k % 2)  # two heights in turn, as a band may be narrower than its name
        parts.append(
            f'<rect x="{a:.1f}" y="{_TOP}" width="{max(0.0, b - a):.1f}" height="{_BOTTOM - _TOP}" '
            f'fill="{colour}" fill-opacity=".14"/>'
            f'<text class="tick" x="{(a + b) / 2:.1f}" y="{label_y}" text-anchor="middle">{escape(label)}</text>'
        )
    for tick in tick_values(*axes.ylim, 5):
        y = to_pixel(axes.xlim[0], tick)[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _x_ticks(axes):
        x = to_pixel(tick, axes.ylim[0])[0]
        label = f"{tick:g}{axes.x_tick_suffix}"
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{label}</text>')
    middle = (_LEFT + _RIGHT) / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{_BOTTOM + 38}" text-anchor="middle">{escape(axes.xlabel)}</text>'
    )
    parts.append(f'<text class="tick" x="{_LEFT - 40}" y="{_TOP - 12}">{escape(axes.ylabel)}</text>')
    for k, (at, colour, label) in enumerate(marks.vertical_lines):
        x = to_pixel(at, 0)[0]
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}" stroke="{colour}" stroke-width="1.6"/>'
        )
        # Bands have their labels at the top.
        y = _BOTTOM - 8 - 16 * k if marks.vertical_bands else _TOP + 13 + 16 * k
        parts.append(f'<text class="tick" x="{x + 4:.1f}" y="{y}">{escape(label)}</text>')
    for curve in curves:
        dash = _dash_attribute(curve)
        for segment in _segments_within(curve.points, axes.ylim):
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (to_pixel(*point) for point in segment))
            parts.append(f'<polyline points="{line}" fill="none" stroke="{curve.colour}" stroke-width="2.4"{dash}/>')
    parts += legend
    for x, y, colour in marks.dots:
        a, b = to_pixel(x, y)
        parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="{colour}"/>')
    return "".join(parts) + "</svg>"


def _dash_attribute(curve: Curve) -> str:
    return ' stroke-dasharray="7 4"' if curve.dashed else ""


def _legend(curves: Sequence[Curve]) -> tuple[list[str], float]:
    """The legend below the picture, and the height of the whole chart."""
    parts, x, y = [], float(_LEFT), _BOTTOM + 66.0
    for curve in curves:
        wide = 48 + 7.4 * len(curve.name)
        if x > _LEFT and x + wide > _WIDTH:
            x, y = float(_LEFT), y + 21
        line = f'<line x1="{x:.0f}" x2="{x + 22:.0f}" y1="{y - 4:.0f}" y2="{y - 4:.0f}" stroke="{curve.colour}"'
        parts.append(f'{line} stroke-width="3"{_dash_attribute(curve)}/>')
        parts.append(f'<text x="{x + 28:.0f}" y="{y:.0f}">{escape(curve.name)}</text>')
        x += wide
    return parts, y + 10


def _segments_within(
    points: Sequence[tuple[float, float]], limits: tuple[float, float]
) -> list[list[tuple[float, float]]]:
    """The parts of a line that lie within the limits of y."""
    segments: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if limits[0] <= y <= limits[1]:
            segments[-1].append((x, y))
        elif segments[-1]:
            segments.append([])
    return [segment for segment in segments if len(segment) > 1]


def _x_ticks(axes: AxesSpec) -> list[float]:
    low, high = axes.xlim
    if axes.x_tick_suffix == "°":
        return [tick for tick in range(-180, 181, 30) if low <= tick <= high]
    return tick_values(low, high)
