"""Lines over the epochs of one or several runs, each as long as its run is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .escaped import escape
from .svg import separate_labels, svg_open_tag, tick_values, truncate_label_middle

_EPOCH_LEFT, _EPOCH_TOP, _EPOCH_BOTTOM, _EPOCH_WIDTH = 56, 18, 252, 560  # small: two of them stand side by side


@dataclass(frozen=True)
class EpochSeries:
    """A number through the epochs."""

    name: str
    """Empty where there is but one."""
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


def draw_epoch_curves(series: Sequence[EpochSeries], unit: str, title: str) -> str:
    """The picture, names at the ends of the lines, moved apart where they would meet."""
    values = [value for course in series for _, value in course.points]
    low, high = min(values), max(values)  # of any size: a learning rate is as much as a percentage
    pad = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = low - pad, high + pad
    first = min(epoch for course in series for epoch, _ in course.points)
    last = max(first + 1, *(epoch for course in series for epoch, _ in course.points))
    right = _EPOCH_WIDTH - min(200, 96 + 7 * max(len(course.name) for course in series))
    parts = [svg_open_tag(_EPOCH_WIDTH, _EPOCH_BOTTOM + 48, title)]

    def to_pixel(epoch: float, value: float) -> tuple[float, float]:
        along, up = (epoch - first) / (last - first), (value - low) / (high - low)
        return _EPOCH_LEFT + along * (right - _EPOCH_LEFT), _EPOCH_BOTTOM - up * (_EPOCH_BOTTOM - _EPOCH_TOP)

    for tick in tick_values(low, high):
        y = to_pixel(first, tick)[1]
        parts.append(f'<line class="grid" x1="{_EPOCH_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_EPOCH_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in tick_values(first, last):
        if tick == round(tick):
            x = to_pixel(tick, low)[0]
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{_EPOCH_BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
            )
    middle = (_EPOCH_LEFT + right) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{_EPOCH_BOTTOM + 38}" text-anchor="middle">epoch</text>')
    parts.append(f'<text class="tick" x="{_EPOCH_LEFT}" y="{_EPOCH_TOP - 5}">{escape(unit)}</text>')
    ordered = sorted(series, key=lambda course: course.points[-1][1])
    labels = separate_labels([to_pixel(*course.points[-1])[1] for course in ordered], _EPOCH_TOP)
    for course, label_y in zip(ordered, labels, strict=True):
        spots = [to_pixel(*point) for point in course.points]
        dash = ' stroke-dasharray="7 4"' if course.dashed else ""
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        end = course.points[-1][1]
        parts.append(f"<g><title>{escape(f'{course.name}: ' if course.name else '')}{end:.4g} at the end</title>")
        if len(spots) == 1:
            parts.append(f'<circle cx="{spots[0][0]:.1f}" cy="{spots[0][1]:.1f}" r="4" fill="{course.colour}"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{course.colour}" stroke-width="2.2"{dash}/>')
        x, y = spots[-1]
        parts.append(
            f'<line x1="{x + 3:.1f}" x2="{right + 18}" y1="{y:.1f}" y2="{label_y:.1f}" stroke="{course.colour}"/>'
        )
        words = f"{truncate_label_middle(course.name, 17)} {end:.4g}".strip()
        parts.append(f'<text x="{right + 22}" y="{label_y + 4:.1f}">{escape(words)}</text></g>')
    return "".join(parts) + "</svg>"
