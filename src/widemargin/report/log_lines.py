"""Lines over an axis of powers of ten, and where wanted up one too."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .escaped import escape
from .svg import CHART_WIDTH, separate_labels, svg_open_tag, tick_values, truncate_label

_LOG_LEFT, _LOG_RIGHT, _LOG_TOP, _LOG_BOTTOM = 70, 590, 22, 340
_MAX_LINE_MARKERS = 30  # points of a line that are shown as such; more of them are a curve
LineSpec = tuple[str, Sequence[tuple[float, float]], str, bool]
"""Name, points, colour, and whether it is drawn dashed."""


def draw_log_lines(lines: Sequence[LineSpec], xlabel: str, ylabel: str, title: str, log_y: bool = True) -> str:
    """The picture, names at the right end of the lines, moved apart where they would meet."""
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
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{_LOG_BOTTOM + 18}" text-anchor="middle">{_format_power_of_ten(power)}</text>'
        )
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
        parts.append(
            f'<line x1="{end[0] + 5:.1f}" x2="{_LOG_RIGHT + 20}" y1="{end[1]:.1f}" y2="{label_y:.1f}" stroke="{colour}"/>'
        )
        parts.append(f'<text x="{_LOG_RIGHT + 24}" y="{label_y + 4:.1f}">{escape(truncate_label(name, 32))}</text></g>')
    return "".join(parts) + "</svg>"


def _safe_log10(value: float) -> float:
    return math.log10(max(value, 1e-12))


def _format_power_of_ten(power: int) -> str:
    """
    >>> _tidy(3), _tidy(5), _tidy(-2)
    ('1,000', '100,000', '0.01')
    """
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"


def _y_ticks(low: float, high: float, log_y: bool) -> list[tuple[float, str]]:
    if not log_y:
        return [(value, f"{value:g}") for value in tick_values(low, high)]
    return [(10.0**p, _format_power_of_ten(p)) for p in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]
