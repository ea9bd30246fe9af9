"""The charts of static pages, drawn by matplotlib: intervals, dots, bars, strips, lines, histograms and matrices.

Every function returns a `Chart`: its figure holds the data points, `to_svg` gives the text for a page. Drawn by hand
elsewhere are the critical-difference diagram, embeddings on a sphere or circle, and what moves with a slider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .svg import (
    CHART_WIDTH,
    INK,
    SOFT,
    Chart,
    axis_limits,
    chart_style,
    truncate_label,
    truncate_label_middle,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from numpy.typing import NDArray

    from ..metrics.classification import Reliability

SMALL_WIDTH = 560  # of charts that stand side by side
_DASHES = (0, (3, 1.7))


# Rows: a name at the left, marks on one axis, a number at the right.


@chart_style()
def draw_intervals(
    names: Sequence[str],
    means: Sequence[float],
    spans: Sequence[tuple[float, float]],
    colours: Sequence[str],
    unit: str,
    title: str,
    num_references: int = 0,
    decimals: int = 2,
    higher_is_better: bool = True,
) -> Chart:
    """A dot and an interval per name, one under the other: a line through its low end, its mean and its high end.

    The last `num_references` names are separated by a line. A reference that is so much worse than the others that it
    would squeeze them together is an arrow at the left end, or at the right one where less is better. A mean that is
    not finite is a dash.
    """
    first = len(names) - num_references
    low, high = _interval_axis_limits(spans[:first], spans[first:], decimals, higher_is_better)
    chart = Chart(CHART_WIDTH, 56 + 30 * len(names), title)
    axes = add_row_axes(chart, names, (250, 12, 700), 30)
    axes.set(xlim=(low, high), xlabel=unit)
    if 0 < num_references < len(names):
        axes.plot([(20 - 250) / 450, 1], [first - 0.5] * 2, color=INK, lw=0.8, transform=axes.get_yaxis_transform())
    for i, (name, mean, (a, b), colour) in enumerate(zip(names, means, spans, colours, strict=True)):
        if not math.isfinite(a + mean + b):
            _write_at_right(axes, i, "–")
            continue
        if low <= mean <= high:
            points = np.clip([a, mean, b], low, high)
            (line,) = axes.plot(points, [i] * 3, "-o", color=colour, markevery=[1], lw=3, ms=11)
        else:
            (line,) = axes.plot([low if mean < low else high], [i], "<" if mean < low else ">", color=colour, ms=10)
        chart.add_tip(line, f"{name}: {mean:.{decimals}f}, 95 % interval {a:.{decimals}f} to {b:.{decimals}f}")
        _write_at_right(axes, i, f"{mean:.{decimals}f}")
    return chart


def _interval_axis_limits(
    spans: Sequence[tuple[float, float]],
    references: Sequence[tuple[float, float]],
    decimals: int,
    higher_is_better: bool,
) -> tuple[float, float]:
    """Ends of an axis: all of the main intervals, and references that are better than these or no further off than two
    times their range (that of 1,000 units in the last decimal at the least)."""
    main = [v for span in spans or references for v in span if math.isfinite(v)] or [0.0]
    reach = 2 * max(max(main) - min(main), 500 * 10.0**-decimals)
    near = [
        span
        for span in references
        if math.isfinite(sum(span))
        and (span[0] >= min(main) - reach if higher_is_better else span[1] <= max(main) + reach)
    ]
    return axis_limits([*main, *(v for span in near for v in span)], 0.04, decimals)


@chart_style()
def draw_dot_plot(
    rows: Sequence[str],
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    colours: Sequence[str],
    unit: str = "accuracy in percent",
    decimals: int = 2,
) -> Chart:
    """For every row (a set) a dot per name (a method) on one axis, with a legend.

    `values` [rows][names]; those that are not finite are left out.
    """
    top = 16 + 20 * math.ceil(len(names) / 3)
    chart = Chart(CHART_WIDTH, top + 24 * len(rows) + 44, f"Every method on every set, {unit}")
    axes = add_row_axes(chart, rows, (250, top, 820), 24)
    all_values, pad = [v for row in values for v in row if math.isfinite(v)] or [0.0], 100 * 10.0**-decimals
    axes.set(xlim=(min(all_values) - pad, max(all_values) + pad), xlabel=unit)
    lines = []
    for k, name in enumerate(names):
        known = [i for i, row in enumerate(values) if math.isfinite(row[k])]
        marker, size = (("o", 10), ("s", 8.4), ("^", 10))[k % 3]  # two of one colour can be distinguished as well
        (line,) = axes.plot([values[i][k] for i in known], known, marker, color=colours[k], ms=size, alpha=0.85)
        chart.add_tip(line, *(f"{rows[i]}, {name}: {values[i][k]:.{decimals}f}" for i in known))
        lines.append(line)
    add_legend(chart, lines, [truncate_label(name, 30) for name in names], (60, 4), 3)
    return chart


@chart_style()
def draw_strip_plot(
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    paper_values: Sequence[float | None],
    colours: Sequence[str],
    unit: str,
    title: str,
) -> Chart:
    """A row per method: a dot per seed, a bar at their mean, a hollow diamond at the paper's value.

    Every row of `values` has at least one value.
    """
    has_paper_values = any(value is not None for value in paper_values)
    base = 12 + 28 * len(names)
    chart = Chart(CHART_WIDTH, base + 46 + 20 * has_paper_values, title)
    axes = add_row_axes(chart, names, (270, 12, 720), 28)
    limits = axis_limits([v for row in values for v in row] + [v for v in paper_values if v is not None], 0.06)
    axes.set(xlim=limits, xlabel=unit)
    for i, (name, row, paper, colour) in enumerate(zip(names, values, paper_values, colours, strict=True)):
        mean = sum(row) / len(row)
        tip = f"{name}: {', '.join(f'{v:.2f}' for v in row)}" + ("" if paper is None else f"; paper {paper:.2f}")
        marks = axes.plot(row, [i] * len(row), "o", color=colour, ms=10, alpha=0.6)
        marks += axes.plot([mean], [i], "|", color=colour, ms=18, mew=3)
        marks += [] if paper is None else axes.plot([paper], [i], "D", mec=colour, **_PAPER_MARK)
        for mark in marks:
            chart.add_tip(mark, tip)
        _write_at_right(axes, i, f"{mean:.2f}")
    if has_paper_values:
        from matplotlib.lines import Line2D

        add_legend(chart, [Line2D([], [], ls="", marker="D", mec=INK, **_PAPER_MARK)], ["the paper"], (264, base + 44))
    return chart


_PAPER_MARK: dict[str, Any] = {"mfc": "none", "mew": 2, "ms": 10}


@chart_style()
def draw_grouped_bars(
    names: Sequence[str], kinds: Sequence[str], values: Sequence[Sequence[float]], colours: Sequence[str], title: str
) -> Chart:
    """For every kind axes with a bar per name; `values` [names][kinds]; what is not finite is a dash."""
    step = 19 * len(names) + 34
    chart = Chart(CHART_WIDTH, 28 + step * len(kinds), title)
    largest = max((v for row in values for v in row if math.isfinite(v)), default=1.0) or 1.0
    for j, kind in enumerate(kinds):
        numbers = [row[j] for row in values]
        axes = add_row_axes(chart, names, (250, 30 + step * j, 700), 19)
        axes.set(xlim=(0, largest), xticks=[])
        axes.set_title(kind, color=INK, weight="bold", size=13)
        axes.tick_params(axis="y", labelsize=12, labelcolor=SOFT)
        bars = axes.barh(range(len(names)), [v if math.isfinite(v) else 0 for v in numbers], 0.74, color=colours)
        labels = [f"{v:.2f}" if math.isfinite(v) else "–" for v in numbers]
        axes.bar_label(bars, labels, padding=6, color=SOFT, size=12)
    return chart


def add_row_axes(chart: Chart, names: Sequence[str], edges: tuple[float, float, float], row_height: float) -> Axes:
    """Axes with a row per name from top to bottom; `edges` are left, top and right."""
    left, top, right = edges
    axes = chart.add_axes(left, top, right, top + row_height * len(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), labels=[truncate_label(name) for name in names])
    axes.tick_params(axis="y", labelsize=13, labelcolor=INK, pad=12)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter("{x:g}")
    return axes


def _write_at_right(axes: Axes, row: int, text: str) -> None:
    axes.annotate(
        text,
        (1, row),
        (10, 0),
        axes.get_yaxis_transform(),
        "offset points",
        annotation_clip=False,
        color=SOFT,
        size=12,
        va="center_baseline",
    )


def add_legend(
    chart: Chart,
    marks: Sequence[Any],
    labels: Sequence[str],
    place: tuple[float, float],
    columns: int = 1,
    markerscale: float = 1,
) -> None:
    """A legend that begins so many pixels from the left and from the top."""
    # matplotlib leaves out names that begin with _.
    shown = [f"\u200c{label}" if label.startswith("_") else label for label in labels]
    corner = (place[0] / chart.width, 1 - place[1] / chart.height)
    chart.figure.legend(
        marks,
        shown,
        loc="upper left",
        bbox_to_anchor=corner,
        ncols=columns,
        markerscale=markerscale,
        labelcolor=SOFT,
        fontsize=12,
        borderpad=0,
        labelspacing=0.45,
        columnspacing=2,
        handletextpad=0.6,
    )


# Lines, with their names at their right ends.


class Line(NamedTuple):
    """A named line."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


