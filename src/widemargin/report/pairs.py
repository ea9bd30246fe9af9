"""Pictures of verification: the curve of TAR over FAR, that of misses over false alarms, and how scores are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..metrics.identity_intervals import LEAST_EVENTS
from ..metrics.roc import Roc, place_of
from .log_lines import log_lines
from .svg import WIDTH, begin

_INK, _OTHER = "#4477AA", "#EE6677"
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 800, 24, 260
_BINS = 80


def curve(roc: Roc, same: int, different: int, title: str) -> str | None:
    """TAR over FAR, from where ten pairs of each kind are accepted; None where that is nowhere."""
    points = [(far, 100.0 * tar) for far, tar in _thinned(roc, same, different)]
    if len(points) < 2:
        return None
    return log_lines([("TAR", points, _INK, False)], "FAR", "TAR in percent", title, log_up=False)


def misses(roc: Roc, same: int, different: int, title: str) -> str | None:
    """Misses over false alarms, both in powers of ten (the DET curve), as far as ten pairs support both."""
    points = [
        (far, 1.0 - tar) for far, tar in _thinned(roc, same, different) if (1.0 - tar) * same >= LEAST_EVENTS - 1e-9
    ]
    if len(points) < 2:
        return None
    return log_lines([("misses", points, _INK, False)], "FAR", "share of same pairs that is missed", title)


def _thinned(roc: Roc, same: int, different: int) -> list[tuple[float, float]]:
    """At most some hundred points where at least ten pairs of each kind are accepted, spread over the powers of ten."""
    if different < LEAST_EVENTS:
        return []
    wanted = np.geomspace(LEAST_EVENTS / different, 1.0, 120)
    place = np.unique([place_of(roc, far) for far in wanted])
    accepted = np.minimum(np.round(roc.far[place] * different), np.round(roc.tar[place] * same))
    kept = place[accepted >= LEAST_EVENTS]
    return list(zip(roc.far[kept].tolist(), roc.tar[kept].tolist(), strict=True))


def spread(roc: Roc, thresholds: Sequence[float], title: str) -> str:
    """Cosines of same and of different pairs, each as a share of its own kind, and thresholds as lines."""
    scores, shares = np.clip(roc.thresholds[1:], -1.0, 1.0), (np.diff(roc.tar), np.diff(roc.far))
    low = float(min(scores.min(), 0.0))
    places = np.arange(np.ceil(low * 5), 6.0) / 5 + 0.0  # no −0.0
    ticks = {float(tick): f"{tick:.1f}" for tick in places}
    edges = np.linspace(low, 1.0, _BINS + 1)
    counted = [np.histogram(np.minimum(scores, 1.0), edges, weights=share)[0] for share in shares]
    return _spread(counted, edges, ticks, "cosine", {value: f"{value:.2f}" for value in thresholds}, title)


def spread_of_angles(degrees: NDArray[np.float64], same: NDArray[np.bool_], title: str) -> str:
    """Angles of same and of different pairs, each as a share of its own kind."""
    ticks = {float(tick): f"{tick}°" for tick in range(0, 181, 30)}
    edges = np.linspace(0.0, 180.0, _BINS + 1)
    counted = [np.histogram(degrees[kind], edges)[0] / kind.sum() for kind in (same, ~same)]
    return _spread(counted, edges, ticks, "angle between the two", {}, title)


def _spread(
    kinds: Sequence[NDArray[np.float64]],
    edges: NDArray[np.float64],
    ticks: Mapping[float, str],
    unit: str,
    marks: Mapping[float, str],
    title: str,
) -> str:
    """Shares of same and of different pairs in bins."""
    low, high = float(edges[0]), float(edges[-1])
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
