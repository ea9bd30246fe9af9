"""Plateaus of the scale experiment: which settings of a loss are within a point of its best, as a table and a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...viz.svg import Chart
from .cells import Row

TOLERANCE = 1.0
"""Points below a loss's best average that still count as on the plateau."""


class Plateau(NamedTuple):
    """The plateau of one loss."""

    loss: str
    best: str
    best_accuracy: float
    num_settings: int
    num_within: int
    low_scale: float
    high_scale: float
    """Smallest and largest scale with a setting on the plateau."""

    @property
    def share(self) -> float:
        """Share of the settings on the plateau."""
        return self.num_within / self.num_settings


def average_by_setting(rows: Sequence[Row]) -> dict[tuple[str, float, float | None], float]:
    """Mean accuracy over the sets; settings that lack a set are left out."""
    sets = {row["set"] for row in rows}
    grouped: dict[tuple[str, float, float | None], list[float]] = {}
    for row in rows:
        grouped.setdefault((row["loss"], row["s"], row["m"]), []).append(row["accuracy"])
    return {key: sum(values) / len(values) for key, values in grouped.items() if len(values) == len(sets)}


def plateaus(rows: Sequence[Row]) -> list[Plateau]:
    """The plateau of each loss.

    >>> values = {1: 50.0, 5: 80.0, 9: 79.5}
    >>> cells = [{"set": "a", "loss": "arcgrad", "s": s, "m": None, "accuracy": values[s]} for s in values]
    >>> plateaus(cells)[0].num_within, plateaus(cells)[0].low_scale
    (2, 5)
    """
    averages = average_by_setting(rows)
    found = []
    for loss in dict.fromkeys(key[0] for key in averages):
        own = {key: value for key, value in averages.items() if key[0] == loss}
        best = max(own, key=lambda key: own[key])
        within = [key for key, value in own.items() if value >= own[best] - TOLERANCE]
        scales = [key[1] for key in within]
        name = f"s={best[1]:g}" + ("" if best[2] is None else f", m={best[2]:g}")
        found.append(Plateau(loss, name, own[best], len(own), len(within), min(scales), max(scales)))
    return found


def best_margin_by_scale(rows: Sequence[Row]) -> dict[str, list[tuple[float, float, float]]]:
    """For each loss (scale, worst, best average over its margins), by scale."""
    averages = average_by_setting(rows)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for loss in dict.fromkeys(key[0] for key in averages):
        scales = sorted({key[1] for key in averages if key[0] == loss})
        for s in scales:
            values = [value for key, value in averages.items() if key[:2] == (loss, s)]
            found.setdefault(loss, []).append((s, min(values), max(values)))
    return found


def friedman_over_scales(rows: Sequence[Row], loss: str = "arcgrad") -> float | None:
    """p of Friedman's test that the scales of a loss differ over the sets; None with fewer than three sets."""
    from ...stats import friedman

    own = [row for row in rows if row["loss"] == loss]
    sets = sorted({row["set"] for row in own})
    scales = sorted({row["s"] for row in own})
    scores = {(row["set"], row["s"]): row["accuracy"] for row in own}
    if len(sets) < 3 or len(scores) != len(sets) * len(scales):
        return None
    return float(friedman([[scores[name, s] for s in scales] for name in sets]).p)


def draw_plateaus(rows: Sequence[Row], title: str) -> Chart:
    """Average accuracy against s, a line per loss; of CosFace and ArcFace the best and (dashed) the worst margin."""
    from ...viz.charts import Line, draw_log_lines
    from ...viz.colours import loss_colours

    by_scale = best_margin_by_scale(rows)
    colours = loss_colours(list(by_scale))
    lines = []
    for loss, points in by_scale.items():
        has_margin = any(low != high for _, low, high in points)
        best_name = f"{loss}, best m" if has_margin else loss
        lines.append(Line(best_name, [(s, high) for s, _, high in points], colours[loss]))
        if has_margin:
            lines.append(Line(f"{loss}, worst m", [(s, low) for s, low, _ in points], colours[loss], dashed=True))
    return draw_log_lines(lines, "scale s", "accuracy in percent", title, log_y=False, from_zero=False)


def print_plateaus(rows: Sequence[Row]) -> None:
    """Print the plateau of each loss."""
    from rich.table import Table

    from ...viz.terminal import console

    grid = Table(title=f"Settings within {TOLERANCE:g} point of a loss's best", title_justify="left")
    for name in ("loss", "best setting", "accuracy", "within", "scales"):
        grid.add_column(name, justify="left" if name in ("loss", "best setting") else "right")
    for row in table_rows(rows):
        grid.add_row(*row)
    console().print(grid)
    p = friedman_over_scales(rows)
    if p is not None:
        print(f"Friedman over the scales of arcgrad: p = {p:.3g}")


def table_rows(rows: Sequence[Row]) -> list[list[str]]:
    """The cells of the table."""
    return [
        [
            each.loss,
            each.best,
            f"{each.best_accuracy:.2f}",
            f"{each.num_within} of {each.num_settings}",
            f"{each.low_scale:g} to {each.high_scale:g}",
        ]
        for each in plateaus(rows)
    ]


def render_page(rows: Sequence[Row], command: str) -> str:
    """The page of the recipe."""
    from ...viz import page

    sets = len({row["set"] for row in rows})
    title = "Accuracy against the scale"
    sub = f"Mean of {sets} table{'' if sets == 1 else 's'}; the plateau is within {TOLERANCE:g} point of a loss's best"
    head = ("loss", "best setting", "accuracy", "within", "scales")
    body = [
        page.figure(draw_plateaus(rows, title)),
        page.table(head, [[(cell, "") for cell in row] for row in table_rows(rows)]),
        page.code(command),
    ]
    return page.html_page(title, sub, body)
