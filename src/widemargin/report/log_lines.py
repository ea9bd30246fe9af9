"""Lines over an axis of powers of ten, and where wanted up one too."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .escaped import escape
from .svg import WIDTH, apart, begin, shortened, ticks

_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 590, 22, 340
_DOTS = 30  # points of a line that are shown as such; more of them are a curve
Line = tuple[str, Sequence[tuple[float, float]], str, bool]
"""Name, points, colour, and whether it is drawn dashed."""


def log_lines(lines: Sequence[Line], across: str, up: str, title: str, log_up: bool = True) -> str:
    """The picture, names at the right end of the lines, moved apart where they would meet."""
    points = [point for _, line, _, _ in lines for point in line]
    lows, highs = [min(p[k] for p in points) for k in (0, 1)], [max(p[k] for p in points) for k in (0, 1)]
    low_y, high_y = (_power(lows[1]), _power(highs[1])) if log_up else (0.0, 1.06 * highs[1])
    low_x, high_x = _power(lows[0]), _power(highs[0])

    def place(x: float, y: float) -> tuple[float, float]:
        share = ((_power(y) if log_up else y) - low_y) / max(high_y - low_y, 1e-9)
        along = (_power(x) - low_x) / max(high_x - low_x, 1e-9)
        return _LEFT + along * (_RIGHT - _LEFT), _BOTTOM - share * (_BOTTOM - _TOP)

    parts = [begin(WIDTH, _BOTTOM + 50, title)]
    for power in range(math.ceil(low_x - 1e-9), math.floor(high_x + 1e-9) + 1):
        x = place(10.0**power, highs[1])[0]
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{_tidy(power)}</text>')
    for value, name in _steps(low_y, high_y, log_up):
        y = place(highs[0], value)[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    middle = (_LEFT + _RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{_BOTTOM + 40}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text class="tick" x="{_LEFT}" y="{_TOP - 8}">{escape(up)}</text>')
    ordered = sorted(lines, key=lambda row: row[1][-1][1])
    labels = apart([place(*line[-1])[1] for _, line, _, _ in ordered], _TOP)
    for (name, line, ink, dashed), free in zip(ordered, labels, strict=True):
        spots = [place(*point) for point in line]
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        tip = f"{name}: " + ", ".join(f"{x:g} → {y:.3g}" for x, y in line)
        parts.append(f"<g><title>{escape(tip)}</title>")
        parts.append(f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="2.2"{dash}/>')
        if len(spots) <= _DOTS:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{ink}"/>' for x, y in spots]
        end = spots[-1]
        parts.append(
            f'<line x1="{end[0] + 5:.1f}" x2="{_RIGHT + 20}" y1="{end[1]:.1f}" y2="{free:.1f}" stroke="{ink}"/>'
        )
        parts.append(f'<text x="{_RIGHT + 24}" y="{free + 4:.1f}">{escape(shortened(name, 32))}</text></g>')
    return "".join(parts) + "</svg>"


def _power(value: float) -> float:
    return math.log10(max(value, 1e-12))


def _tidy(power: int) -> str:
    """
    >>> _tidy(3), _tidy(5), _tidy(-2)
    ('1,000', '100,000', '0.01')
    """
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"


def _steps(low: float, high: float, log_up: bool) -> list[tuple[float, str]]:
    if not log_up:
        return [(value, f"{value:g}") for value in ticks(low, high)]
    return [(10.0**p, _tidy(p)) for p in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]
