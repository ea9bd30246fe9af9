"""Small figures as SVG text: intervals, groups, bars. Colours of text and lines follow the page, light or dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_ROW = 30
WIDTH = 860


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers between `low` and `high`.

    >>> ticks(92.3, 97.8)
    [93.0, 94.0, 95.0, 96.0, 97.0]
    """
    raw = max(high - low, 1e-9) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def intervals(
    names: Sequence[str],
    means: Sequence[float],
    spans: Sequence[tuple[float, float]],
    colours: Sequence[str],
    unit: str,
    title: str,
    faint: Sequence[Sequence[float]] = (),
) -> str:
    """A dot and an interval per name, one under the other; `faint` are single values behind them."""
    left, right, top, bottom = 250, 700, 12, 44
    seen = [v for span in spans for v in span] + [v for row in faint for v in row]
    low, high = min(seen), max(seen)
    pad = 0.04 * max(high - low, 1e-6)
    low, high = low - pad, high + pad
    height = top + _ROW * len(names) + bottom

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    parts = [_open(WIDTH, height, title)]
    base = top + _ROW * len(names)
    for tick in ticks(low, high):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{base + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(
        f'<text class="tick" x="{(left + right) / 2}" y="{base + 37}" text-anchor="middle">{escape(unit)}</text>'
    )
    for i, name in enumerate(names):
        y = top + _ROW * i + _ROW / 2
        (a, b), mean = spans[i], means[i]
        tip = f"{name}: {mean:.2f}, 95 % interval {a:.2f} to {b:.2f}"
        parts.append(f'<g fill="{colours[i]}" stroke="{colours[i]}"><title>{escape(tip)}</title>')
        if i < len(faint):
            dots = (
                f'<circle class="faint" cx="{x(v):.1f}" cy="{y + _jitter(k)}" r="2"/>' for k, v in enumerate(faint[i])
            )
            parts += dots
        parts.append(f'<line x1="{x(a):.1f}" x2="{x(b):.1f}" y1="{y}" y2="{y}" stroke-width="3"/>')
        parts.append(f'<circle cx="{x(mean):.1f}" cy="{y}" r="5.5"/></g>')
        parts.append(f'<text x="{left - 12}" y="{y + 4.5}" text-anchor="end">{escape(_short(name))}</text>')
        parts.append(f'<text class="tick" x="{right + 10}" y="{y + 4.5}">{mean:.2f}</text>')
    return "".join(parts) + "</svg>"


def _jitter(k: int) -> float:
    return ((k * 7) % 11 - 5) * 1.1


def groups(
    names: Sequence[str],
    places: Sequence[float],
    together: Sequence[Sequence[int]],
    axis: str,
    title: str,
    ruler: tuple[float, str] | None = None,
    best_left: bool = True,
) -> str:
    """Methods on an axis, and a bar under those that no test tells apart (Demšar's diagram)."""
    order = sorted(range(len(names)), key=lambda i: places[i] if best_left else -places[i])
    low, high = min(places), max(places)
    if ruler:
        high = max(high, low + ruler[0])
    pad = 0.06 * max(high - low, 1e-6)
    low, high = low - pad, high + pad
    left, right, line = 300, 540, 62

    def x(value: float) -> float:
        share = (value - low) / (high - low)
        return left + (share if best_left else 1 - share) * (right - left)

    half = math.ceil(len(order) / 2)
    bars = line + 14
    first_row = bars + 10 * len(together) + 22
    height = first_row + 24 * half + 8
    parts = [_open(WIDTH, height, title)]
    parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{line}" y2="{line}"/>')
    for tick in ticks(low, high, 5):
        parts.append(f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{line - 5}" y2="{line}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{line - 10}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text class="tick" x="{left - 12}" y="{line + 4}" text-anchor="end">{escape(axis)}</text>')
    if ruler:
        start = x(low + pad)
        end = x(low + pad + ruler[0])
        parts.append(f'<line class="axis" x1="{start:.1f}" x2="{end:.1f}" y1="16" y2="16" stroke-width="3"/>')
        parts.append(f'<text class="tick" x="{end + 8:.1f}" y="20">{escape(ruler[1])}</text>')
    for level, members in enumerate(together):
        ends = [x(places[i]) for i in members]
        y = bars + 10 * level
        parts.append(f'<line class="bar" x1="{min(ends) - 5:.1f}" x2="{max(ends) + 5:.1f}" y1="{y}" y2="{y}"/>')
    for k, i in enumerate(order):
        on_left = k < half
        row = first_row + 24 * (k if on_left else len(order) - 1 - k)
        edge = left - 20 if on_left else right + 20
        place = x(places[i])
        parts.append(f'<polyline class="lead" points="{place:.1f},{line} {place:.1f},{row} {edge},{row}"/>')
        anchor, at = ("end", edge - 6) if on_left else ("start", edge + 6)
        label = f"{_short(names[i])}  {places[i]:.2f}" if on_left else f"{places[i]:.2f}  {_short(names[i])}"
        parts.append(f'<text x="{at}" y="{row + 4.5}" text-anchor="{anchor}">{escape(label)}</text>')
    return "".join(parts) + "</svg>"


def grouped_bars(
    names: Sequence[str], kinds: Sequence[str], values: Sequence[Sequence[float]], colours: Sequence[str], title: str
) -> str:
    """For every kind a block of bars, one per name; `values` [names][kinds] in radians."""
    left, right, top = 250, 700, 20
    parts_height = 19 * len(names) + 34
    height = top + parts_height * len(kinds) + 8
    largest = max((v for row in values for v in row if math.isfinite(v)), default=1.0) or 1.0
    parts = [_open(WIDTH, height, title)]
    for j, kind in enumerate(kinds):
        y = top + parts_height * j
        parts.append(f'<text class="strong" x="{left}" y="{y}">{escape(kind)}</text>')
        for i, name in enumerate(names):
            value = values[i][j]
            at = y + 10 + 19 * i
            width = 0.0 if not math.isfinite(value) else value / largest * (right - left)
            shown = "–" if not math.isfinite(value) else f"{value:.2f}"
            parts.append(
                f'<text class="tick" x="{left - 12}" y="{at + 11}" text-anchor="end">{escape(_short(name))}</text>'
            )
            parts.append(f'<rect x="{left}" y="{at}" width="{width:.1f}" height="14" rx="2" fill="{colours[i]}"/>')
            parts.append(f'<text class="tick" x="{left + width + 6:.1f}" y="{at + 11}">{shown}</text>')
    return "".join(parts) + "</svg>"


def _open(width: float, height: float, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>'
    )


def _short(name: str, longest: int = 34) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


def lines(
    x: Sequence[float],
    rows: Sequence[tuple[str, Sequence[float], str]],
    across: str,
    up: str,
    title: str,
) -> str:
    """A line with dots per row (name, values, colour), names at the right end, moved apart where they would meet."""
    left, right, top, bottom = 60, 600, 16, 330
    low, high = min(v for _, values, _ in rows for v in values), max(v for _, values, _ in rows for v in values)
    pad = 0.05 * max(high - low, 1e-6)
    low, high = low - pad, high + pad

    def place(value: float, lowest: float, highest: float, start: float, end: float) -> float:
        return start + (value - lowest) / max(highest - lowest, 1e-9) * (end - start)

    parts = [_open(WIDTH, bottom + 48, title)]
    for tick in ticks(low, high):
        y = place(tick, low, high, bottom, top)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for value in x:
        at = place(value, min(x), max(x), left, right)
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    middle = (left + right) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{bottom + 38}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text class="tick" x="{left}" y="{top - 4}">{escape(up)}</text>')
    free = bottom + 8.0
    for i, (name, values, ink) in enumerate(sorted(rows, key=lambda row: row[1][-1])):
        spots = [
            (place(a, min(x), max(x), left, right), place(v, low, high, bottom, top))
            for a, v in zip(x, values, strict=True)
        ]
        dash = "" if i % 2 == 0 else ' stroke-dasharray="7 4"'
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in spots)
        parts.append(f"<g><title>{escape(name)}: {escape(', '.join(f'{v:.1f}' for v in values))}</title>")
        parts.append(f'<polyline points="{points}" fill="none" stroke="{ink}" stroke-width="2.2"{dash}/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{ink}"/>' for a, b in spots]
        free = min(free - 17.0, spots[-1][1])
        parts.append(
            f'<line x1="{right + 5}" x2="{right + 20}" y1="{spots[-1][1]:.1f}" y2="{free:.1f}" stroke="{ink}"/>'
        )
        parts.append(f'<text x="{right + 24}" y="{free + 4:.1f}">{escape(_short(name))}</text></g>')
    return "".join(parts) + "</svg>"
