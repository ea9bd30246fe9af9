"""Differences between self-chosen scales and the best fixed one, with their tests, as a table and a page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ...stats import corrected_t_test, holm, signed_rank_test
from ...viz.svg import Chart
from .cells import Row

FIXED, DEFAULT = "fixed, chosen", "arcgrad(s=10)"
CANDIDATES = ("eq19", "max_gradient", "learnt", "decay")
REFERENCES = {DEFAULT: DEFAULT, "adacos": "adacos(floor=2)", "adaacos": "adaacos(floor=2)"}
METHODS = (FIXED, *CANDIDATES, *REFERENCES)

ALPHA = 0.05
MIN_INTERVAL = -0.5
"""Points below which no end of a candidate's interval may lie."""


class Difference(NamedTuple):
    """A method minus the chosen fixed scale, over the sets."""

    method: str
    mean: float
    low: float
    high: float
    """Mean over the sets and its 95 % interval (t)."""
    p: float
    """Wilcoxon's signed-rank test over the sets."""
    worse_on: tuple[str, ...]
    """Sets on which it is significantly worse: corrected t-test over the folds, Holm over the sets; with a single fold
    of many rows, a difference beyond 1.96 standard errors of two independent shares."""
    worst: tuple[str, float]
    """Set with the largest loss, and that difference."""

    @property
    def is_as_good(self) -> bool:
        """True if the method could replace the choice of a scale."""
        return not self.worse_on and self.low > MIN_INTERVAL


def by_set(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Set → method → cell, for sets with all methods."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row["set"], {})[row["method"]] = row
    return {name: methods for name, methods in found.items() if len(methods) == len(METHODS)}


def differences(rows: Sequence[Row]) -> list[Difference]:
    """Every method against the chosen fixed scale."""
    from scipy.stats import t

    sets = by_set(rows)
    found = []
    for method in METHODS:
        if method == FIXED or len(sets) < 2:
            continue
        means, tested, p_values = {}, [], []
        large_worse = []
        for name, methods in sets.items():
            ours, fixed = methods[method]["folds"], methods[FIXED]["folds"]
            means[name] = statistics.fmean(ours) - statistics.fmean(fixed)
            if len(ours) > 1:
                result = corrected_t_test(ours, fixed, methods[method]["test_share"])
                tested.append(name)
                p_values.append(result.p)
            elif means[name] < -1.96 * _standard_error(fixed[0], methods[FIXED]["test_rows"]):
                large_worse.append(name)
        adjusted = holm(p_values).tolist() if p_values else []
        worse = [n for n, p in zip(tested, adjusted, strict=True) if p <= ALPHA and means[n] < 0]
        values = list(means.values())
        middle = statistics.fmean(values)
        half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
        signed = signed_rank_test(values, [0.0] * len(values))
        worst = min(means, key=lambda name: means[name])
        found.append(
            Difference(
                method,
                middle,
                middle - half,
                middle + half,
                float(signed.p),
                (*worse, *large_worse),
                (worst, means[worst]),
            )
        )
    return found


def _standard_error(percent: float, rows: int) -> float:
    """Standard error of the difference of two independent accuracies near `percent`, in points."""
    return float((2.0 * percent * (100.0 - percent) / rows) ** 0.5)


HEAD = ("method", "mean difference", "95 % interval", "Wilcoxon p", "significantly worse on", "worst set", "as good")


def table_rows(rows: Sequence[Row]) -> list[list[str]]:
    """The cells of the table."""
    return [
        [
            each.method,
            f"{each.mean:+.2f}",
            f"{each.low:+.2f} to {each.high:+.2f}",
            f"{each.p:.3g}",
            ", ".join(each.worse_on).replace("_", " ") or "none",
            f"{each.worst[0].replace('_', ' ')} {each.worst[1]:+.2f}",
            "yes" if each.is_as_good else "no",
        ]
        for each in differences(rows)
    ]


def print_differences(rows: Sequence[Row]) -> None:
    """Print every method's difference to the chosen fixed scale, in points."""
    from rich.table import Table

    from ...viz.terminal import console

    grid = Table(title="Accuracy minus that of the best fixed s, chosen on held-out rows", title_justify="left")
    for name in HEAD:
        grid.add_column(name, justify="right")
    for row in table_rows(rows):
        grid.add_row(*row)
    console(width=170).print(grid)


def draw_differences(rows: Sequence[Row], title: str) -> Chart:
    """A dot per set and method: accuracy minus that of the chosen fixed scale."""
    from ...viz.charts import draw_dot_plot
    from ...viz.colours import loss_colours

    sets = by_set(rows)
    shown = [*CANDIDATES, "adacos", "adaacos"]
    values = [
        [statistics.fmean(methods[m]["folds"]) - statistics.fmean(methods[FIXED]["folds"]) for m in shown]
        for methods in sets.values()
    ]
    colours = loss_colours(shown)
    names = [name.replace("_", " ") for name in sets]
    return draw_dot_plot(names, shown, values, [colours[m] for m in shown], "points against the chosen fixed s")


def render_page(rows: Sequence[Row], command: str) -> str:
    """The page of the recipe."""
    from ...viz import page

    title = "ArcGrad that chooses its own scale"
    body = [page.table(HEAD, [[(cell, "") for cell in row] for row in table_rows(rows)]), page.code(command)]
    if by_set(rows):
        body.insert(0, page.figure(draw_differences(rows, title)))
    return page.html_page(title, "Against the best of eight fixed scales, chosen on held-out rows of each fold", body)
