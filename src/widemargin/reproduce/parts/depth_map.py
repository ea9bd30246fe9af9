"""The region in which each loss learns, from the cells of the depth experiment: shares, tests, a picture, a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...viz.svg import Chart
from .cells import Row

KEYS = ("loss", "layers", "width", "embedding", "opt", "steps", "batch", "init", "lr")
LEARNS, CHANCE = 80.0, 40.0
"""Accuracy on Iris in percent from which on a loss counts as learning, and up to which as at chance (33.3)."""
_CONDITIONS = tuple(key for key in KEYS if key not in ("loss", "layers"))


class Region(NamedTuple):
    """How often a loss learns at a depth."""

    loss: str
    layers: int
    num_settings: int
    num_learning: int
    num_at_chance: int
    best: float
    """Accuracy at its best setting, in percent."""

    @property
    def share(self) -> float:
        """Percent of the settings in which the loss learns."""
        return 100.0 * self.num_learning / self.num_settings


def common_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of settings that every loss and depth has: an unfinished map compares what it has equally often."""
    groups = {(row["loss"], row["layers"]) for row in rows}
    counts: dict[tuple[object, ...], int] = {}
    for row in rows:
        key = tuple(row[name] for name in _CONDITIONS)
        counts[key] = counts.get(key, 0) + 1
    return [row for row in rows if counts[tuple(row[name] for name in _CONDITIONS)] == len(groups)]


def regions(rows: Sequence[Row]) -> list[Region]:
    """The region of every loss at every depth.

    >>> cell = {"layers": 3, **dict.fromkeys(_CONDITIONS, 1)}
    >>> regions([{**cell, "loss": "softmax", "accuracy": 90.0}])[0].share
    100.0
    """
    groups: dict[tuple[str, int], list[float]] = {}
    for row in common_rows(rows):
        groups.setdefault((row["loss"], row["layers"]), []).append(row["accuracy"])
    return [
        Region(loss, layers, len(v), sum(a >= LEARNS for a in v), sum(a <= CHANCE for a in v), max(v))
        for (loss, layers), v in sorted(groups.items(), key=lambda item: item[0][1])
    ]


class PairedRegions(NamedTuple):
    """Two losses in the same settings at one depth: in how many only one of them learns."""

    first: str
    second: str
    only_first: int
    only_second: int
    p: float
    """Exact sign test (McNemar) that neither learns more often."""


def compare_regions(rows: Sequence[Row], first: str, second: str, layers: int) -> PairedRegions:
    """The settings of a depth in which only one of two losses learns."""
    from scipy.stats import binomtest

    learning: dict[str, dict[tuple[object, ...], bool]] = {first: {}, second: {}}
    for row in common_rows(rows):
        if row["layers"] == layers and row["loss"] in learning:
            learning[row["loss"]][tuple(row[name] for name in _CONDITIONS)] = row["accuracy"] >= LEARNS
    pairs = [(does, learning[second][key]) for key, does in learning[first].items()]
    only_first, only_second = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    differing = only_first + only_second
    p = float(binomtest(only_first, differing).pvalue) if differing else 1.0
    return PairedRegions(first, second, only_first, only_second, p)


def paper_pattern_settings(rows: Sequence[Row], layers: int, arcgrad: str = "arcgrad(s=5)") -> tuple[int, int]:
    """(settings in which softmax, ArcFace and AdaCos are at chance and ArcGrad learns, those in which all three are at
    chance) at a depth: the paper's Figure 2."""
    by_setting: dict[tuple[object, ...], dict[str, float]] = {}
    for row in common_rows(rows):
        if row["layers"] == layers:
            by_setting.setdefault(tuple(row[name] for name in _CONDITIONS), {})[row["loss"]] = row["accuracy"]
    three = ("softmax", "arcface(s=20, m=0.1)", "adacos")
    failed = [cell for cell in by_setting.values() if all(cell.get(loss, 100.0) <= CHANCE for loss in three)]
    return sum(cell[arcgrad] >= LEARNS for cell in failed), len(failed)


def shares_by(rows: Sequence[Row], condition: str, layers: int) -> dict[tuple[str, object], float]:
    """Percent of settings in which a loss learns at a depth, by (loss, value of a condition)."""
    groups: dict[tuple[str, object], list[bool]] = {}
    for row in common_rows(rows):
        if row["layers"] == layers:
            groups.setdefault((row["loss"], row[condition]), []).append(row["accuracy"] >= LEARNS)
    return {key: 100.0 * sum(values) / len(values) for key, values in groups.items()}


