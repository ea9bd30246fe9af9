"""Line charts as SVG text: curves over a linear axis with dots and marks, over a logarithmic axis, and over epochs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..io.text import escape
from .charts import CHART_WIDTH, separate_labels, svg_open_tag, tick_values, truncate_label, truncate_label_middle

_XY_WIDTH, _XY_LEFT, _XY_RIGHT, _XY_TOP, _XY_BOTTOM = 500, 60, 484, 26, 276


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
        return _XY_LEFT + along * (_XY_RIGHT - _XY_LEFT), _XY_BOTTOM - up * (_XY_BOTTOM - _XY_TOP)

    legend, below = _legend(curves)
    parts = [svg_open_tag(_XY_WIDTH, below, title)]
    for k, (low, high, colour, label) in enumerate(marks.vertical_bands):
        a, b = to_pixel(max(low, axes.xlim[0]), 0)[0], to_pixel(min(high, axes.xlim[1]), 0)[0]
        label_y = _XY_TOP + 13 + 15 * (k % 2)  # two heights in turn, as a band may be narrower than its name
        parts.append(
            f'<rect x="{a:.1f}" y="{_XY_TOP}" width="{max(0.0, b - a):.1f}" height="{_XY_BOTTOM - _XY_TOP}" '
            f'fill="{colour}" fill-opacity=".14"/>'
            f'<text class="tick" x="{(a + b) / 2:.1f}" y="{label_y}" text-anchor="middle">{escape(label)}</text>'
        )
    for tick in tick_values(*axes.ylim, 5):
        y = to_pixel(axes.xlim[0], tick)[1]
        parts.append(f'<line class="grid" x1="{_XY_LEFT}" x2="{_XY_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_XY_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _x_ticks(axes):
        x = to_pixel(tick, axes.ylim[0])[0]
        label = f"{tick:g}{axes.x_tick_suffix}"
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_XY_TOP}" y2="{_XY_BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_XY_BOTTOM + 18}" text-anchor="middle">{label}</text>')
    middle = (_XY_LEFT + _XY_RIGHT) / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{_XY_BOTTOM + 38}" text-anchor="middle">{escape(axes.xlabel)}</text>'
    )
    parts.append(f'<text class="tick" x="{_XY_LEFT - 40}" y="{_XY_TOP - 12}">{escape(axes.ylabel)}</text>')
    for k, (at, colour, label) in enumerate(marks.vertical_lines):
        x = to_pixel(at, 0)[0]
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_XY_TOP}" y2="{_XY_BOTTOM}" stroke="{colour}" stroke-width="1.6"/>'
        )
        # Bands have their labels at the top.
        y = _XY_BOTTOM - 8 - 16 * k if marks.vertical_bands else _XY_TOP + 13 + 16 * k
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
    parts, x, y = [], float(_XY_LEFT), _XY_BOTTOM + 66.0
    for curve in curves:
        wide = 48 + 7.4 * len(curve.name)
        if x > _XY_LEFT and x + wide > _XY_WIDTH:
            x, y = float(_XY_LEFT), y + 21
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


_LOG_LEFT, _LOG_RIGHT, _LOG_TOP, _LOG_BOTTOM = 70, 590, 22, 340
_MAX_LINE_MARKERS = 30  # points of a line that are shown as such; more of them are a curve
LineSpec = tuple[str, Sequence[tuple[float, float]], str, bool]
"""Name, points, colour, and whether it is drawn dashed."""


def draw_log_lines(lines: Sequence[LineSpec], xlabel: str, ylabel: str, title: str, log_y: bool = True) -> str:
    """Lines over a logarithmic x axis; names at the right end of the lines, moved apart where they would overlap."""
    points = [point for _, line, _, _ in lines for point in line]
    lows, highs = [min(p[k] for p in points) for k in (0, 1)], [max(p[k] for p in points) for k in (0, 1)]
    low_y, high_y = (_safe_log10(lows[1]), _safe_log10(highs[1])) if log_y else (0.0, 1.06 * highs[1])
    low_x, high_x = _safe_log10(lows[0]), _safe_log10(highs[0])

    def to_pixel(x: float, y: float) -> tuple[float, float]:
        share = ((_safe_log10(y) if log_y else y) - low_y) / max(high_y - low_y, 1e-9)
        along = (_safe_log10(x) - low_x) / max(high_x - low_x, 1e-9)
        return _LOG_LEFT + along * (_LOG_RIGHT - _LOG_LEFT), _LOG_BOTTOM - share * (_LOG_BOTTOM - _LOG_TOP)

    parts = [svg_open_tag(CHART_WIDTH, _LOG_BOTTOM + 50, title)]
    for power in range(math.ceil(low_x - 1e-9), math.floor(high_x + 1e-9) + 1):
        x = to_pixel(10.0**power, highs[1])[0]
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_LOG_TOP}" y2="{_LOG_BOTTOM}"/>')
        label = _format_power_of_ten(power)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_LOG_BOTTOM + 18}" text-anchor="middle">{label}</text>')
    for value, name in _y_ticks(low_y, high_y, log_y):
        y = to_pixel(highs[0], value)[1]
        parts.append(f'<line class="grid" x1="{_LOG_LEFT}" x2="{_LOG_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LOG_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    middle = (_LOG_LEFT + _LOG_RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{_LOG_BOTTOM + 40}" text-anchor="middle">{escape(xlabel)}</text>')
    parts.append(f'<text class="tick" x="{_LOG_LEFT}" y="{_LOG_TOP - 8}">{escape(ylabel)}</text>')
    ordered = sorted(lines, key=lambda row: row[1][-1][1])
    labels = separate_labels([to_pixel(*line[-1])[1] for _, line, _, _ in ordered], _LOG_TOP)
    for (name, line, colour, dashed), label_y in zip(ordered, labels, strict=True):
        spots = [to_pixel(*point) for point in line]
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        tip = f"{name}: " + ", ".join(f"{x:g} → {y:.3g}" for x, y in line)
        parts.append(f"<g><title>{escape(tip)}</title>")
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2"{dash}/>')
        if len(spots) <= _MAX_LINE_MARKERS:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in spots]
        end = spots[-1]
        ends = f'x1="{end[0] + 5:.1f}" x2="{_LOG_RIGHT + 20}" y1="{end[1]:.1f}" y2="{label_y:.1f}"'
        parts.append(f'<line {ends} stroke="{colour}"/>')
        parts.append(f'<text x="{_LOG_RIGHT + 24}" y="{label_y + 4:.1f}">{escape(truncate_label(name, 32))}</text></g>')
    return "".join(parts) + "</svg>"


def _safe_log10(value: float) -> float:
    return math.log10(max(value, 1e-12))


def _format_power_of_ten(power: int) -> str:
    """
    >>> _format_power_of_ten(3), _format_power_of_ten(5), _format_power_of_ten(-2)
    ('1,000', '100,000', '0.01')
    """
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"


def _y_ticks(low: float, high: float, log_y: bool) -> list[tuple[float, str]]:
    if not log_y:
        return [(value, f"{value:g}") for value in tick_values(low, high)]
    return [(10.0**p, _format_power_of_ten(p)) for p in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]


_EPOCH_LEFT, _EPOCH_TOP, _EPOCH_BOTTOM, _EPOCH_WIDTH = 56, 18, 252, 560  # small: two of them stand side by side


@dataclass(frozen=True)
class EpochSeries:
    """The values of one quantity over the epochs."""

    name: str
    """Empty where there is only one series."""
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


def draw_epoch_curves(series: Sequence[EpochSeries], unit: str, title: str) -> str:
    """A line per series, as long as its run; names at the ends, moved apart where they would overlap."""
    values = [value for course in series for _, value in course.points]
    low, high = min(values), max(values)  # of any size: a learning rate is as much as a percentage
    pad = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = low - pad, high + pad
    first = min(epoch for course in series for epoch, _ in course.points)
    last = max(first + 1, *(epoch for course in series for epoch, _ in course.points))
    right = _EPOCH_WIDTH - min(200, 96 + 7 * max(len(course.name) for course in series))
    parts = [svg_open_tag(_EPOCH_WIDTH, _EPOCH_BOTTOM + 48, title)]

    def to_pixel(epoch: float, value: float) -> tuple[float, float]:
        along, up = (epoch - first) / (last - first), (value - low) / (high - low)
        return _EPOCH_LEFT + along * (right - _EPOCH_LEFT), _EPOCH_BOTTOM - up * (_EPOCH_BOTTOM - _EPOCH_TOP)

    for tick in tick_values(low, high):
        y = to_pixel(first, tick)[1]
        parts.append(f'<line class="grid" x1="{_EPOCH_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_EPOCH_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in tick_values(first, last):
        if tick == round(tick):
            x = to_pixel(tick, low)[0]
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{_EPOCH_BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
            )
    middle = (_EPOCH_LEFT + right) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{_EPOCH_BOTTOM + 38}" text-anchor="middle">epoch</text>')
    parts.append(f'<text class="tick" x="{_EPOCH_LEFT}" y="{_EPOCH_TOP - 5}">{escape(unit)}</text>')
    ordered = sorted(series, key=lambda course: course.points[-1][1])
    labels = separate_labels([to_pixel(*course.points[-1])[1] for course in ordered], _EPOCH_TOP)
    for curve, label_y in zip(ordered, labels, strict=True):
        spots = [to_pixel(*point) for point in curve.points]
        dash = ' stroke-dasharray="7 4"' if curve.dashed else ""
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        end = curve.points[-1][1]
        parts.append(f"<g><title>{escape(f'{curve.name}: ' if curve.name else '')}{end:.4g} at the end</title>")
        if len(spots) == 1:
            parts.append(f'<circle cx="{spots[0][0]:.1f}" cy="{spots[0][1]:.1f}" r="4" fill="{curve.colour}"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{curve.colour}" stroke-width="2.2"{dash}/>')
        x, y = spots[-1]
        parts.append(
            f'<line x1="{x + 3:.1f}" x2="{right + 18}" y1="{y:.1f}" y2="{label_y:.1f}" stroke="{curve.colour}"/>'
        )
        words = f"{truncate_label_middle(curve.name, 17)} {end:.4g}".strip()
        parts.append(f'<text x="{right + 22}" y="{label_y + 4:.1f}">{escape(words)}</text></g>')
    return "".join(parts) + "</svg>"
