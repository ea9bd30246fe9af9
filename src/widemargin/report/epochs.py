"""Lines over the epochs of one or several runs, each as long as its run is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .escaped import escape
from .svg import apart, begin, ends_of, ticks

_LEFT, _TOP, _BOTTOM, _WIDTH = 56, 18, 252, 560  # small: two of them stand side by side


@dataclass(frozen=True)
class Course:
    """A number through the epochs."""

    name: str
    """Empty where there is but one."""
    points: Sequence[tuple[float, float]]
    ink: str
    dashed: bool = False


def epochs(courses: Sequence[Course], unit: str, title: str) -> str:
    """The picture, names at the ends of the lines, moved apart where they would meet."""
    values = [value for course in courses for _, value in course.points]
    low, high = min(values), max(values)  # of any size: a learning rate is as much as a percentage
    pad = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = low - pad, high + pad
    first = min(epoch for course in courses for epoch, _ in course.points)
    last = max(first + 1, *(epoch for course in courses for epoch, _ in course.points))
    right = _WIDTH - min(200, 96 + 7 * max(len(course.name) for course in courses))
    parts = [begin(_WIDTH, _BOTTOM + 48, title)]

    def spot(epoch: float, value: float) -> tuple[float, float]:
        along, up = (epoch - first) / (last - first), (value - low) / (high - low)
        return _LEFT + along * (right - _LEFT), _BOTTOM - up * (_BOTTOM - _TOP)

    for tick in ticks(low, high):
        y = spot(first, tick)[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in ticks(first, last):
        if tick == round(tick):
            x = spot(tick, low)[0]
            parts.append(f'<text class="tick" x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{tick:g}</text>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{_BOTTOM + 38}" text-anchor="middle">epoch</text>')
    parts.append(f'<text class="tick" x="{_LEFT}" y="{_TOP - 5}">{escape(unit)}</text>')
    ordered = sorted(courses, key=lambda course: course.points[-1][1])
    labels = apart([spot(*course.points[-1])[1] for course in ordered], _TOP)
    for course, free in zip(ordered, labels, strict=True):
        spots = [spot(*point) for point in course.points]
        dash = ' stroke-dasharray="7 4"' if course.dashed else ""
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        end = course.points[-1][1]
        parts.append(f"<g><title>{escape(f'{course.name}: ' if course.name else '')}{end:.4g} at the end</title>")
        if len(spots) == 1:
            parts.append(f'<circle cx="{spots[0][0]:.1f}" cy="{spots[0][1]:.1f}" r="4" fill="{course.ink}"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{course.ink}" stroke-width="2.2"{dash}/>')
        x, y = spots[-1]
        parts.append(f'<line x1="{x + 3:.1f}" x2="{right + 18}" y1="{y:.1f}" y2="{free:.1f}" stroke="{course.ink}"/>')
        words = f"{ends_of(course.name, 17)} {end:.4g}".strip()
        parts.append(f'<text x="{right + 22}" y="{free + 4:.1f}">{escape(words)}</text></g>')
    return "".join(parts) + "</svg>"
