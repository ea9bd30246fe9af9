"""Eq. 19 against measurement: slopes of the gap over the scale, and a page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...viz.svg import Chart
from .cells import Row

RATIO_RANGE = (0.8, 1.25)
"""Reached over predicted gap within which the prediction counts as met."""

_COLOURS = ("#4477AA", "#228833", "#AA3377", "#CC6633")  # one for each number of classes


class Slope(NamedTuple):
    """How the gap of one set depends on the scale."""

    name: str
    noise: float
    network: str
    classes: int
    slope: float
    """Of log gap over log s; Eq. 19 says −1."""
    low: float
    high: float
    """95 % interval over the seeds (t with two degrees of freedom)."""
    is_falling: bool
    """True if the mean gap falls from each scale to the next."""
    num_met: int
    """Scales at which the prediction is met."""
    num_scales: int


def mean_gap(row: Row) -> float:
    """Mean gap over the seeds."""
    return statistics.fmean(row["gap"])


def slopes(rows: Sequence[Row]) -> list[Slope]:
    """The slope of each group of rows with one set, noise and network."""
    groups: dict[tuple[str, float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["noise"], row["network"]), []).append(row)
    found = []
    for (name, noise, network), members in groups.items():
        group = sorted(members, key=lambda row: row["s"])
        logs = np.log([row["s"] for row in group])
        gaps = np.array([row["gap"] for row in group]).clip(1e-4)
        each = np.polyfit(logs, np.log(gaps), 1)[0] if len(group) > 1 else np.zeros(gaps.shape[1])
        half = 4.303 * float(each.std(ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else math.nan
        means = [mean_gap(row) for row in group]
        ratios = [mean_gap(row) / row["predicted"] for row in group]
        found.append(
            Slope(
                name,
                noise,
                network,
                group[0]["classes"],
                float(each.mean()),
                float(each.mean()) - half,
                float(each.mean()) + half,
                all(a > b for a, b in pairwise(means)),
                sum(RATIO_RANGE[0] <= ratio <= RATIO_RANGE[1] for ratio in ratios),
                len(group),
            )
        )
    return found


HEAD = ("set", "noise", "model", "classes", "slope of log gap over log s", "95 % interval", "falls", "prediction met")


def table_rows(rows: Sequence[Row]) -> list[list[str]]:
    """The cells of the table."""
    return [
        [
            each.name,
            f"{100 * each.noise:g} %",
            each.network,
            str(each.classes),
            f"{each.slope:+.2f}",
            f"{each.low:+.2f} to {each.high:+.2f}",
            "yes" if each.is_falling else "no",
            f"{each.num_met} of {each.num_scales}",
        ]
        for each in slopes(rows)
    ]


def print_slopes(rows: Sequence[Row]) -> None:
    """Print the slope of each set; Eq. 19 says −1."""
    from rich.table import Table

    from ...viz.terminal import console

    grid = Table(title="Mean gap of the training rows against s (Eq. 19: slope −1)", title_justify="left")
    for name in HEAD:
        grid.add_column(name, justify="right")
    for row in table_rows(rows):
        grid.add_row(*row)
    console(width=150).print(grid)


def draw_gaps(rows: Sequence[Row], noise: float, title: str) -> Chart:
    """Gap in degrees against s for the Gaussian classes with the network; dashed what Eq. 19 predicts."""
    from ...viz.charts import Line, draw_log_lines

    lines = []
    names = dict.fromkeys(row["set"] for row in rows if row["set"].startswith("gaussian"))
    for name, colour in zip(names, _COLOURS, strict=False):
        own = [row for row in rows if (row["set"], row["noise"], row["network"]) == (name, noise, "network")]
        own.sort(key=lambda row: row["s"])
        classes = own[0]["classes"]
        reached = [(row["s"], max(0.1, math.degrees(mean_gap(row)))) for row in own]
        lines.append(Line(f"C = {classes}, reached", reached, colour))
        predicted = [(row["s"], math.degrees(row["predicted"])) for row in own]
        lines.append(Line(f"C = {classes}, Eq. 19", predicted, colour, dashed=True))
    return draw_log_lines(lines, "scale s", "mean angular gap in degrees", title)


def render_page(rows: Sequence[Row], command: str) -> str:
    """The page of the recipe."""
    from ...viz import page

    body = []
    for noise in sorted({row["noise"] for row in rows}):
        title = "Gap reached and predicted, " + (f"{100 * noise:g} % wrong labels" if noise else "no wrong labels")
        if any(row["set"].startswith("gaussian") and row["noise"] == noise for row in rows):
            body += [page.heading(title), page.figure(draw_gaps(rows, noise, title))]
    body += [page.table(HEAD, [[(cell, "") for cell in row] for row in table_rows(rows)]), page.code(command)]
    sub = "Mean gap of the training rows after training at each scale, three seeds"
    return page.html_page("Eq. 19 of the ArcGrad paper, measured", sub, body)