def print_regions(rows: Sequence[Row]) -> None:
    """Print the share of settings in which each loss learns."""
    from rich.table import Table

    from ...viz.terminal import console

    found = regions(rows)
    depths = sorted({each.layers for each in found})
    count = found[0].num_settings if found else 0
    grid = Table(title=f"Settings of {count} in which a loss learns Iris, percent", title_justify="left")
    grid.add_column("loss")
    for layers in depths:
        grid.add_column(f"{layers} layers", justify="right")
    for loss in dict.fromkeys(each.loss for each in found):
        own = {each.layers: each for each in found if each.loss == loss}
        grid.add_row(loss, *(f"{own[layers].share:.1f}" for layers in depths))
    console().print(grid)
    deepest = depths[-1]
    for loss in dict.fromkeys(each.loss for each in found):
        if loss != "arcgrad(s=5)":
            pair = compare_regions(rows, "arcgrad(s=5)", loss, deepest)
            print(
                f"{deepest} layers: only arcgrad(s=5) learns in {pair.only_first}, only {loss} in {pair.only_second} "
                f"(p = {pair.p:.3g})"
            )
    both, failed = paper_pattern_settings(rows, deepest)
    print(f"{deepest} layers: softmax, ArcFace and AdaCos at chance in {failed} settings, ArcGrad learns in {both}")


def draw_regions(rows: Sequence[Row], title: str) -> Chart:
    """The share of settings in which each loss learns, against the number of layers."""
    from ...viz.charts import Line, draw_line_chart
    from ...viz.colours import loss_colours

    found = regions(rows)
    losses = list(dict.fromkeys(each.loss for each in found))
    colours = loss_colours(losses)
    lines = [Line(loss, [(e.layers, e.share) for e in found if e.loss == loss], colours[loss]) for loss in losses]
    return draw_line_chart(lines, "layers, the class weights included", "settings in which it learns, percent", title)


def draw_map(rows: Sequence[Row], loss: str, layers: int, title: str) -> Chart:
    """The region of a loss at a depth: percent of the widths, steps and batches at which it learns, by initialisation
    and activation behind the embedding (rows) and optimizer and rate (columns)."""
    from ...viz.colours import loss_colour
    from ...viz.matrices import draw_heatmap

    cells: dict[tuple[str, str], list[bool]] = {}
    own = [row for row in common_rows(rows) if (row["loss"], row["layers"]) == (loss, layers)]
    for row in sorted(own, key=lambda row: (row["init"], row["embedding"], row["opt"], row["lr"])):
        place = f"{row['init']}, {row['embedding']}", f"{row['opt']} {row['lr']:g}"
        cells.setdefault(place, []).append(row["accuracy"] >= LEARNS)
    names, columns = (list(dict.fromkeys(place[k] for place in cells)) for k in (0, 1))
    shares = {place: 100.0 * sum(values) / len(values) for place, values in cells.items()}
    return draw_heatmap(names, columns, shares, None, loss_colour(loss), title, decimals=0)


def render_page(rows: Sequence[Row], command: str) -> str:
    """The page of the recipe."""
    from ...viz import page

    found = regions(rows)
    deepest = max(each.layers for each in found)
    losses = list(dict.fromkeys(each.loss for each in found))
    title = "Where each loss still learns: Figure 2 of the ArcGrad paper, mapped"
    body = [page.figure(draw_regions(rows, title))]
    head = ("loss", *(f"{layers} layers" for layers in sorted({each.layers for each in found})), "best")
    cells = []
    for loss in losses:
        own = [each for each in found if each.loss == loss]
        cells.append([(loss, ""), *((f"{each.share:.1f} %", "") for each in own), (f"{own[-1].best:.1f} %", "")])
    body.append(page.table(head, cells))
    how = "Percent of widths, steps and batches at which it learns, by initialisation, embedding, optimizer and rate"
    body.append(page.heading(f"Where each loss learns with {deepest} layers", how))
    for loss in losses:
        body += [page.subheading(loss), page.figure(draw_map(rows, loss, deepest, f"Where {loss} learns"))]
    body.append(page.heading(f"{deepest} layers by condition", "Percent of the settings in which a loss learns"))
    for condition in _CONDITIONS:
        shares = shares_by(rows, condition, deepest)
        values = sorted({value for _, value in shares}, key=str)
        table = [[(loss, ""), *((f"{shares[loss, value]:.0f}", "") for value in values)] for loss in losses]
        body.append(page.table((condition, *map(str, values)), table))
    body.append(page.code(command))
    sub = f"Iris, {found[0].num_settings} settings for each loss and depth; a loss learns at {LEARNS:g} % or more"
    return page.html_page(title, sub, body)
