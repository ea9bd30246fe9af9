"""Which classes are taken for which: a matrix with a row per true class."""

from __future__ import annotations

from collections.abc import Sequence

from ..metrics.confusion import Confusion
from .escaped import escape
from .svg import CHART_WIDTH, svg_open_tag, truncate_label

MAX_CONFUSION_CLASSES = 30  # classes of which every cell can be seen
_CONFUSION_LEFT, _CONFUSION_TOP = 150, 110


def draw_confusion_matrix(confusion: Confusion, names: Sequence[str], title: str) -> str:
    """The picture for up to 30 classes: mistakes in red, right answers in blue, both as a share of the row."""
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
            at = f'x="{_CONFUSION_LEFT + side * j:.1f}" y="{_CONFUSION_TOP + side * i:.1f}" width="{side - 1:.1f}" height="{side - 1:.1f}"'
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
