"""A reliability diagram as SVG text: how often predictions of a confidence are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..io.text import escape
from ..metrics.classification import Reliability
from .charts import svg_open_tag, truncate_label

_LEFT, _RIGHT, _TOP, _BOTTOM, _WIDTH = 56, 416, 12, 372, 440
_LEGEND_STEP = 24
_MIN_ROWS, _MIN_SHARE = 10, 0.005  # of a bin: the accuracy of fewer rows says little and makes lines jump


class ReliabilityCurve(NamedTuple):
    """A line of the diagram."""

    name: str
    reliability: Reliability
    colour: str
    is_dashed: bool = False


def draw_reliability_diagram(curves: Sequence[ReliabilityCurve], title: str) -> str:
    """Accuracy over confidence, a dot per bin with at least 10 rows and 0.5 % of all, larger where there are more.

    The diagonal is perfect calibration. The legend has each curve's calibration error.
    """
    parts = [svg_open_tag(_WIDTH, _BOTTOM + 56 + _LEGEND_STEP * len(curves), title)]
    for k in range(6):
        share = k / 5
        x, y = _x(share), _y(share)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{100 * share:g}</text>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * share:g}</text>')
    parts.append(
        f'<line class="axis" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" stroke-dasharray="2 4" opacity=".7"/>'
    )
    middle = (_LEFT + _RIGHT) / 2
    label = "confidence (top probability, %)"
    parts.append(f'<text class="tick" x="{middle}" y="{_BOTTOM + 38}" text-anchor="middle">{label}</text>')
    parts.append(
        f'<text class="tick" transform="translate(16,{(_TOP + _BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        "accuracy (%)</text>"
    )
    for k, curve in enumerate(curves):
        parts.append(_draw_curve(curve))
        y = _BOTTOM + 62 + _LEGEND_STEP * k
        dash = ' stroke-dasharray="6 4"' if curve.is_dashed else ""
        parts.append(f'<line x1="8" x2="36" y1="{y}" y2="{y}" stroke="{curve.colour}" stroke-width="3"{dash}/>')
        label = f"{truncate_label(curve.name, 40)}: ECE {curve.reliability.ece:.3f}"
        parts.append(f'<text x="44" y="{y + 4.5}">{escape(label)}</text>')
    return "".join(parts) + "</svg>"


def _x(share: float) -> float:
    return _LEFT + share * (_RIGHT - _LEFT)


def _y(share: float) -> float:
    return _BOTTOM - share * (_BOTTOM - _TOP)


def _draw_curve(curve: ReliabilityCurve) -> str:
    bins, total = curve.reliability, max(1, sum(curve.reliability.counts))
    spots = [
        (confidence, accuracy, count)
        for count, confidence, accuracy in zip(bins.counts, bins.confidence, bins.accuracy, strict=True)
        if count >= max(_MIN_ROWS, _MIN_SHARE * total)
    ]
    points = " ".join(f"{_x(confidence):.1f},{_y(accuracy):.1f}" for confidence, accuracy, _ in spots)
    dash = ' stroke-dasharray="6 4"' if curve.is_dashed else ""
    line = f'<polyline points="{points}" fill="none" stroke="{curve.colour}" stroke-width="2"{dash}/>'
    dots = [
        f'<circle cx="{_x(confidence):.1f}" cy="{_y(accuracy):.1f}" r="{2.5 + 4.5 * (count / total) ** 0.5:.1f}" '
        f'fill="{curve.colour}" fill-opacity=".8"><title>'
        + escape(f"{curve.name}: {count} rows, confidence {100 * confidence:.1f} %, accuracy {100 * accuracy:.1f} %")
        + "</title></circle>"
        for confidence, accuracy, count in spots
    ]
    return f"<g>{line}{''.join(dots)}</g>"
