"""Tables of numbers as SVG text: a heat map, a confusion matrix, and a ridgeline of histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..io.text import escape
from ..metrics.confusion import Confusion
from .charts import CHART_WIDTH, svg_open_tag, truncate_label

_HEATMAP_LEFT, _HEATMAP_TOP, _HEATMAP_CELL_WIDTH, _HEATMAP_CELL_HEIGHT = 120, 40, 110, 34


def draw_heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
    highlighted: tuple[str, str] | None,
    colour: str,
    title: str,
) -> str:
    """A heat map of `values` by (row, column): darker is larger, one cell may be framed, missing ones stay empty."""
    low, high = min(values.values()), max(values.values())
    parts = [svg_open_tag(CHART_WIDTH, _HEATMAP_TOP + _HEATMAP_CELL_HEIGHT * len(rows) + 12, title)]
    for j, column in enumerate(columns):
        x = _HEATMAP_LEFT + _HEATMAP_CELL_WIDTH * (j + 0.5)
        parts.append(f'<text class="tick" x="{x}" y="{_HEATMAP_TOP - 10}" text-anchor="middle">{escape(column)}</text>')
    for i, row in enumerate(rows):
        y = _HEATMAP_TOP + _HEATMAP_CELL_HEIGHT * i
        parts.append(f'<text class="tick" x="{_HEATMAP_LEFT - 12}" y="{y + 22}" text-anchor="end">{escape(row)}</text>')
        for j, column in enumerate(columns):
            if (row, column) not in values:
                continue
            x, value = _HEATMAP_LEFT + _HEATMAP_CELL_WIDTH * j, values[row, column]
            depth = 0.08 + 0.62 * (value - low) / max(high - low, 1e-9)
            frame = ' stroke="currentColor" stroke-width="3"' if highlighted == (row, column) else ""
            size = f'width="{_HEATMAP_CELL_WIDTH - 4}" height="{_HEATMAP_CELL_HEIGHT - 4}"'
            parts.append(
                f'<rect x="{x + 2}" y="{y + 2}" {size} rx="4" fill="{colour}" fill-opacity="{depth:.2f}"{frame}/>'
            )
            parts.append(
                f'<text x="{x + _HEATMAP_CELL_WIDTH / 2}" y="{y + 22}" text-anchor="middle">{value:.2f}</text>'
            )
    return "".join(parts) + "</svg>"


MAX_CONFUSION_CLASSES = 30  # classes of which every cell can be seen
_CONFUSION_LEFT, _CONFUSION_TOP = 150, 110


def draw_confusion_matrix(confusion: Confusion, names: Sequence[str], title: str) -> str:
    """A row per true class, for up to 30 classes: mistakes in red, right answers in blue, as shares of the row."""
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


# Small: two of them stand side by side.
_RIDGE_LEFT, _RIDGE_RIGHT, _RIDGE_TOP, _RIDGE_PEAK_HEIGHT, _RIDGE_WIDTH = 56, 540, 14, 54, 560


def draw_ridgeline(
    names: Sequence[str], counts: Sequence[Sequence[int]], colour: str, title: str, max_rows: int = 24
) -> str:
    """Overlapping histograms of angles, 0° to 180°, one per name from top to bottom, at most about `max_rows`."""
    step = max(1, -(-len(names) // max_rows))
    chosen = list(range(0, len(names), step))
    if chosen[-1] != len(names) - 1:
        chosen.append(len(names) - 1)
    row_step = 26 if len(chosen) <= 12 else 16
    base = _RIDGE_TOP + _RIDGE_PEAK_HEIGHT + row_step * (len(chosen) - 1)
    parts = [svg_open_tag(_RIDGE_WIDTH, base + 44, title)]
    for degrees in range(0, 181, 30):
        x = _RIDGE_LEFT + degrees / 180 * (_RIDGE_RIGHT - _RIDGE_LEFT)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_RIDGE_TOP}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{base + 18}" text-anchor="middle">{degrees}°</text>')
    middle = (_RIDGE_LEFT + _RIDGE_RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{base + 36}" text-anchor="middle">angle to the own class</text>')
    max_share = max((max(counts[i]) / max(1, sum(counts[i])) for i in chosen), default=1.0) or 1.0
    for row, i in enumerate(chosen):
        y = _RIDGE_TOP + _RIDGE_PEAK_HEIGHT + row_step * row
        parts.append(_ridge(counts[i], y, max_share, colour, 0.35 + 0.5 * row / max(1, len(chosen) - 1), names[i]))
        parts.append(
            f'<text class="tick" x="{_RIDGE_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(names[i])}</text>'
        )
    parts.append(f'<text class="tick" x="{_RIDGE_LEFT - 10}" y="{_RIDGE_TOP + 8}" text-anchor="end">epoch</text>')
    return "".join(parts) + "</svg>"


def _ridge(counts: Sequence[int], y: float, max_share: float, colour: str, opacity: float, name: str) -> str:
    total, width = max(1, sum(counts)), (_RIDGE_RIGHT - _RIDGE_LEFT) / len(counts)
    points = [f"{_RIDGE_LEFT},{y:.1f}"]
    for k, count in enumerate(counts):
        points.append(f"{_RIDGE_LEFT + (k + 0.5) * width:.1f},{y - count / total / max_share * _RIDGE_PEAK_HEIGHT:.1f}")
    points.append(f"{_RIDGE_RIGHT},{y:.1f}")
    tip = f"epoch {name}: median {histogram_quantile(counts, 0.5):.1f}°"
    shape = (
        f'points="{" ".join(points)}" fill="{colour}" fill-opacity="{opacity:.2f}" stroke="{colour}" stroke-width="1.2"'
    )
    return f"<g><title>{escape(tip)}</title><polygon {shape}/></g>"


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
