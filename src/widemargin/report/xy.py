"""Curves over a plain axis, with dots and marks: the small picture that explains one thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .escaped import escape
from .svg import begin, ticks

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 500, 60, 484, 26, 276


@dataclass(frozen=True)
class Curve:
    """A named line."""

    name: str
    points: Sequence[tuple[float, float]]
    ink: str
    dashed: bool = False


@dataclass(frozen=True)
class Axes:
    """What the picture spans, and what stands at its axes."""

    x: tuple[float, float]
    y: tuple[float, float]
    across: str
    up: str
    suffix: str = ""
    """Behind the numbers across, such as °."""


@dataclass(frozen=True)
class Marks:
    """What is marked beside the curves."""

    dots: Sequence[tuple[float, float, str]] = field(default_factory=tuple)
    """(x, y, ink)."""
    lines: Sequence[tuple[float, str, str]] = field(default_factory=tuple)
    """Upright: (x, ink, words)."""
    bands: Sequence[tuple[float, float, str, str]] = field(default_factory=tuple)
    """Upright: (from, to, ink, words)."""


def xy(curves: Sequence[Curve], axes: Axes, title: str, marks: Marks | None = None) -> str:
    """The picture; what leaves the axes is not drawn."""
    marks = marks or Marks()

    def spot(x: float, y: float) -> tuple[float, float]:
        inside = min(max(y, axes.y[0]), axes.y[1])
        along, up = (x - axes.x[0]) / (axes.x[1] - axes.x[0]), (inside - axes.y[0]) / (axes.y[1] - axes.y[0])
        return _LEFT + along * (_RIGHT - _LEFT), _BOTTOM - up * (_BOTTOM - _TOP)

    legend, below = _legend(curves)
    parts = [begin(_WIDTH, below, title)]
    for k, (low, high, ink, words) in enumerate(marks.bands):
        a, b = spot(max(low, axes.x[0]), 0)[0], spot(min(high, axes.x[1]), 0)[0]
        named = (
            f'x="{(a + b) / 2:.1f}" y="{_TOP + 13 + 15 * (k % 2)}"'  # by turns, as a band may be narrower than its name
        )
        parts.append(
            f'<rect x="{a:.1f}" y="{_TOP}" width="{max(0.0, b - a):.1f}" height="{_BOTTOM - _TOP}" fill="{ink}" '
            f'fill-opacity=".14"/><text class="tick" {named} text-anchor="middle">{escape(words)}</text>'
        )
    for tick in ticks(*axes.y, 5):
        y = spot(axes.x[0], tick)[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _across(axes):
        x = spot(tick, axes.y[0])[0]
        words = f"{tick:g}{axes.suffix}"
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{words}</text>')
    middle = (_LEFT + _RIGHT) / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{_BOTTOM + 38}" text-anchor="middle">{escape(axes.across)}</text>'
    )
    parts.append(f'<text class="tick" x="{_LEFT - 40}" y="{_TOP - 12}">{escape(axes.up)}</text>')
    for k, (at, ink, words) in enumerate(marks.lines):
        x = spot(at, 0)[0]
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}" stroke="{ink}" stroke-width="1.6"/>')
        y = _BOTTOM - 8 - 16 * k if marks.bands else _TOP + 13 + 16 * k  # bands have their words at the top
        parts.append(f'<text class="tick" x="{x + 4:.1f}" y="{y}">{escape(words)}</text>')
    for curve in curves:
        dash = _dash(curve)
        for run in _inside(curve.points, axes.y):
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (spot(*point) for point in run))
            parts.append(f'<polyline points="{line}" fill="none" stroke="{curve.ink}" stroke-width="2.4"{dash}/>')
    parts += legend
    for x, y, ink in marks.dots:
        a, b = spot(x, y)
        parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="{ink}"/>')
    return "".join(parts) + "</svg>"


def _dash(curve: Curve) -> str:
    return ' stroke-dasharray="7 4"' if curve.dashed else ""


def _legend(curves: Sequence[Curve]) -> tuple[list[str], float]:
    """Names under the picture, where narrow screens have room for them, and the height of everything."""
    parts, x, y = [], float(_LEFT), _BOTTOM + 66.0
    for curve in curves:
        wide = 48 + 7.4 * len(curve.name)
        if x > _LEFT and x + wide > _WIDTH:
            x, y = float(_LEFT), y + 21
        line = f'<line x1="{x:.0f}" x2="{x + 22:.0f}" y1="{y - 4:.0f}" y2="{y - 4:.0f}" stroke="{curve.ink}"'
        parts.append(f'{line} stroke-width="3"{_dash(curve)}/>')
        parts.append(f'<text x="{x + 28:.0f}" y="{y:.0f}">{escape(curve.name)}</text>')
        x += wide
    return parts, y + 10


def _inside(points: Sequence[tuple[float, float]], ends: tuple[float, float]) -> list[list[tuple[float, float]]]:
    """The stretches of a line that lie within the ends."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if ends[0] <= y <= ends[1]:
            found[-1].append((x, y))
        elif found[-1]:
            found.append([])
    return [run for run in found if len(run) > 1]


def _across(axes: Axes) -> list[float]:
    low, high = axes.x
    if axes.suffix == "°":
        return [tick for tick in range(-180, 181, 30) if low <= tick <= high]
    return ticks(low, high)
