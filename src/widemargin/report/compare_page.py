"""`report.html` of a comparison: what the numbers mean, then the pictures, then the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from ..results import Result
from . import page, svg
from .comparison import Comparison, OnManySets, OnOneSet, span
from .escaped import escape
from .palette import colour

_ANGLES = (
    ("wc_intra", "WC-Intra: class weight to class centre (small is compact)"),
    ("w_inter", "W-Inter: between class weights (large is separated)"),
    ("c_inter", "C-Inter: between class centres (large is separated)"),
)


def compare_page(
    found: Comparison, about: Sequence[str] = (), command: str = "", more: Sequence[str] = (), title: str = ""
) -> str:
    """The page; `about` are sentences on the data, `more` sections of a recipe that stand after the verdict."""
    one = found.sets[0]
    first = one.results[0]
    count = len(first.folds)
    methods = f"{len(found.methods)} method{'s' if len(found.methods) > 1 else ''}"
    sub = f"{methods}, {count} folds each on the same partitions, seed {first.seed}"
    question = f"{one.set}: which loss serves it?"
    if len(found.sets) > 1:
        sub, question = f"{len(found.sets)} sets, " + sub, f"{len(found.sets)} sets: which loss serves them?"
    body = [f'<p class="verdict">{escape(found.verdict)}</p>', *more]
    body += _together(found) if found.together is not None else [part for one in found.sets for part in _alone(one)]
    body += _angles(found)
    body += _numbers(found)
    body += _about(about, command, first)
    return page.page(title or question, sub, body)


def _alone(one: OnOneSet) -> list[str]:
    order = sorted(range(len(one.results)), key=lambda i: -one.results[i].mean)
    results = [one.results[i] for i in order]
    picture = svg.intervals(
        [r.loss for r in results],
        [r.mean for r in results],
        [one.intervals[i] for i in order],
        [colour(r.loss) for r in results],
        "accuracy in percent",
        f"Accuracy of each method on {one.set} with its 95 % interval",
    )
    parts = [
        page.heading(
            f"Accuracy on {one.set}",
            "The dot is the mean over all folds, the line its 95 % interval, allowing for rows that folds share.",
        ),
        page.figure(picture),
    ]
    if len(results) > 1:
        diagram = svg.groups(
            [r.loss for r in one.results],
            [r.mean for r in one.results],
            one.groups,
            "accuracy",
            "Methods by accuracy; a bar joins those that no test tells apart",
            best_left=False,
        )
        why = (
            "A bar joins methods that the corrected resampled t-test with Holm's correction does not tell apart (5 %)."
        )
        parts += [page.heading("Who differs from whom", why), page.figure(diagram)]
    return parts


def _together(found: Comparison) -> list[str]:
    together = found.together
    assert together is not None
    diagram = svg.groups(
        found.methods,
        together.mean_ranks,
        together.groups,
        "mean rank",
        "Critical-difference diagram: mean ranks, bars join methods that Nemenyi's test does not tell apart",
        (together.critical_difference, f"critical difference {together.critical_difference:.2f}"),
    )
    friedman = (
        f"Mean ranks over {len(found.sets)} sets, 1 is best; a bar joins methods whose ranks differ by less than the "
        f"critical difference (Nemenyi, 5 %). Friedman's test that any differ at all: p = {together.p_friedman:.3g}."
    )
    parts = [page.heading("Critical-difference diagram", friedman), page.figure(diagram)]
    parts.append(
        page.heading(
            "Accuracy by set",
            "The mean of each method; open a set for the 95 % intervals (folds share rows, which they allow for).",
        )
    )
    names = [one.set for one in found.sets]
    everything = svg.dots(names, found.methods, together.scores.tolist(), [colour(m) for m in found.methods])
    parts.append(page.figure(everything))
    for one in found.sets:
        picture = svg.intervals(
            [r.loss for r in one.results],
            [r.mean for r in one.results],
            one.intervals,
            [colour(r.loss) for r in one.results],
            "accuracy in percent",
            f"Accuracy of each method on {one.set} with its 95 % interval",
        )
        parts.append(page.details(one.set, page.figure(picture, one.verdict)))
    return parts


def _angles(found: Comparison) -> list[str]:
    measured = [m for m in found.methods if any(r.angles for one in found.sets for r in one.results if r.loss == m)]
    if not measured:
        return []
    values = [[_mean_angle(found, method, key) for key, _ in _ANGLES] for method in measured]
    picture = svg.grouped_bars(
        measured, [name for _, name in _ANGLES], values, [colour(m) for m in measured], "Angle metrics in radians"
    )
    why = "Angles in radians (π/2 = 1.57), training rows, mean over all models" + (
        " and sets; sets with other numbers of classes have other largest angles."
        if len(found.sets) > 1
        else ". With two classes only the difference of two angles decides: there a centre may lie far from its weight."
    )
    return [page.heading("Compact within, far apart between", why), page.figure(picture)]


def _mean_angle(found: Comparison, method: str, key: str) -> float:
    values = [r.angles.get(key) for one in found.sets for r in one.results if r.loss == method]
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else math.nan


def _numbers(found: Comparison) -> list[str]:
    explained = (
        "Bold: the best. ≈: not significantly worse than it (corrected resampled t-test, Holm, 5 %). A fold is won by "
    )
    explained += "everybody whom no other method beats in it."
    if len(found.sets) == 1:
        one = found.sets[0]
        best = max(round(r.mean, 2) for r in one.results)
        rows = []
        for i in sorted(range(len(one.results)), key=lambda i: -one.results[i].mean):
            r, (low, high) = one.results[i], one.intervals[i]
            cells = [(r.loss, ""), _cell(r, best, one), (span(low, high, 2), ""), (f"{one.ranks[i]:g}", "")]
            rows.append([*cells, (str(one.wins[i]), ""), (f"{r.seconds:.1f} s", "")])
        head = ("loss", "mean ± std", "95 % interval", "rank", "folds won", "time")
        return [page.heading("The numbers", explained), page.table(head, rows)]
    rows = []
    for one in found.sets:
        best = max(round(r.mean, 2) for r in one.results)
        rows.append([(one.set, ""), *(_cell(r, best, one) for r in one.results)])
    foot = _together_foot(found.together) if found.together is not None else []
    return [page.heading("The numbers", explained), page.table(("set", *found.methods), rows, foot)]


def _together_foot(together: OnManySets) -> list[list[page.Cell]]:
    wins = (f"{n} ({s} shared)" if s else f"{n}" for n, s in zip(together.wins, together.shared, strict=True))
    return [
        [("average", ""), *((f"{v:.2f}", "") for v in together.averages)],
        [("mean rank", ""), *((f"{v:.2f}", "") for v in together.mean_ranks)],
        [("wins", ""), *((text, "") for text in wins)],
    ]


def _cell(result: Result, best: float, one: OnOneSet) -> page.Cell:
    kind = "best" if round(result.mean, 2) == best else "alike" if result.loss in one.not_worse else ""
    return f"{result.mean:.2f} ± {result.std:.2f}", kind


def _about(about: Sequence[str], command: str, first: Result) -> list[str]:
    parts = [page.heading("How this was made")]
    parts += [page.paragraph(sentence, "note") for sentence in about]
    if command:
        parts += [page.paragraph("The command that makes it again:"), page.code(command)]
    settings = json.dumps({"settings": first.settings, "versions": first.versions}, indent=1, ensure_ascii=False)
    parts.append(page.details("Settings and versions", page.code(settings)))
    return parts
