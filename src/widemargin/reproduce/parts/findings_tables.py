"""Judges of the claims that records on tables decide: depth, scale, Eq. 19, self-chosen scales and Table I."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

from ...io import bounded
from ...stats import holm
from . import auto_scale_page, depth_map, gap_page, scale_page
from .auto_scale_page import CANDIDATES
from .cells import Row, read_record_rows
from .claim import ALPHA, CONDITIONS, FAILS, HOLDS, Claim, describe_missing, read_record_lines
from .scale_grids import Setting, image_rows, image_settings

_SOFTMAX, _ARCGRAD = "softmax", "arcgrad(s=5)"


def judge_depth(claim: Claim, path: Path) -> Claim:
    """Figure 2: in how many settings each loss learns Iris with ten layers."""
    rows = read_record_rows(path)
    found = depth_map.regions(rows)
    deepest = max(each.layers for each in found)
    shares = {each.loss: each for each in found if each.layers == deepest}
    both, failed = depth_map.paper_pattern_settings(rows, deepest)
    three = ("softmax", "arcface(s=20, m=0.1)", "adacos")
    pairs = [depth_map.compare_regions(rows, _ARCGRAD, loss, deepest) for loss in three]
    adjusted = holm([pair.p for pair in pairs])
    pairs = [pair._replace(p=float(p)) for pair, p in zip(pairs, adjusted, strict=True)]
    larger = [pair.second for pair in pairs if pair.p <= ALPHA and pair.only_first > pair.only_second]
    smaller = [pair.second for pair in pairs if pair.p <= ALPHA and pair.only_first < pair.only_second]
    status = HOLDS if len(larger) == 3 and both == failed else CONDITIONS if larger and both else FAILS
    torch_init = depth_map.shares_by(rows, "init", deepest)
    text = (
        f"Of {shares[_ARCGRAD].num_settings} settings with {deepest} layers, ArcGrad (s=5) learns in "
        f"{shares[_ARCGRAD].share:.0f} %, softmax in {shares[_SOFTMAX].share:.0f} %, ArcFace in "
        f"{shares[three[1]].share:.0f} % "
        f"and AdaCos in {shares['adacos'].share:.0f} %. In the same settings "
        + "; ".join(
            f"only ArcGrad learns in {p.only_first}, only {_name(p.second)} in "
            f"{p.only_second} (sign test with Holm's correction, p = {p.p:.2g})"
            for p in pairs
        )
        + f". ArcGrad's region is significantly larger than that of {_list(larger)}"
        + (f" and smaller than that of {_list(smaller)}. " if smaller else ". ")
        + f"The three are at chance together in {failed} settings; ArcGrad learns in {both} of these. "
        f"With torch's default "
        f"initialisation softmax learns in {torch_init[_SOFTMAX, 'torch']:.0f} % and ArcGrad in "
        f"{torch_init[_ARCGRAD, 'torch']:.0f} %, with He's in {torch_init[_SOFTMAX, 'he']:.0f} and "
        f"{torch_init[_ARCGRAD, 'he']:.0f} %. "
        "All settings share five folds and one seed, so they are not independent and the p-values are too small rather "
        "than too large."
    )
    chart = depth_map.draw_regions(rows, "Settings in which each loss learns Iris, by depth")
    return replace(claim, status=status, finding=text, chart=chart)


def _name(loss: str) -> str:
    plain = loss.partition("(")[0]
    return {"arcface": "ArcFace", "adacos": "AdaCos"}.get(plain, plain)


def _list(losses: list[str]) -> str:
    return " and ".join(map(_name, losses)) or "none of them"


def judge_scale(claim: Claim, path: Path) -> Claim:
    """One number, s: on which data ArcGrad's best is within a point of the best of all losses, and at how many scales
    it stays within a point of its own."""
    rows = read_record_rows(path)
    p = scale_page.friedman_over_scales(rows)
    met: list[str] = []
    unmet: list[str] = []
    texts, untested = [], []
    for name, file in _SCALE_RECORDS.items():
        record = path.with_name(file)
        if not record.is_file():
            untested.append(name)
            continue
        own = read_record_rows(record) if file.endswith(".json") else image_rows(read_record_lines(record))
        planned = image_settings() if file.endswith(".jsonl") else []
        losses = {each.loss for each in planned}
        missing = describe_missing(
            {loss: [each for each in planned if each.loss == loss] for loss in sorted(losses)},
            {loss: [Setting(row["loss"], row["s"], row["m"]) for row in own if row["loss"] == loss] for loss in losses},
        )
        if missing:
            untested.append(f"the rest of {name}")
            figures = ", ".join(f"{Setting(r['loss'], r['s'], r['m'])} {r['accuracy']:.1f}" for r in own)
            texts.append(f"On {name}: {missing} {figures}.")
            continue
        (met if _is_one_number_enough(own) else unmet).append(name)
        texts.append(f"On {name}: {_describe_plateaus(own)}; " + _describe_best(own))
    # On every kind of data, or under conditions; what is not tested cannot hold everywhere.
    status = CONDITIONS if met and (unmet or untested) else HOLDS if met else FAILS
    text = (
        "Settings within a point of a loss's own best, and that best. "
        + " ".join(texts)
        + ("" if p is None else f" Friedman's test over ArcGrad's scales on the UCI sets: p = {p:.2g}.")
        + (
            f" One number is enough and easy to choose (ArcGrad's best within a point of the highest, and at least "
            f"half of its scales within a point of that) on: {', '.join(met) or 'none'}."
        )
        + (f" Not on: {', '.join(unmet)}." if unmet else "")
        + (f" Not tested yet: {', '.join(untested)}." if untested else "")
    )
    chart = scale_page.draw_plateaus(rows, "Accuracy against the scale, mean of the UCI sets")
    return replace(claim, status=status, finding=text, chart=chart)


_SCALE_RECORDS = {
    "the UCI sets of two to six classes": "scale_uci.json",
    "a generated table of 50 classes": "scale_fifty.json",
    "CIFAR-10": "scale_cifar10.jsonl",
    "unseen characters of Omniglot": "scale_omniglot.jsonl",
}


def _is_one_number_enough(rows: list[Row]) -> bool:
    found = {each.loss: each for each in scale_page.plateaus(rows)}
    highest = max(each.best_accuracy for each in found.values())
    return found["arcgrad"].best_accuracy >= highest - scale_page.TOLERANCE and found["arcgrad"].share >= 0.5


def _describe_best(rows: list[Row]) -> str:
    best = ", ".join(f"{e.loss} {e.best_accuracy:.2f} ({e.best})" for e in scale_page.plateaus(rows))
    own = {row["s"]: row["accuracy"] for row in rows if row["loss"] == "arcgrad"}
    one_set = len({row["set"] for row in rows}) == 1
    by_scale = ", ".join(f"s={s:g} {value:.1f}" for s, value in sorted(own.items()))
    return f"best {best}" + (f"; ArcGrad by scale: {by_scale}." if one_set else ".")


def _describe_plateaus(rows: list[Row]) -> str:
    return ", ".join(
        f"{e.loss} {e.num_within} of {e.num_settings} (s from {e.low_scale:g} to {e.high_scale:g})"
        for e in scale_page.plateaus(rows)
    )


def judge_gap(claim: Claim, path: Path) -> Claim:
    """Eq. 19: the slope of log gap over log s, and at how many scales the predicted gap is reached."""
    rows = read_record_rows(path)
    found = gap_page.slopes(rows)
    falling = sum(each.high < 0 for each in found)
    inverse = [each for each in found if each.low <= -1.0 <= each.high]
    met, total = sum(each.num_met for each in found), sum(each.num_scales for each in found)
    status = HOLDS if len(inverse) == len(found) else CONDITIONS if 4 * len(inverse) >= len(found) else FAILS
    clean = [each.slope for each in found if not each.noise]
    noisy = [each.slope for each in found if each.noise]
    text = (
        f"The slope of log gap over log s, −1 in Eq. 19, has an interval below 0 in {falling} of "
        f"{len(found)} groups of set, noise "
        f"and model, and an interval that contains −1 in {len(inverse)}. "
        f"Slopes lie between {min(clean):.2f} and {max(clean):.2f} (median {statistics.median(clean):.2f}) "
        f"without wrong labels and between {min(noisy):.2f} and {max(noisy):.2f} (median "
        f"{statistics.median(noisy):.2f}) with 20 % "
        f"of them. The gap reached is within {gap_page.RATIO_RANGE[0]:g} and "
        f"{gap_page.RATIO_RANGE[1]:g} times the predicted one "
        f"at {met} of {total} scales. Intervals are over three seeds on the same rows."
    )
    chart = gap_page.draw_gaps(rows, 0.0, "Gap reached and predicted, no wrong labels")
    return replace(claim, status=status, finding=text, chart=chart)


def judge_auto_scale(claim: Claim, path: Path) -> Claim:
    """Self-chosen scales against the best fixed one, chosen on held-out rows."""
    rows = read_record_rows(path)
    found = {each.method: each for each in auto_scale_page.differences(rows)}
    good = [name for name in CANDIDATES if found[name].is_as_good]
    status = CONDITIONS if good else FAILS
    text = (
        f"Against the best of eight scales, chosen on held-out rows, over {len(auto_scale_page.by_set(rows))} sets: "
        + ", ".join(f"{e.method} {e.mean:+.2f} ({e.low:+.2f} to {e.high:+.2f})" for e in found.values())
        + " points with 95 % intervals. "
        + "; ".join(
            f"{e.method} is significantly worse on {', '.join(e.worse_on)}".replace("_", " ")
            for e in found.values()
            if e.worse_on
        )
        + ("" if not any(e.worse_on for e in found.values()) else ". ")
        + (
            f"As good within the limits set beforehand: {', '.join(good)}."
            if good
            else "None is as good within the limits set beforehand."
        )
    )
    chart = auto_scale_page.draw_differences(rows, "Self-chosen scales against the chosen fixed scale")
    return replace(claim, status=status, finding=text, chart=chart)


def judge_table1(claim: Claim, path: Path) -> Claim:
    """Table I: the average over the sets, with Friedman's test."""
    from scipy.stats import t

    from ...stats import friedman
    from ...viz.charts import draw_intervals
    from ...viz.colours import loss_colours
    from ..paper import TABLE1_LOSSES

    means = {(line["set"], line["loss"]): float(line["mean"]) for line in map(json.loads, bounded.read_lines(path))}
    losses, sets = list(TABLE1_LOSSES.values()), sorted({name for name, _ in means})
    scores = [[means[name, loss] for loss in losses] for name in sets]
    test = friedman(scores)
    averages = {loss: statistics.fmean(row[k] for row in scores) for k, loss in enumerate(losses)}
    leader = max(averages, key=lambda loss: averages[loss])
    status = HOLDS if leader == _ARCGRAD and test.p <= ALPHA else CONDITIONS if leader.startswith("arcgrad") else FAILS
    text = f"Averages over {len(sets)} sets: " + ", ".join(f"{k} {v:.2f}" for k, v in averages.items())
    text += f"; Friedman's test over all seven: p = {test.p:.2g}"
    if leader == _ARCGRAD and test.p > ALPHA:
        second = sorted(averages.values())[-2]
        text += f", so the lead of {averages[leader] - second:.2f} points in the average may be chance"
    text += "."
    spans = []
    for k, loss in enumerate(losses):
        column = [row[k] for row in scores]
        half = float(t.ppf(0.975, len(column) - 1)) * statistics.stdev(column) / len(column) ** 0.5
        spans.append((averages[loss] - half, averages[loss] + half))
    colours = loss_colours(losses)
    chart = draw_intervals(
        losses,
        list(averages.values()),
        spans,
        [colours[k] for k in losses],
        "accuracy in percent",
        "Average over the UCI sets with the interval over sets",
    )
    return replace(claim, status=status, finding=text, chart=chart)
