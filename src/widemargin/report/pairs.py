"""Pictures of verification: the curve of TAR over FAR, that of misses over false alarms, and how scores are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..metrics.verification import Roc
from .log_lines import log_lines
from .svg import WIDTH, begin

_INK, _OTHER = "#4477AA", "#EE6677"
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 800, 24, 260
_BINS = 80


def curve(roc: Roc, different: int, title: str) -> str:
    """TAR over FAR, from the smallest FAR that so many different pairs can show."""
    points = [(far, 100.0 * tar) for far, tar in _thinned(roc.far, roc.tar, 1.0 / different)]
    return log_lines([("TAR", points, _INK, False)], "FAR", "TAR in percent", title, log_up=False)


def misses(roc: Roc, same: int, different: int, title: str) -> str:
    """Misses over false alarms, both in powers of ten (the DET curve)."""
    floor = 0.5 / same
    points = [(far, max(1.0 - tar, floor)) for far, tar in _thinned(roc.far, roc.tar, 1.0 / different)]
    return log_lines([("misses", points, _INK, False)], "FAR", "share of same pairs that is missed", title)


def _thinned(far: NDArray[np.float64], tar: NDArray[np.float64], least: float) -> list[tuple[float, float]]:
    """At most some hundred points, evenly spread over the powers of ten."""
    wanted = np.geomspace(least, 1.0, 120)
    place = np.searchsorted(far, wanted, side="right") - 1
    return [(float(f), float(tar[k])) for f, k in zip(wanted, place, strict=True)]


def spread(scores: NDArray[np.float64], same: NDArray[np.bool_], thresholds: Sequence[float], title: str) -> str:
    """Cosines of same and of different pairs, each as a share of its own kind, and thresholds as lines."""
    low = float(min(scores.min(), 0.0))
    ticks = {float(tick): f"{tick:.1f}" for tick in np.arange(np.ceil(low * 5) / 5, 1.0 + 1e-9, 0.2)}
    return _spread(scores, same, (low, 1.0), ticks, "cosine", {value: f"{value:.2f}" for value in thresholds}, title)


def spread_of_angles(degrees: NDArray[np.float64], same: NDArray[np.bool_], title: str) -> str:
    """Angles of same and of different pairs, each as a share of its own kind."""
    ticks = {float(tick): f"{tick}°" for tick in range(0, 181, 30)}
    return _spread(degrees, same, (0.0, 180.0), ticks, "angle between the two", {}, title)


def _spread(
    values: NDArray[np.float64],
    same: NDArray[np.bool_],
    ends: tuple[float, float],
    ticks: Mapping[float, str],
    unit: str,
    marks: Mapping[float, str],
    title: str,
) -> str:
    low, high = ends
    edges = np.linspace(low, high, _BINS + 1)
    kinds = [np.histogram(values[same], edges)[0] / same.sum(), np.histogram(values[~same], edges)[0] / (~same).sum()]
    tallest = max(float(kind.max()) for kind in kinds) or 1.0

    def x(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_RIGHT - _LEFT)

    parts = [begin(WIDTH, _BOTTOM + 46, title)]
    for tick, words in ticks.items():
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{words}</text>')
    for kind, ink, name, place in zip(kinds, (_INK, _OTHER), ("same", "different"), (0, 1), strict=True):
        points = [f"{x(low):.1f},{_BOTTOM}"]
        points += [
            f"{x((edges[k] + edges[k + 1]) / 2):.1f},{_BOTTOM - value / tallest * (_BOTTOM - _TOP):.1f}"
            for k, value in enumerate(kind)
        ]
        points.append(f"{x(high):.1f},{_BOTTOM}")
        parts.append(f'<polygon points="{" ".join(points)}" fill="{ink}" fill-opacity=".35" stroke="{ink}"/>')
        parts.append(f'<rect x="{_LEFT + 130 * place}" y="4" width="12" height="12" fill="{ink}"/>')
        parts.append(f'<text class="tick" x="{_LEFT + 18 + 130 * place}" y="14">{name} pairs</text>')
    for value, words in marks.items():
        parts.append(f'<line class="axis" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x(value) + 4:.1f}" y="{_TOP + 12}">{words}</text>')
    middle = (_LEFT + _RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{_BOTTOM + 38}" text-anchor="middle">{unit}</text>')
    return "".join(parts) + "</svg>"
