"""Tables of numbers as charts: a heat map, a confusion matrix, and a ridgeline of histograms.

The confusion matrix is drawn by hand: matplotlib takes seconds for 900 cells with a number and a hover text each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..io.text import escape
from ..metrics.confusion import Confusion
from .charts import SMALL_WIDTH, add_row_axes
from .svg import CHART_WIDTH, INK, SOFT, Chart, chart_style, svg_open_tag, truncate_label


@chart_style()
def draw_heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
    highlighted: tuple[str, str] | None,
    colour: str,
    title: str,
    decimals: int = 2,
) -> Chart:
    """A heat map of `values` by (row, column): darker is larger, one cell may be framed, missing ones stay empty."""
    low, high = min(values.values()), max(values.values())
    chart = Chart(CHART_WIDTH, 52 + 34 * len(rows), title)
    axes = add_row_axes(chart, rows, (120, 40, 120 + 110 * len(columns)), 34)
    axes.set(xlim=(-0.5, len(columns) - 0.5))
    axes.set_xticks(range(len(columns)), labels=columns)
    axes.tick_params(axis="x", labeltop=True, labelbottom=False)
    axes.grid(visible=False)
    for (row, column), value in values.items():
        x, y = columns.index(column), rows.index(row)
        depth = 0.08 + 0.62 * (value - low) / max(high - low, 1e-9)
        frame: Any = {"ec": INK, "lw": 3} if highlighted == (row, column) else {}
        axes.bar(x, 0.88, 0.96, y - 0.44, fc=(colour, depth), **frame)
        axes.text(x, y, f"{value:.{decimals}f}", ha="center", va="center_baseline")
    return chart


MAX_CONFUSION_CLASSES = 30  # classes of which every cell can be seen
_CONFUSION_LEFT, _CONFUSION_TOP = 150, 110


def draw_confusion_matrix(confusion: Confusion, names: Sequence[str], title: str) -> str:
    """Return SVG text with a row per true class, for up to 30: mistakes red, correct blue, as shares of the row."""
    counts = confusion.matrix()
    side = min(46.0, (CHART_WIDTH - _CONFUSION_LEFT - 20) / len(names))
    parts = [
        svg_open_tag(
            max(360.0, _CONFUSION_LEFT + side * len(names) + 40), _CONFUSION_TOP + side * len(names) + 10, title
        )
    ]
    for i, name in enumerate(names):
        y, x = _CONFUSION_TOP + side * (i + 0.5), _CONFUSION_LEFT + side * (i + 0.5)
        short = escape(truncate_label(name, 16))
        parts.append(f'<text class="tick" x="{_CONFUSION_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short}</text>')
        parts.append(
            f'<text class="tick" transform="translate({x + 4:.1f},{_CONFUSION_TOP - 8}) rotate(-60)">{short}</text>'
        )
        total = max(1, sum(counts[i]))
        for j, count in enumerate(counts[i]):
            if not count:
                continue
            colour, depth = ("#4477AA", count / total) if i == j else ("#EE6677", min(1.0, 8 * count / total))
            at = f'x="{_CONFUSION_LEFT + side * j:.1f}" y="{_CONFUSION_TOP + side * i:.1f}"'
            at += f' width="{side - 1:.1f}" height="{side - 1:.1f}"'
            tip = escape(f"{name} taken for {names[j]}: {count}" if i != j else f"{name} right: {count}")
            parts.append(
                f'<rect {at} fill="{colour}" fill-opacity="{0.06 + 0.74 * depth:.2f}"><title>{tip}</title></rect>'
            )
            if side >= 22:
                kind = ' style="fill:#fff"' if depth > 0.5 else ""
                parts.append(
                    f'<text class="tick"{kind} x="{_CONFUSION_LEFT + side * (j + 0.5):.1f}" y="{y + 4:.1f}" '
                    f'text-anchor="middle" pointer-events="none">{count}</text>'
                )
    return "".join(parts) + "</svg>"


def most_common_confusions(
    confusion: Confusion, names: Sequence[str], limit: int = 10
) -> list[tuple[str, str, int, float]]:
    """The commonest mistakes: true class, answer, how often, percent of the class."""
    return [
        (names[true], names[answer], times, 100.0 * times / max(1, confusion.images[true]))
        for true, answer, times in confusion.mistakes()[:limit]
    ]


@chart_style()
def draw_ridgeline(
    names: Sequence[str], counts: Sequence[Sequence[int]], colour: str, title: str, max_rows: int = 24
) -> Chart:
    """Overlapping histograms of angles, 0° to 180°, one per name from top to bottom, at most about `max_rows`."""
    step = max(1, -(-len(names) // max_rows))
    chosen = sorted({*range(0, len(names), step), len(names) - 1})
    row_height, peak = (26 if len(chosen) <= 12 else 16), 54
    base = 14 + peak + row_height * (len(chosen) - 1)
    chart = Chart(SMALL_WIDTH, base + 44, title)
    axes = chart.add_axes(56, 14, 540, base)
    axes.set(xlim=(0, 180), ylim=(len(chosen) - 1, -peak / row_height), xlabel="angle to the own class")
    axes.set_xticks(range(0, 181, 30), labels=[f"{degrees}°" for degrees in range(0, 181, 30)])
    axes.set_yticks(range(len(chosen)), labels=[truncate_label(names[i], 8) for i in chosen])
    axes.grid(visible=False, axis="y")
    max_share = max((max(counts[i]) / max(1, sum(counts[i])) for i in chosen), default=1.0) or 1.0
    for row, i in enumerate(chosen):
        shares, width = np.asarray(counts[i]) / max(1, sum(counts[i])), 180 / len(counts[i])
        heights = row - shares / max_share * peak / row_height
        angles = (np.arange(len(shares)) + 0.5) * width
        opacity = 0.35 + 0.5 * row / max(1, len(chosen) - 1)
        (ridge,) = axes.fill([0, *angles, 180], [row, *heights, row], fc=(colour, opacity), ec=colour, lw=1.2)
        ridge.set_zorder(2 + row / len(chosen))
        chart.add_tip(ridge, f"epoch {names[i]}: median {histogram_quantile(counts[i], 0.5):.1f}°")
    axes.text(46, chart.height - 22, "epoch", transform=None, ha="right", color=SOFT, size=12)
    return chart


def histogram_quantile(counts: Sequence[int], q: float) -> float:
    """The q-quantile in degrees of angles counted in bins over 0° to 180°; within a bin as if evenly spread.

    >>> histogram_quantile([0, 10, 0, 0], 0.5), histogram_quantile([5, 5], 0.5)
    (67.5, 90.0)
    """
    wanted, width, below = q * sum(counts), 180 / len(counts), 0
    for k, count in enumerate(counts):
        if count and below + count >= wanted:
            return (k + (wanted - below) / count) * width
        below += count
    return 0.0
