"""Charts as SVG text: intervals, dot plots, critical-difference diagrams, bars, lines and strip plots.

Also what every chart needs: ticks and limits of an axis, labels that fit, the colour of a loss (the same everywhere),
and dark-mode rules for SVG files of matplotlib. Text and axes take their colours from the page, light or dark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from ..io.text import escape

_INTERVAL_ROW_HEIGHT = 30
CHART_WIDTH = 860


def tick_values(low: float, high: float, target_count: int = 6) -> list[float]:
    """Round numbers between `low` and `high`.

    >>> tick_values(92.3, 97.8)
    [93.0, 94.0, 95.0, 96.0, 97.0]
    """
    raw = max(high - low, 1e-9) / target_count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def axis_limits(values: Sequence[float], pad_fraction: float, decimals: int = 2) -> tuple[float, float]:
    """Limits of an axis, padded by a fraction of the range; values that (nearly) agree in `decimals` are centred.

    >>> axis_limits([90.0, 100.0], 0.1), axis_limits([100.0], 0.1), axis_limits([0.5], 0.1, decimals=4)
    ((89.0, 101.0), (99.0, 101.0), (0.49, 0.51))
    """
    low, high, unit = min(values), max(values), 10.0**-decimals
    pad = pad_fraction * (high - low) if high - low > 2 * unit else 100 * unit
    return low - pad, high + pad


def draw_intervals(
    names: Sequence[str],
    means: Sequence[float],
    spans: Sequence[tuple[float, float]],
    colours: Sequence[str],
    unit: str,
    title: str,
    background_values: Sequence[Sequence[float]] = (),
    num_references: int = 0,
    decimals: int = 2,
    higher_is_better: bool = True,
) -> str:
    """A dot and an interval per name, one under the other; `background_values` are single values behind them.

    The last `num_references` names are separated by a line. A reference that is so much worse than the others that it
    would squeeze them together is an arrow at the left end, or at the right one where less is better.
    """
    left, right, top, bottom = 250, 700, 12, 44
    first = len(names) - num_references
    low, high = _interval_axis_limits(spans[:first], spans[first:], background_values, decimals, higher_is_better)
    height = top + _INTERVAL_ROW_HEIGHT * len(names) + bottom

    def x(value: float) -> float:
        return min(max(left, left + (value - low) / (high - low) * (right - left)), right)

    parts = [svg_open_tag(CHART_WIDTH, height, title)]
    base = top + _INTERVAL_ROW_HEIGHT * len(names)
    for tick in tick_values(low, high):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{base + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(
        f'<text class="tick" x="{(left + right) / 2}" y="{base + 37}" text-anchor="middle">{escape(unit)}</text>'
    )
    if 0 < num_references < len(names):
        line = top + _INTERVAL_ROW_HEIGHT * first
        parts.append(f'<line class="axis" x1="20" x2="{right}" y1="{line}" y2="{line}" stroke-width="0.8"/>')
    for i, name in enumerate(names):
        y = top + _INTERVAL_ROW_HEIGHT * i + _INTERVAL_ROW_HEIGHT / 2
        (a, b), mean = spans[i], means[i]
        tip = f"{name}: {mean:.{decimals}f}, 95 % interval {a:.{decimals}f} to {b:.{decimals}f}"
        parts.append(f'<g fill="{colours[i]}" stroke="{colours[i]}"><title>{escape(tip)}</title>')
        if i < len(background_values):
            dots = (
                f'<circle class="faint" cx="{x(v):.1f}" cy="{y + _jitter(k)}" r="2"/>'
                for k, v in enumerate(background_values[i])
            )
            parts += dots
        if not low <= mean <= high:
            tip_x, base_x = (left, left + 9) if mean < low else (right, right - 9)
            parts.append(f'<polygon points="{tip_x},{y} {base_x},{y - 5} {base_x},{y + 5}"/></g>')
        else:
            parts.append(f'<line x1="{x(a):.1f}" x2="{x(b):.1f}" y1="{y}" y2="{y}" stroke-width="3"/>')
            parts.append(f'<circle cx="{x(mean):.1f}" cy="{y}" r="5.5"/></g>')
        parts.append(f'<text x="{left - 12}" y="{y + 4.5}" text-anchor="end">{escape(truncate_label(name))}</text>')
        parts.append(f'<text class="tick" x="{right + 10}" y="{y + 4.5}">{mean:.{decimals}f}</text>')
    return "".join(parts) + "</svg>"


def _interval_axis_limits(
    spans: Sequence[tuple[float, float]],
    references: Sequence[tuple[float, float]],
    background_values: Sequence[Sequence[float]],
    decimals: int,
    higher_is_better: bool,
) -> tuple[float, float]:
    """Ends of an axis: all of the main intervals, and references that are better than these or no further off than two
    times their range (that of 1,000 units in the last decimal at the least)."""
    main = [v for span in spans or references for v in span] + [v for row in background_values for v in row]
    reach = 2 * max(max(main) - min(main), 500 * 10.0**-decimals)
    near = [
        span
        for span in references
        if (span[0] >= min(main) - reach if higher_is_better else span[1] <= max(main) + reach)
    ]
    return axis_limits([*main, *(v for span in near for v in span)], 0.04, decimals)


def draw_dot_plot(
    rows: Sequence[str],
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    colours: Sequence[str],
    unit: str = "accuracy in percent",
    decimals: int = 2,
) -> str:
    """For every row (a set) a dot per name (a method) on one axis, with a legend; `values` [rows][names]."""
    left, right, step = 250, 820, 24
    top = 16 + 20 * math.ceil(len(names) / 3)
    all_values = [v for row in values for v in row]
    pad = 100 * 10.0**-decimals
    low, high = min(all_values) - pad, max(all_values) + pad
    base = top + step * len(rows)

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    parts = [svg_open_tag(CHART_WIDTH, base + 40, f"Every method on every set, {unit}")]
    for k, name in enumerate(names):
        at, y = 60.0 + 260 * (k % 3), 12.0 + 20 * (k // 3)
        parts.append(f'{_mark(k, at, y, colours[k])}<text class="tick" x="{at + 10}" y="{y + 4}">')
        parts.append(f"{escape(truncate_label(name, 30))}</text>")
    for tick in tick_values(low, high, 8):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{base + 16}" text-anchor="middle">{tick:g}</text>')
    for i, row in enumerate(rows):
        y = top + step * i + step / 2
        parts.append(f'<text x="{left - 12}" y="{y + 4.5}" text-anchor="end">{escape(truncate_label(row))}</text>')
        for k, name in enumerate(names):
            tip = escape(f"{row}, {name}: {values[i][k]:.{decimals}f}")
            parts.append(f"<g><title>{tip}</title>{_mark(k, x(values[i][k]), y, colours[k])}</g>")
    middle = (left + right) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{base + 34}" text-anchor="middle">{escape(unit)}</text>')
    return "".join(parts) + "</svg>"


def _mark(k: int, x: float, y: float, colour: str) -> str:
    """A mark whose shape changes with `k`, so that two of one colour can be distinguished."""
    if k % 3 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}" opacity=".85"/>'
    if k % 3 == 1:
        return f'<rect x="{x - 4.2:.1f}" y="{y - 4.2:.1f}" width="8.4" height="8.4" fill="{colour}" opacity=".85"/>'
    points = f"{x:.1f},{y - 5.5:.1f} {x + 5:.1f},{y + 4:.1f} {x - 5:.1f},{y + 4:.1f}"
    return f'<polygon points="{points}" fill="{colour}" opacity=".85"/>'


def _jitter(k: int) -> float:
    return ((k * 7) % 11 - 5) * 1.1


def draw_critical_difference_diagram(
    names: Sequence[str],
    positions: Sequence[float],
    indistinguishable: Sequence[Sequence[int]],
    axis_label: str,
    title: str,
    scale_bar: tuple[float, str] | None = None,
    best_left: bool = True,
    decimals: int = 2,
) -> str:
    """Methods on an axis, and a bar under those that do not differ significantly (Demšar's diagram)."""
    order = sorted(range(len(names)), key=lambda i: positions[i] if best_left else -positions[i])
    first = min(positions)
    low, high = axis_limits([*positions, first + scale_bar[0]] if scale_bar else positions, 0.06, decimals)
    left, right, line = 300, 540, 62

    def x(value: float) -> float:
        share = (value - low) / (high - low)
        return left + (share if best_left else 1 - share) * (right - left)

    half = math.ceil(len(order) / 2)
    bars = line + 14
    first_row = bars + 10 * len(indistinguishable) + 22
    height = first_row + 24 * half + 8
    parts = [svg_open_tag(CHART_WIDTH, height, title)]
    parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{line}" y2="{line}"/>')
    for tick in tick_values(low, high, 5):
        parts.append(f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{line - 5}" y2="{line}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{line - 10}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text class="tick" x="{left - 12}" y="{line + 4}" text-anchor="end">{escape(axis_label)}</text>')
    if scale_bar:
        start, end = x(first), x(first + scale_bar[0])
        parts.append(f'<line class="axis" x1="{start:.1f}" x2="{end:.1f}" y1="16" y2="16" stroke-width="3"/>')
        parts.append(f'<text class="tick" x="{end + 8:.1f}" y="20">{escape(scale_bar[1])}</text>')
    for level, members in enumerate(indistinguishable):
        ends = [x(positions[i]) for i in members]
        y = bars + 10 * level
        parts.append(f'<line class="bar" x1="{min(ends) - 5:.1f}" x2="{max(ends) + 5:.1f}" y1="{y}" y2="{y}"/>')
    for k, i in enumerate(order):
        on_left = k < half
        row = first_row + 24 * (k if on_left else len(order) - 1 - k)
        edge = left - 20 if on_left else right + 20
        place = x(positions[i])
        parts.append(f'<polyline class="lead" points="{place:.1f},{line} {place:.1f},{row} {edge},{row}"/>')
        anchor, at = ("end", edge - 6) if on_left else ("start", edge + 6)
        label = (
            f"{truncate_label(names[i])}  {positions[i]:.{decimals}f}"
            if on_left
            else f"{positions[i]:.{decimals}f}  {truncate_label(names[i])}"
        )
        parts.append(f'<text x="{at}" y="{row + 4.5}" text-anchor="{anchor}">{escape(label)}</text>')
    return "".join(parts) + "</svg>"


def draw_grouped_bars(
    names: Sequence[str], kinds: Sequence[str], values: Sequence[Sequence[float]], colours: Sequence[str], title: str
) -> str:
    """For every kind a block of bars, one per name; `values` [names][kinds] in radians."""
    left, right, top = 250, 700, 20
    group_height = 19 * len(names) + 34
    height = top + group_height * len(kinds) + 8
    largest = max((v for row in values for v in row if math.isfinite(v)), default=1.0) or 1.0
    parts = [svg_open_tag(CHART_WIDTH, height, title)]
    for j, kind in enumerate(kinds):
        y = top + group_height * j
        parts.append(f'<text class="strong" x="{left}" y="{y}">{escape(kind)}</text>')
        for i, name in enumerate(names):
            value = values[i][j]
            at = y + 10 + 19 * i
            width = 0.0 if not math.isfinite(value) else value / largest * (right - left)
            shown = "–" if not math.isfinite(value) else f"{value:.2f}"
            label = escape(truncate_label(name))
            parts.append(f'<text class="tick" x="{left - 12}" y="{at + 11}" text-anchor="end">{label}</text>')
            parts.append(f'<rect x="{left}" y="{at}" width="{width:.1f}" height="14" rx="2" fill="{colours[i]}"/>')
            parts.append(f'<text class="tick" x="{left + width + 6:.1f}" y="{at + 11}">{shown}</text>')
    return "".join(parts) + "</svg>"


def svg_open_tag(width: float, height: float, title: str) -> str:
    """The opening tag of an SVG with its text alternative."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>'
    )


def truncate_label(name: str, max_length: int = 34) -> str:
    """A name cut to at most `max_length` characters.

    >>> truncate_label("arcface(s=64, m=0.5)", 8)
    'arcface…'
    """
    return name if len(name) <= max_length else name[: max_length - 1] + "…"


def truncate_label_middle(name: str, max_length: int) -> str:
    """A name shortened in the middle, for names that may begin alike.

    >>> truncate_label_middle("a long name of a run, held out", 17)
    'a long n…held out'
    """
    half = (max_length - 1) // 2
    return name if len(name) <= max_length else f"{name[: max_length - 1 - half]}…{name[-half:]}"


def separate_labels(heights: Sequence[float], top: float, gap: float = 17.0) -> list[float]:
    """Move the y positions of labels, from the lowest label (largest y) up, `gap` apart and none above `top`.

    >>> separate_labels([30.0, 25.0, 20.0], 22.0, 10.0)
    [42.0, 32.0, 22.0]
    """
    separated: list[float] = []
    for height in heights:
        separated.append(min(height, separated[-1] - gap) if separated else height)
    for k in range(len(separated) - 1, -1, -1):
        least = top if k == len(separated) - 1 else separated[k + 1] + gap
        separated[k] = max(separated[k], least)
    return separated


def draw_line_chart(
    x: Sequence[float],
    series: Sequence[tuple[str, Sequence[float], str]],
    xlabel: str,
    ylabel: str,
    title: str,
) -> str:
    """A line with dots per series (name, values, colour); names at the right end, moved apart where they overlap."""
    left, right, top, bottom = 60, 600, 16, 330
    low, high = min(v for _, values, _ in series for v in values), max(v for _, values, _ in series for v in values)
    pad = 0.05 * max(high - low, 1e-6)
    low, high = low - pad, high + pad

    def to_pixel(value: float, lowest: float, highest: float, start: float, end: float) -> float:
        return start + (value - lowest) / max(highest - lowest, 1e-9) * (end - start)

    parts = [svg_open_tag(CHART_WIDTH, bottom + 48, title)]
    for tick in tick_values(low, high):
        y = to_pixel(tick, low, high, bottom, top)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for value in x:
        at = to_pixel(value, min(x), max(x), left, right)
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    middle = (left + right) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{bottom + 38}" text-anchor="middle">{escape(xlabel)}</text>')
    parts.append(f'<text class="tick" x="{left}" y="{top - 4}">{escape(ylabel)}</text>')
    ordered = sorted(series, key=lambda row: row[1][-1])
    labels = separate_labels([to_pixel(values[-1], low, high, bottom, top) for _, values, _ in ordered], top)
    for i, (name, values, colour) in enumerate(ordered):
        spots = [
            (to_pixel(a, min(x), max(x), left, right), to_pixel(v, low, high, bottom, top))
            for a, v in zip(x, values, strict=True)
        ]
        dash = "" if i % 2 == 0 else ' stroke-dasharray="7 4"'
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in spots)
        parts.append(f"<g><title>{escape(name)}: {escape(', '.join(f'{v:.1f}' for v in values))}</title>")
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.2"{dash}/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in spots]
        label_y = labels[i]
        parts.append(
            f'<line x1="{right + 5}" x2="{right + 20}" y1="{spots[-1][1]:.1f}" y2="{label_y:.1f}" stroke="{colour}"/>'
        )
        parts.append(f'<text x="{right + 24}" y="{label_y + 4:.1f}">{escape(truncate_label(name))}</text></g>')
    return "".join(parts) + "</svg>"


# The first are colour-blind-safe (Tol's bright and muted); those after `triplet` are as far from all others as possible
# in OKLab. All are readable on light and dark.
_LOSS_COLOURS = {
    "softmax": "#4477AA",
    "modified_softmax": "#66CCEE",
    "normface": "#88CCEE",
    "m_softmax": "#CCBB44",
    "l_softmax": "#999933",
    "a_softmax": "#DDAA77",
    "cosface": "#44AA99",
    "arcface": "#228833",
    "combined": "#117733",
    "adacos": "#AA3377",
    "adaacos": "#CC6699",
    "arcgrad": "#EE6677",
    "center": "#7766CC",
    "contrastive": "#DDCC77",
    "triplet": "#882255",
    "aam_softmax": "#925400",
    "adaface": "#00A0E4",
    "circle": "#D15400",
    "curricularface": "#735684",
    "elasticface": "#2B59C8",
    "ldam": "#B369DD",
    "lm_softmax": "#36AA3D",
    "logit_adjusted": "#9E7848",
    "magface": "#00706F",
    "mv_softmax": "#9A5D65",
    "p2sgrad": "#008F8C",
    "proxy_nca": "#9072A3",
    "proxy_nca_pp": "#7480FA",
    "soft_triple": "#0081E7",
    "sphereface2": "#7A7600",
    "sphereface_r": "#D54563",
    "subcenter_arcface": "#A243AB",
    "uniface": "#BB7C77",
}
NAMED_LOSS_COLOURS = tuple(_LOSS_COLOURS.values())
"""Colours that losses have by their names."""
_FALLBACK_COLOURS = ("#888888", "#777744", "#667788", "#998877", "#556655", "#887799")


def loss_colour(loss: str) -> str:
    """The colour of a loss by its name; a sum takes the colour of its last part, to differ from the first alone.

    >>> loss_colour("arcgrad(s=5)") == loss_colour("arcgrad(s=30)")
    True
    >>> loss_colour("softmax") == loss_colour("softmax + 0.02*center")
    False
    """
    return assigned_loss_colour(loss) or _FALLBACK_COLOURS[sum(map(ord, loss)) % len(_FALLBACK_COLOURS)]


def assigned_loss_colour(loss: str) -> str | None:
    """The colour that is fixed for a loss; None for a loss without one."""
    for name in reversed(re.findall(r"[a-z_0-9]*[a-z][a-z_0-9]*(?=\(|\s|$)", loss)):
        if name in _LOSS_COLOURS:
            return _LOSS_COLOURS[name]
    return None


_DARK_MODE_CSS = (
    "@media (prefers-color-scheme: dark) { "
    'path[style*="fill: #ffffff"] { fill: #15181d !important } '
    '[id^="text_"] { fill: #e8eaee } '
    '[style*="stroke: #000000"] { stroke: #a3acb9 !important } }'
)


def add_dark_mode(path: Path) -> None:
    """Add dark-mode rules to an SVG file written by matplotlib."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("</style>", f"{_DARK_MODE_CSS}</style>", 1), encoding="utf-8")


_STRIP_LEFT, _STRIP_RIGHT, _STRIP_TOP, _STRIP_ROW_HEIGHT = 270, 720, 12, 28


def draw_strip_plot(
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    paper_values: Sequence[float | None],
    colours: Sequence[str],
    unit: str,
    title: str,
) -> str:
    """A row per method: a dot per seed, a bar at their mean, a hollow diamond at the paper's value.

    Every row of `values` has at least one value.
    """
    low, high = axis_limits([v for row in values for v in row] + [v for v in paper_values if v is not None], 0.06)
    base = _STRIP_TOP + _STRIP_ROW_HEIGHT * len(names)
    has_paper_values = any(value is not None for value in paper_values)
    parts = [svg_open_tag(CHART_WIDTH, base + 46 + 18 * has_paper_values, title)]

    def x(value: float) -> float:
        return _STRIP_LEFT + (value - low) / (high - low) * (_STRIP_RIGHT - _STRIP_LEFT)

    for tick in tick_values(low, high):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_STRIP_TOP}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{base + 18}" text-anchor="middle">{tick:g}</text>')
    middle = (_STRIP_LEFT + _STRIP_RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{base + 37}" text-anchor="middle">{escape(unit)}</text>')
    for i, name in enumerate(names):
        y, mean = _STRIP_TOP + _STRIP_ROW_HEIGHT * (i + 0.5), sum(values[i]) / len(values[i])
        tip = f"{name}: {', '.join(f'{v:.2f}' for v in values[i])}" + (
            f"; paper {paper_values[i]:.2f}" if paper_values[i] else ""
        )
        parts.append(f'<g fill="{colours[i]}" stroke="{colours[i]}"><title>{escape(tip)}</title>')
        parts += [f'<circle cx="{x(v):.1f}" cy="{y}" r="5" stroke="none" opacity=".6"/>' for v in values[i]]
        parts.append(f'<line x1="{x(mean):.1f}" x2="{x(mean):.1f}" y1="{y - 9}" y2="{y + 9}" stroke-width="3"/>')
        other = paper_values[i]
        if other is not None:
            parts.append(_diamond(x(other), y))
        parts.append(
            f'</g><text x="{_STRIP_LEFT - 12}" y="{y + 4.5}" text-anchor="end">{escape(truncate_label(name))}</text>'
        )
        parts.append(f'<text class="tick" x="{_STRIP_RIGHT + 12}" y="{y + 4.5}">{mean:.2f}</text>')
    if has_paper_values:
        parts.append(f'<g stroke="currentColor">{_diamond(_STRIP_LEFT + 4, base + 54)}</g>')
        parts.append(f'<text class="tick" x="{_STRIP_LEFT + 18}" y="{base + 58}">the paper</text>')
    return "".join(parts) + "</svg>"


def _diamond(x: float, y: float) -> str:
    points = f"{x:.1f},{y - 7:.1f} {x + 7:.1f},{y:.1f} {x:.1f},{y + 7:.1f} {x - 7:.1f},{y:.1f}"
    return f'<polygon points="{points}" fill="none" stroke-width="2"/>'
