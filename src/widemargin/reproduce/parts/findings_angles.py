"""Judges of the claims on angles: Table VI's between weights and centres, and Figure 4's to the own class by epoch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .claim import FAILS, HOLDS, OPEN, Claim, group_values, measure_lead, read_record_lines
from .findings_images import format_means, join_sentences, short_name
from .runs import IMAGE_LOSSES

_SOFTMAX, _ARCGRAD = IMAGE_LOSSES["soft"], IMAGE_LOSSES["arcgrad"]
_LINE = Mapping[str, Any]


def judge_angles(claim: Claim, path: Path) -> Claim:
    """Table VI: is ArcGrad's WC-Intra the smallest and its W-Inter the largest of the paper's six methods?"""
    from ..rates import PRINTED_RATE, QUARTER

    lines = read_record_lines(path)
    small, first = _compare_angles(lines)
    if not small:
        return claim
    rates, text = path.with_name("rates.jsonl"), f"In CPU size (the runs of Table VII, 10 epochs): {small}."
    if rates.is_file():
        printed = [
            line
            for line in read_record_lines(rates)
            if (line["model"], line.get("lr"), line["epochs"]) == (QUARTER, PRINTED_RATE, 10)
        ]
        found, second = _compare_angles(printed)
        if found:
            text += f" ResNet-18 of quarter width at the printed rate: {found}."
            first = first if first == second else OPEN
    return replace(claim, status=first, finding=text)


def _compare_angles(lines: Sequence[_LINE]) -> tuple[str, str]:
    """What the angles of ArcGrad and of the best other loss are, and the verdict."""
    parts, verdicts = [], []
    for kind, name, sign in (("wc_intra", "WC-Intra", -1.0), ("w_inter", "W-Inter", 1.0)):
        own = [line for line in lines if line["loss"] in IMAGE_LOSSES.values() and kind in line["angles"]]
        values = group_values(own, lambda line: line["loss"], lambda line, kind=kind: float(line["angles"][kind]))  # type: ignore[misc]
        others = [loss for loss in values if loss != _ARCGRAD]
        if _ARCGRAD not in values or not others:
            return "", OPEN
        best = max(others, key=lambda loss: sign * statistics.fmean(values[loss]))
        lead = measure_lead(values[_ARCGRAD], values[best])
        tested = "no test from one seed"
        if lead is None:
            verdicts.append(OPEN)
        else:
            tested = f"ArcGrad's minus that: {lead.describe('rad', f'Welch over {len(values[_ARCGRAD])} seeds')}"
            ends = sorted((sign * lead.low, sign * lead.high))
            has_all = len(others) == len(IMAGE_LOSSES) - 1
            verdicts.append(FAILS if ends[1] < 0 else HOLDS if ends[0] > 0 and has_all else OPEN)
        parts.append(
            f"{name} {statistics.fmean(values[_ARCGRAD]):.2f}, the best other is {short_name(best)} with "
            f"{statistics.fmean(values[best]):.2f}; {tested}"
        )
    status = FAILS if FAILS in verdicts else HOLDS if verdicts == [HOLDS, HOLDS] else OPEN
    return ". ".join(parts), status


def judge_angle_histories(claim: Claim, path: Path) -> Claim:
    """Figure 4: do ArcGrad's angles to the own class fall faster than softmax's, and end lower?"""
    from ...viz.charts import Line, draw_line_chart
    from ...viz.colours import loss_colours
    from ..rates import PRINTED_RATE, QUARTER

    lines = [
        line
        for line in read_record_lines(path)
        if "target_angles" in line and (line["model"], line["lr"], line["epochs"]) == (QUARTER, PRINTED_RATE, 10)
    ]
    if not lines:
        return claim
    moments = {"half-way": lambda angles: len(angles) // 2 - 1, "at the end": lambda angles: -1}
    values = {
        name: group_values(
            lines,
            lambda line: line["loss"],
            lambda line, place=place: float(line["target_angles"][place(line["target_angles"])][1]),  # type: ignore[misc]
        )
        for name, place in moments.items()
    }
    leads = {name: measure_lead(own.get(_SOFTMAX, ()), own.get(_ARCGRAD, ())) for name, own in values.items()}
    known = [lead for lead in leads.values() if lead is not None]
    status = OPEN
    if len(known) == 2:
        status = HOLDS if all(k.low > 0 for k in known) else FAILS if any(k.high < 0 for k in known) else OPEN
    text = join_sentences(
        "Median angle in degrees, ResNet-18 of quarter width at the printed rate.",
        *(f"{name[0].upper()}{name[1:]}: {format_means(own)}." for name, own in values.items()),
        *(
            f"Softmax's minus ArcGrad's {name}: {lead.describe('degrees', 'Welch')}."
            for name, lead in leads.items()
            if lead is not None
        ),
        "" if len(known) == 2 else "No test from less than two seeds each.",
    )
    first = {line["loss"]: line["target_angles"] for line in reversed(lines)}
    colours = loss_colours(list(first))
    curves = [
        Line(loss, [(float(k), angles[1]) for k, angles in enumerate(history, 1)], colours[loss])
        for loss, history in first.items()
    ]
    chart = draw_line_chart(curves, "epoch", "median angle to the own class in degrees", "Angles to the own class")
    return replace(claim, status=status, finding=text, chart=chart)
