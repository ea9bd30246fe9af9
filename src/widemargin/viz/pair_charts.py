"""Charts of verification: ROC and DET curves, and histograms of scores and angles of pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..metrics.intervals import MIN_EVENTS
from ..metrics.roc import RocCurve, roc_index_at_far
from .charts import Line, add_legend, draw_log_lines
from .svg import CHART_WIDTH, INK, SOFT, Chart, chart_style

_SAME_COLOUR, _DIFFERENT_COLOUR = "#4477AA", "#EE6677"
_LABEL_WIDTH = 0.05  # of a threshold, as a share of the axis
_HISTOGRAM_BINS = 80


def draw_roc_curve(roc: RocCurve, num_same: int, num_different: int, title: str) -> Chart | None:
    """TAR over FAR, from where ten pairs of each kind are accepted; None where that is nowhere."""
    points = [(far, 100.0 * tar) for far, tar in _subsample_roc(roc, num_same, num_different)]
    if len(points) < 2:
        return None
    return draw_log_lines([Line("TAR", points, _SAME_COLOUR)], "FAR", "TAR in percent", title, log_y=False)


def draw_det_curve(roc: RocCurve, num_same: int, num_different: int, title: str) -> Chart | None:
    """Misses over false alarms, both in powers of ten (the DET curve), as far as ten pairs support both."""
    points = [
        (far, 1.0 - tar)
        for far, tar in _subsample_roc(roc, num_same, num_different)
        if (1.0 - tar) * num_same >= MIN_EVENTS - 1e-9
    ]
    if len(points) < 2:
        return None
    return draw_log_lines([Line("misses", points, _SAME_COLOUR)], "FAR", "share of same pairs that is missed", title)


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


def draw_score_histogram(roc: RocCurve, thresholds: Sequence[float], title: str) -> Chart:
    """Cosines of same and of different pairs, each as a share of its own kind, and thresholds as lines."""
    scores, shares = np.clip(roc.thresholds[1:], -1.0, 1.0), (np.diff(roc.tar), np.diff(roc.far))
    low = float(min(scores.min(), 0.0))
    places = np.arange(np.ceil(low * 5), 6.0) / 5 + 0.0  # no −0.0
    tick_labels = {float(tick): f"{tick:.1f}" for tick in places}
    edges = np.linspace(low, 1.0, _HISTOGRAM_BINS + 1)
    histograms = [np.histogram(np.minimum(scores, 1.0), edges, weights=share)[0] for share in shares]
    return _draw_pair_histogram(histograms, edges, tick_labels, "cosine", thresholds, title)


def draw_angle_histogram(degrees: NDArray[np.float64], is_same: NDArray[np.bool_], title: str) -> Chart:
    """Angles of same and of different pairs, each as a share of its own kind."""
    tick_labels = {float(tick): f"{tick}°" for tick in range(0, 181, 30)}
    edges = np.linspace(0.0, 180.0, _HISTOGRAM_BINS + 1)
    histograms = [np.histogram(degrees[kind], edges)[0] / kind.sum() for kind in (is_same, ~is_same)]
    return _draw_pair_histogram(histograms, edges, tick_labels, "angle between the two", (), title)


@chart_style()
def _draw_pair_histogram(
    shares: Sequence[NDArray[np.float64]],
    edges: NDArray[np.float64],
    tick_labels: Mapping[float, str],
    unit: str,
    thresholds: Sequence[float],
    title: str,
) -> Chart:
    """Shares of same and of different pairs in bins, and thresholds as lines."""
    chart = Chart(CHART_WIDTH, 306, title)
    axes = chart.add_axes(60, 26, 800, 260)
    tallest = max(float(kind.max()) for kind in shares) or 1.0
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, tallest), yticks=[], xlabel=unit)
    axes.set_xticks(list(tick_labels), labels=list(tick_labels.values()))
    centres = (edges[:-1] + edges[1:]) / 2
    areas = [
        axes.fill([edges[0], *centres, edges[-1]], [0, *kind, 0], fc=(colour, 0.35), ec=colour, lw=1)[0]
        for kind, colour in zip(shares, (_SAME_COLOUR, _DIFFERENT_COLOUR), strict=True)
    ]
    previous, level = -math.inf, 0
    for value in sorted(thresholds):
        level = level + 1 if value - previous < _LABEL_WIDTH * float(edges[-1] - edges[0]) else 0
        previous = value
        axes.axvline(value, color=INK, lw=1)
        place = axes.get_xaxis_transform()
        offset = (4, -12 - 15 * level)  # below the label that it would overlap
        axes.annotate(format_cosine(value), (value, 1), offset, place, "offset points", color=SOFT, size=12)
    add_legend(chart, areas, ["same pairs", "different pairs"], (60, 4), 2)
    return chart
