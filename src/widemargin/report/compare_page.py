"""`report.html` of a comparison: what the numbers mean, then the pictures, then the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from ..results import TRAIN_ROWS, Result
from . import page, svg
from .comparison import Comparison, OnManySets, OnOneSet, about_baselines, mean_span, span, train, train_span
from .escaped import escape
from .palette import colour

_GREY = "#8a8f98"  # baselines: no loss has it
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
    if found.baselines:
        sub += f"; {len(found.baselines)} baseline{'s' if len(found.baselines) > 1 else ''}"
    question = f"{one.set}: which loss serves it?"
    if len(found.sets) > 1:
        sub, question = f"{len(found.sets)} sets, " + sub, f"{len(found.sets)} sets: which loss serves them?"
    body = [f'<p class="verdict">{escape(found.verdict)}</p>', *more]
    body += _together(found) if found.together is not None else [part for one in found.sets for part in _alone(one)]
    body += _angles(found)
    body += _numbers(found)
    body += _about(about, command, first)
    return page.page(title or question, sub, body)


def _picture(one: OnOneSet, order: Sequence[int]) -> str:
    """Losses in this order with their intervals, baselines below a line."""
    rows = [(one.results[i], one.intervals[i], colour(one.results[i].loss)) for i in order]
    rows += [(r, span, _GREY) for r, span in zip(one.baselines, one.baseline_intervals, strict=True)]
    return svg.intervals(
        [r.loss for r, _, _ in rows],
        [r.mean for r, _, _ in rows],
        [span for _, span, _ in rows],
        [ink for _, _, ink in rows],
        "accuracy in percent",
        f"Accuracy of each method on {one.set} with its 95 % interval",
        references=len(one.baselines),
    )


def _alone(one: OnOneSet) -> list[str]:
    parts = [
        page.heading(
            f"Accuracy on {one.set}",
            "The dot is the mean over all folds, the line its 95 % interval, allowing for rows that folds share."
            + _below(one),
        ),
        page.figure(_picture(one, one.order)),
    ]
    if len(one.results) > 1 and one.stated:
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


def _below(one: OnOneSet) -> str:
    """A word on the baselines of a picture."""
    return (
        " Baselines stand below the line; an arrow marks one that lies too far left to be drawn."
        if one.baselines
        else ""
    )


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
        f"Mean ranks over {len(together.sets)} sets, 1 is best; a bar joins methods whose ranks differ by less than "
        "the critical difference (Nemenyi, 5 %). "
        f"Friedman's test that any differ at all: p = {together.p_friedman:.3g}."
    )
    parts = [page.heading("Critical-difference diagram", friedman), page.figure(diagram)]
    parts.append(
        page.heading(
            "Accuracy by set",
            "The mean of each method; open a set for the 95 % intervals (folds share rows, which they allow for).",
        )
    )
    names = [one.set for one in found.sets]
    scores = [[result.mean for result in one.results] for one in found.sets]
    everything = svg.dots(names, found.methods, scores, [colour(m) for m in found.methods])
    parts.append(page.figure(everything))
    for one in found.sets:
        parts.append(page.details(one.set, page.figure(_picture(one, range(len(one.results))), one.verdict)))
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
    marks = "Bold: the best. ≈: not significantly worse than it (corrected resampled t-test, Holm, 5 %)."
    explained = [marks] if any(one.stated for one in found.sets) else []
    measured = (
        f"Train: accuracy on the rows that were learnt from, on {TRAIN_ROWS:,} of each fold where there are more."
    )
    fit = [measured, *(f"{line}." for line in about_baselines(found))]
    if len(found.sets) == 1:
        if found.sets[0].stated:
            explained.append("A fold is won by everybody whom no other method beats in it.")
        return [page.heading("The numbers", " ".join([*explained, *fit])), _one_table(found.sets[0])]
    rows = [[(one.set, ""), *(_cell(r, one) for r in one.results)] for one in found.sets]
    foot = _together_foot(found.together) if found.together is not None else []
    ranges = [
        [(one.set, ""), (mean_span(one), ""), (train_span(one), ""), *map(_plain, one.baselines)] for one in found.sets
    ]
    return [
        page.heading("The numbers", " ".join(explained)),
        page.table(("set", *found.methods), rows, foot),
        page.heading(
            "Training accuracy and baselines" if found.baselines else "Training accuracy",
            " ".join(["Of the losses the lowest and the highest mean.", *fit]),
        ),
        page.table(("set", "losses, test", "losses, train", *found.baselines), ranges),
    ]


def _one_table(one: OnOneSet) -> str:
    """Losses, the best mean first, and the baselines at the foot."""
    placed = ("rank", "folds won") if one.stated else ()

    def row(r: Result, mean: page.Cell, interval: tuple[float, float], place: Sequence[str]) -> list[page.Cell]:
        texts = (train(r), span(*interval, 2), *place[: len(placed)], f"{r.seconds:.1f} s")
        return [(r.loss, ""), mean, *((text, "") for text in texts)]

    rows = [
        row(one.results[i], _cell(one.results[i], one), one.intervals[i], (f"{one.ranks[i]:g}", str(one.wins[i])))
        for i in one.order
    ]
    foot = [
        row(r, _plain(r), interval, ("–", "–"))
        for r, interval in zip(one.baselines, one.baseline_intervals, strict=True)
    ]
    return page.table(("loss", "mean ± std", "train", "95 % interval", *placed, "time"), rows, foot)


def _together_foot(together: OnManySets) -> list[list[page.Cell]]:
    wins = (f"{n} ({s} shared)" if s else f"{n}" for n, s in zip(together.wins, together.shared, strict=True))
    return [
        [("average", ""), *((f"{v:.2f}", "") for v in together.averages)],
        [("mean rank", ""), *((f"{v:.2f}", "") for v in together.mean_ranks)],
        [("wins", ""), *((text, "") for text in wins)],
    ]


def _cell(result: Result, one: OnOneSet) -> page.Cell:
    kind = "best" if round(result.mean, 2) == one.best else "alike" if result.loss in one.not_worse else ""
    return _plain(result)[0], kind


def _plain(result: Result) -> page.Cell:
    return f"{result.mean:.2f} ± {result.std:.2f}", ""


def _about(about: Sequence[str], command: str, first: Result) -> list[str]:
    parts = [page.heading("How this was made")]
    parts += [page.paragraph(sentence, "note") for sentence in about]
    if command:
        parts += [page.paragraph("The command that makes it again:"), page.code(command)]
    settings = json.dumps({"settings": first.settings, "versions": first.versions}, indent=1, ensure_ascii=False)
    parts.append(page.details("Settings and versions", page.code(settings)))
    return parts