@chart_style()
def draw_line_chart(lines: Sequence[Line], xlabel: str, ylabel: str, title: str) -> Chart:
    """Lines with dots over the values of x that they share; every other one is dashed."""
    chart = Chart(CHART_WIDTH, 378, title)
    axes = chart.add_axes(60, 26, 600, 330)
    values = [y for line in lines for _, y in line.points]
    pad = 0.05 * max(max(values) - min(values), 1e-6)
    axes.set(ylim=(min(values) - pad, max(values) + pad), xlabel=xlabel, title=ylabel)
    axes.margins(x=0.0)
    axes.set_xticks([x for x, _ in lines[0].points])
    _format_plain(axes)
    axes.grid(visible=False, axis="x")
    for i, line in enumerate(sorted(lines, key=lambda line: line.points[-1][1])):
        tip = f"{line.name}: {', '.join(f'{y:.1f}' for _, y in line.points)}"
        _plot_line(chart, axes, line._replace(dashed=i % 2 == 1), tip, marker="o")
    _name_line_ends(chart, axes, [(line, truncate_label(line.name)) for line in lines])
    return chart


_MAX_LINE_MARKERS = 30  # points of a line that are shown as such; more of them are a curve


@chart_style()
def draw_log_lines(
    lines: Sequence[Line], xlabel: str, ylabel: str, title: str, log_y: bool = True, from_zero: bool = True
) -> Chart:
    """Lines over a logarithmic x axis; a linear y axis begins at 0, or with `from_zero=False` below the least value."""
    chart = Chart(CHART_WIDTH, 390, title)
    axes = chart.add_axes(70, 30, 590, 340)
    axes.set(xscale="log", yscale="log" if log_y else "linear", xlabel=xlabel, title=ylabel)
    for line in lines:
        tip = f"{line.name}: " + ", ".join(f"{x:g} → {y:.3g}" for x, y in line.points)
        _plot_line(chart, axes, line, tip, marker="o" if len(line.points) <= _MAX_LINE_MARKERS else None)
    axes.margins(0.0)
    axes.minorticks_off()
    if not log_y:
        values = [y for line in lines for _, y in line.points]
        pad = 0.06 * (max(values) - min(values) or 1.0)
        axes.set_ylim(*((0.0, 1.06 * max(values)) if from_zero else (min(values) - pad, max(values) + pad)))
    for axis, is_log in ((axes.xaxis, True), (axes.yaxis, log_y)):
        axis.set_major_formatter((lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}") if is_log else "{x:g}")
    _name_line_ends(chart, axes, [(line, truncate_label(line.name, 32)) for line in lines])
    return chart


@chart_style()
def draw_epoch_curves(curves: Sequence[Line], unit: str, title: str) -> Chart:
    """Curves over the epochs, each as long as its run; a small chart. The name is empty where there is only one."""
    chart = Chart(SMALL_WIDTH, 300, title)
    right = SMALL_WIDTH - min(200, 96 + 7 * max(len(curve.name) for curve in curves))
    axes = chart.add_axes(56, 26, right, 252)
    epochs, values = zip(*(point for curve in curves for point in curve.points), strict=True)
    low, high = min(values), max(values)  # of any size: a learning rate is as much as a percentage
    pad = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    axes.set(xlim=(min(epochs), max(min(epochs) + 1, *epochs)), ylim=(low - pad, high + pad))
    axes.set(xlabel="epoch", title=unit)
    axes.locator_params(axis="x", integer=True)
    axes.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    _format_plain(axes)
    axes.grid(visible=False, axis="x")
    labels = []
    for curve in curves:
        end = f"{curve.points[-1][1]:.4g}"
        tip = f"{curve.name}: {end} at the end".removeprefix(": ")
        _plot_line(chart, axes, curve, tip, marker="o" if len(curve.points) == 1 else None)
        labels.append((curve, f"{truncate_label_middle(curve.name, 17)} {end}".strip()))
    _name_line_ends(chart, axes, labels)
    return chart


def _plot_line(chart: Chart, axes: Axes, line: Line, tip: str, marker: str | None) -> Line2D:
    x, y = zip(*line.points, strict=True)
    style: Any = _DASHES if line.dashed else "-"
    (drawn,) = axes.plot(x, y, color=line.colour, lw=2.2, ls=style, marker=marker, ms=7)
    chart.add_tip(drawn, tip)
    return drawn


def _format_plain(axes: Axes) -> None:
    """Numbers as they are, without an offset or a common power of ten."""
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")


def _name_line_ends(chart: Chart, axes: Axes, labels: Sequence[tuple[Line, str]]) -> None:
    """Labels right of the axes, each joined to the end of its line; moved apart where they would overlap."""
    axes.autoscale_view()  # places are known once the limits are
    right, top = axes.bbox.x1, axes.bbox.y1
    ordered = sorted(labels, key=lambda row: row[0].points[-1][1])
    ends = [axes.transData.transform(line.points[-1]) for line, _ in ordered]
    heights = separate_labels([chart.height - float(y) for _, y in ends], chart.height - float(top) + 4)
    for (line, text), (x, y), height in zip(ordered, ends, heights, strict=True):
        up = chart.height - height
        axes.plot([x + 4, right + 19], [y, up], color=line.colour, lw=1, transform=None, scalex=False, scaley=False)
        axes.text(right + 24, up, text, transform=None, va="center_baseline")


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


# Calibration and embeddings.


class ReliabilityCurve(NamedTuple):
    """A line of the reliability diagram."""

    name: str
    reliability: Reliability
    colour: str
    is_dashed: bool = False


_MIN_ROWS, _MIN_SHARE = 10, 0.005  # of a bin: the accuracy of fewer rows says little and makes lines jump


@chart_style()
def draw_reliability_diagram(curves: Sequence[ReliabilityCurve], title: str) -> Chart:
    """Accuracy over confidence in percent, a dot per bin with at least 10 rows and 0.5 % of all, larger where there are
    more.

    The diagonal is perfect calibration. The legend has each curve's calibration error.
    """
    chart = Chart(440, 428 + 22 * len(curves), title)
    axes = chart.add_axes(56, 12, 416, 372)
    axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="confidence (top probability, %)", ylabel="accuracy (%)")
    _format_plain(axes)
    axes.plot([0, 100], [0, 100], color=INK, lw=1, ls=(0, (2, 4)), alpha=0.7)
    lines = []
    for name, bins, colour, is_dashed in curves:
        total = max(1, sum(bins.counts))
        kept = [
            (100 * confidence, 100 * accuracy, count)
            for count, confidence, accuracy in zip(bins.counts, bins.confidence, bins.accuracy, strict=True)
            if count >= max(_MIN_ROWS, _MIN_SHARE * total)
        ]
        style: Any = _DASHES if is_dashed else "-"
        lines += axes.plot([x for x, _, _ in kept], [y for _, y, _ in kept], color=colour, lw=2, ls=style)
        for x, y, count in kept:
            (dot,) = axes.plot([x], [y], "o", color=colour, alpha=0.8, ms=5 + 9 * (count / total) ** 0.5)
            chart.add_tip(dot, f"{name}: {count} rows, confidence {x:.1f} %, accuracy {y:.1f} %")
    labels = [f"{truncate_label(curve.name, 40)}: ECE {curve.reliability.ece:.3f}" for curve in curves]
    add_legend(chart, lines, labels, (8, 424))
    return chart


@chart_style()
def draw_embedding_scatter(
    points: NDArray[np.float64], y: NDArray[np.int64], names: Sequence[str], colours: Sequence[str], title: str
) -> Chart:
    """Points [N, 2] in the colours of their classes, which repeat, both axes to the same scale."""
    chart = Chart(620, 420, title)
    axes = chart.add_axes(16, 16, 404, 404)
    axes.set(xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="datalim")
    marks = []
    for k in range(len(names)):
        place, colour = points[y == k], colours[k % len(colours)]
        marks += axes.plot(place[:, 0], place[:, 1], "o", color=colour, ms=4.4, alpha=0.65)
    labels = [truncate_label(name, 20) for name in names[:_MAX_LEGEND_NAMES]]
    add_legend(chart, marks[:_MAX_LEGEND_NAMES], labels, (424, 20), markerscale=2)
    if len(names) > _MAX_LEGEND_NAMES:
        more = f"and {len(names) - _MAX_LEGEND_NAMES} more, colours repeat"
        axes.text(424, 158, more, transform=None, color=SOFT, size=12)
    return chart


_MAX_LEGEND_NAMES = 12
