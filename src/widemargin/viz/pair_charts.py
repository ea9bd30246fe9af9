"""Charts of verification as SVG text: ROC and DET curves, and histograms of scores and angles of pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..metrics.intervals import MIN_EVENTS
from ..metrics.roc import RocCurve, roc_index_at_far
from .charts import CHART_WIDTH, svg_open_tag
from .lines import draw_log_lines

_PRIMARY_COLOUR, _SECONDARY_COLOUR = "#4477AA", "#EE6677"
_HISTOGRAM_LEFT, _HISTOGRAM_RIGHT, _HISTOGRAM_TOP, _HISTOGRAM_BOTTOM = 60, 800, 24, 260
_HISTOGRAM_BINS = 80
_LABEL_WIDTH = 34.0  # of a threshold, in the units of the picture


def draw_roc_curve(roc: RocCurve, num_same: int, num_different: int, title: str) -> str | None:
    """TAR over FAR, from where ten pairs of each kind are accepted; None where that is nowhere."""
    points = [(far, 100.0 * tar) for far, tar in _subsample_roc(roc, num_same, num_different)]
    if len(points) < 2:
        return None
    return draw_log_lines([("TAR", points, _PRIMARY_COLOUR, False)], "FAR", "TAR in percent", title, log_y=False)


def draw_det_curve(roc: RocCurve, num_same: int, num_different: int, title: str) -> str | None:
    """Misses over false alarms, both in powers of ten (the DET curve), as far as ten pairs support both."""
    points = [
        (far, 1.0 - tar)
        for far, tar in _subsample_roc(roc, num_same, num_different)
        if (1.0 - tar) * num_same >= MIN_EVENTS - 1e-9
    ]
    if len(points) < 2:
        return None
    return draw_log_lines(
        [("misses", points, _PRIMARY_COLOUR, False)], "FAR", "share of same pairs that is missed", title
    )


def _subsample_roc(roc: RocCurve, num_same: int, num_different: int) -> list[tuple[float, float]]:
    """At most some hundred points where at least ten pairs of each kind are accepted, spread over the powers of ten."""
    if num_different < MIN_EVENTS:
        return []
    wanted = np.geomspace(MIN_EVENTS / num_different, 1.0, 120)
    place = np.unique([roc_index_at_far(roc, far) for far in wanted])
    accepted = np.minimum(np.round(roc.far[place] * num_different), np.round(roc.tar[place] * num_same))
    supported = place[accepted >= MIN_EVENTS]
    return list(zip(roc.far[supported].tolist(), roc.tar[supported].tolist(), strict=True))


def format_cosine(cosine: float) -> str:
    """A cosine in two decimals; one that rounds to zero has no sign.

    >>> format_cosine(-0.001), format_cosine(-0.25)
    ('0.00', '-0.25')
    """
    return f"{round(cosine, 2) + 0.0:.2f}"


def draw_score_histogram(roc: RocCurve, thresholds: Sequence[float], title: str) -> str:
    """Cosines of same and of different pairs, each as a share of its own kind, and thresholds as lines."""
    scores, shares = np.clip(roc.thresholds[1:], -1.0, 1.0), (np.diff(roc.tar), np.diff(roc.far))
    low = float(min(scores.min(), 0.0))
    places = np.arange(np.ceil(low * 5), 6.0) / 5 + 0.0  # no −0.0
    tick_labels = {float(tick): f"{tick:.1f}" for tick in places}
    edges = np.linspace(low, 1.0, _HISTOGRAM_BINS + 1)
    histograms = [np.histogram(np.minimum(scores, 1.0), edges, weights=share)[0] for share in shares]
    return _draw_pair_histogram(
        histograms, edges, tick_labels, "cosine", {value: format_cosine(value) for value in thresholds}, title
    )


def draw_angle_histogram(degrees: NDArray[np.float64], is_same: NDArray[np.bool_], title: str) -> str:
    """Angles of same and of different pairs, each as a share of its own kind."""
    tick_labels = {float(tick): f"{tick}°" for tick in range(0, 181, 30)}
    edges = np.linspace(0.0, 180.0, _HISTOGRAM_BINS + 1)
    histograms = [np.histogram(degrees[kind], edges)[0] / kind.sum() for kind in (is_same, ~is_same)]
    return _draw_pair_histogram(histograms, edges, tick_labels, "angle between the two", {}, title)


def _draw_pair_histogram(
    histograms: Sequence[NDArray[np.float64]],
    edges: NDArray[np.float64],
    tick_labels: Mapping[float, str],
    unit: str,
    threshold_labels: Mapping[float, str],
    title: str,
) -> str:
    """Shares of same and of different pairs in bins."""
    low, high = float(edges[0]), float(edges[-1])
    tallest = max(float(kind.max()) for kind in histograms) or 1.0

    def x(value: float) -> float:
        return _HISTOGRAM_LEFT + (value - low) / (high - low) * (_HISTOGRAM_RIGHT - _HISTOGRAM_LEFT)

    parts = [svg_open_tag(CHART_WIDTH, _HISTOGRAM_BOTTOM + 46, title)]
    for tick, words in tick_labels.items():
        parts.append(
            f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_HISTOGRAM_TOP}" y2="{_HISTOGRAM_BOTTOM}"/>'
        )
        parts.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{_HISTOGRAM_BOTTOM + 18}" text-anchor="middle">{words}</text>'
        )
    for kind, colour, name, place in zip(
        histograms, (_PRIMARY_COLOUR, _SECONDARY_COLOUR), ("same", "different"), (0, 1), strict=True
    ):
        points = [f"{x(low):.1f},{_HISTOGRAM_BOTTOM}"]
        heights = kind / tallest * (_HISTOGRAM_BOTTOM - _HISTOGRAM_TOP)
        points += [
            f"{x((edges[k] + edges[k + 1]) / 2):.1f},{_HISTOGRAM_BOTTOM - height:.1f}"
            for k, height in enumerate(heights)
        ]
        points.append(f"{x(high):.1f},{_HISTOGRAM_BOTTOM}")
        parts.append(f'<polygon points="{" ".join(points)}" fill="{colour}" fill-opacity=".35" stroke="{colour}"/>')
        parts.append(f'<rect x="{_HISTOGRAM_LEFT + 130 * place}" y="4" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text class="tick" x="{_HISTOGRAM_LEFT + 18 + 130 * place}" y="14">{name} pairs</text>')
    previous, level = -math.inf, 0
    for value, words in sorted(threshold_labels.items()):
        level = level + 1 if x(value) - previous < _LABEL_WIDTH else 0  # below the label that it would overlap
        previous = x(value)
        ends = f'x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{_HISTOGRAM_TOP}" y2="{_HISTOGRAM_BOTTOM}"'
        parts.append(f'<line class="axis" {ends}/>')
        parts.append(f'<text class="tick" x="{x(value) + 4:.1f}" y="{_HISTOGRAM_TOP + 12 + 15 * level}">{words}</text>')
    middle = (_HISTOGRAM_LEFT + _HISTOGRAM_RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{_HISTOGRAM_BOTTOM + 38}" text-anchor="middle">{unit}</text>')
    return "".join(parts) + "</svg>"
