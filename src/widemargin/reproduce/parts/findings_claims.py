"""The claims of the papers, each judged from a record: what holds, under which conditions, with a test or an interval.

A claim without a record is "not tested here", with the command that would test it and its cost. Every figure and every
verdict is computed from the records; no result is written here.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...io import bounded
from ...stats import holm
from ...viz.svg import Chart
from . import auto_scale_page, depth_map, gap_page, scale_page
from .auto_scale_page import CANDIDATES
from .cells import Row, read_record_rows

HOLDS, CONDITIONS, FAILS, UNTESTED = "holds", "holds under conditions", "does not hold", "not tested here"
STATUSES = (HOLDS, CONDITIONS, FAILS, UNTESTED)
ALPHA = 0.05
_SOFTMAX, _ARCGRAD = "softmax", "arcgrad(s=5)"


@dataclass(frozen=True)
class Claim:
    """A claim of a source, and what the records say about it."""

    name: str
    source: str
    claim: str
    command: str
    cost: str
    status: str = UNTESTED
    finding: str = ""
    chart: Chart | None = None
    record: str = ""


Judge = Callable[[Claim, Path], Claim]


def judge_claims(records: Path) -> list[Claim]:
    """All claims, judged from the records in a folder where they are there."""
    judged = []
    for claim, judge in CLAIMS:
        path = records / claim.record
        judged.append(judge(claim, path) if judge is not None and claim.record and path.exists() else claim)
    return judged


def _lines(path: Path) -> list[dict[str, Any]]:
    text = bounded.read_file(path, bounded.MAX_IN_MEMORY_LOG_BYTES).decode("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _judge_depth(claim: Claim, path: Path) -> Claim:
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
        f"{torch_init[_ARCGRAD, 'he']:.0f} %."
    )
    chart = depth_map.draw_regions(rows, "Settings in which each loss learns Iris, by depth")
    return replace(claim, status=status, finding=text, chart=chart)


def _name(loss: str) -> str:
    plain = loss.partition("(")[0]
    return {"arcface": "ArcFace", "adacos": "AdaCos"}.get(plain, plain)


def _list(losses: list[str]) -> str:
    return " and ".join(map(_name, losses)) or "none of them"


def _judge_scale(claim: Claim, path: Path) -> Claim:
    rows = read_record_rows(path)
    found = {each.loss: each for each in scale_page.plateaus(rows)}
    p = scale_page.friedman_over_scales(rows)
    arcgrad = found["arcgrad"]
    has_wider = all(arcgrad.share >= other.share for other in found.values())
    # Tables alone, and small ones of two to six classes: at most under conditions.
    status = CONDITIONS if arcgrad.share >= 0.5 and has_wider else FAILS
    fifty = path.with_name("scale_fifty.json")
    best = max(found.values(), key=lambda each: each.best_accuracy)
    text = (
        "Settings within a point of a loss's own best average over "
        f"{len({row['set'] for row in rows})} sets of two to six classes: "
        + _describe_plateaus(rows)
        + f". The best averages are "
        f"{', '.join(f'{e.loss} {e.best_accuracy:.2f}' for e in found.values())} (highest: {best.loss}). "
        + ("" if p is None else f"Friedman's test over ArcGrad's scales: p = {p:.2g}. ")
        + (_describe_fifty_classes(read_record_rows(fifty)) if fifty.is_file() else "")
        + "Not tested yet: "
        + ("" if fifty.is_file() else "a table of 50 classes (`scale fifty`) and ")
        + "images (`scale cifar10`, `scale omniglot`)."
    )
    chart = scale_page.draw_plateaus(rows, "Accuracy against the scale, mean of the sets")
    return replace(claim, status=status, finding=text, chart=chart)


def _describe_plateaus(rows: list[Row]) -> str:
    return ", ".join(
        f"{e.loss} {e.num_within} of {e.num_settings} (s from {e.low_scale:g} to {e.high_scale:g})"
        for e in scale_page.plateaus(rows)
    )


def _describe_fifty_classes(rows: list[Row]) -> str:
    best = ", ".join(f"{e.loss} {e.best_accuracy:.1f} ({e.best})" for e in scale_page.plateaus(rows))
    own = {row["s"]: row["accuracy"] for row in rows if row["loss"] == "arcgrad"}
    by_scale = ", ".join(f"s={s:g} {value:.1f}" for s, value in sorted(own.items()))
    return (
        f"On a generated table of 50 classes: {_describe_plateaus(rows)}; best {best}; ArcGrad by scale: {by_scale}. "
    )


def _judge_gap(claim: Claim, path: Path) -> Claim:
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
        f"at {met} of {total} scales."
    )
    chart = gap_page.draw_gaps(rows, 0.0, "Gap reached and predicted, no wrong labels")
    return replace(claim, status=status, finding=text, chart=chart)


def _judge_auto_scale(claim: Claim, path: Path) -> Claim:
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


def _judge_table1(claim: Claim, path: Path) -> Claim:
    from ...stats import friedman
    from ...viz.charts import draw_intervals
    from ...viz.colours import loss_colours
    from ..paper import TABLE1_LOSSES

    means = {(line["set"], line["loss"]): float(line["mean"]) for line in _lines(path)}
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
        half = 2.145 * statistics.stdev(column) / len(column) ** 0.5
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


def _judge_epochs(claim: Claim, path: Path) -> Claim:
    values: dict[str, list[float]] = {}
    for line in _lines(path):
        values.setdefault(line["loss"], []).append(float(line["test"]["top1"]))
    difference = statistics.fmean(values["arcgrad(s=10)"]) - statistics.fmean(values[_SOFTMAX])
    text = (
        f"In CPU size (a small network at a rate at which all losses learn, 10 epochs) ArcGrad is "
        f"{difference:+.2f} points from "
        f"softmax, {len(values[_SOFTMAX])} seeds each: "
        + ", ".join(f"{k} {statistics.fmean(v):.2f}" for k, v in values.items())
        + ". Whether the printed rate (Adam at 0.1) makes the difference is not tested yet: `rates`."
    )
    return replace(
        claim,
        status=HOLDS if difference > 10 else FAILS,
        finding=text,
        chart=_strip(values, "Accuracy after 10 epochs"),
    )


def _judge_fractions(claim: Claim, path: Path) -> Claim:
    from ...viz.charts import Line, draw_line_chart
    from ...viz.colours import loss_colours

    values = {(line["loss"], float(line["train_fraction"])): float(line["test"]["top1"]) for line in _lines(path)}
    losses, fractions = list(dict.fromkeys(k for k, _ in values)), sorted({f for _, f in values})
    best = {f: max(losses, key=lambda loss: values[loss, f]) for f in fractions}
    text = (
        "One seed each and a small network, which tells nothing about a claim on small differences. Best at "
        + ", ".join(f"{100 * f:g} %: {best[f]} {values[best[f], f]:.2f}" for f in fractions)
        + "."
    )
    colours = loss_colours(losses)
    chart = draw_line_chart(
        [Line(loss, [(100 * f, values[loss, f]) for f in fractions], colours[loss]) for loss in losses],
        "percent of the training images",
        "accuracy in percent",
        "Accuracy by the share of the training images",
    )
    return replace(claim, finding=text, chart=chart)


def _judge_headline(claim: Claim, path: Path) -> Claim:
    from ..headline import PAPER_TOP1

    lines = _lines(path)
    flips = [float(line["test"]["top1_flip"]) for line in lines]
    plain = [float(line["test"]["top1"]) for line in lines]
    text = (
        f"Attempts within an hour on two CPU cores: {', '.join(f'{v:.2f}' for v in flips)} % with flips, "
        f"{', '.join(f'{v:.2f}' for v in plain)} % without; the paper has {PAPER_TOP1:.2f} % with "
        f"ResNet-18 on a GPU. "
        "One seed, so without a test."
    )
    chart = _strip({"with flips": flips, "without": plain}, "CIFAR-10 within an hour", PAPER_TOP1)
    return replace(claim, status=HOLDS if max(plain) >= PAPER_TOP1 else FAILS, finding=text, chart=chart)


def _strip(values: dict[str, list[float]], title: str, paper: float | None = None) -> Chart:
    from ...viz.charts import draw_strip_plot
    from ...viz.colours import loss_colours

    colours = loss_colours(list(values))
    return draw_strip_plot(
        list(values),
        list(values.values()),
        [paper] * len(values),
        [colours[k] for k in values],
        "accuracy in percent",
        title,
    )


_PAPER = "ArcGrad"
CLAIMS: tuple[tuple[Claim, Judge | None], ...] = (
    (
        Claim(
            "figure2",
            f"{_PAPER}, Figure 2",
            "With ten layers softmax, ArcFace and AdaCos are at chance on Iris; ArcGrad is not.",
            "widemargin reproduce depth",
            "about 12 minutes on one core",
            record="depth.json",
        ),
        _judge_depth,
    ),
    (
        Claim(
            "one_number",
            f"{_PAPER}, Section III",
            "The margin is not necessary: one number, s, is enough and easy to choose.",
            "widemargin reproduce scale uci",
            "about 5 minutes on one core",
            record="scale_uci.json",
        ),
        _judge_scale,
    ),
    (
        Claim(
            "eq19",
            f"{_PAPER}, Eq. 19",
            "Scale and margin are inversely proportional: s times gap is W₀((C−1)/e) + 1.",
            "widemargin reproduce gap",
            "about 10 minutes on one core",
            record="gap.json",
        ),
        _judge_gap,
    ),
    (
        Claim(
            "auto_scale",
            f"{_PAPER}, Introduction (open problem)",
            "ArcGrad could choose its own s as well as held-out data do.",
            "widemargin reproduce auto_scale --small",
            "about 8 minutes on one core",
            record="auto_scale.json",
        ),
        _judge_auto_scale,
    ),
    (
        Claim(
            "table1",
            f"{_PAPER}, Table I",
            "ArcGrad has the best average accuracy on fifteen UCI sets.",
            "widemargin reproduce table1",
            "under a minute on two cores",
            record="table1.jsonl",
        ),
        _judge_table1,
    ),
    (
        Claim(
            "table7",
            f"{_PAPER}, Table VII",
            "After 10 epochs of CIFAR-10+ ArcGrad is far above softmax (15.5 points), also with a small network.",
            "widemargin reproduce table7 --size cpu",
            "16 runs of 5 minutes on two cores",
            record="table7_cpu.jsonl",
        ),
        _judge_epochs,
    ),
    (
        Claim(
            "figure3",
            f"{_PAPER}, Figure 3",
            "With fewer training images ArcGrad loses least.",
            "widemargin reproduce figure3 --size cpu --seeds 3",
            "about 16 minutes per seed beyond Table VII's runs",
            record="figure3_cpu.jsonl",
        ),
        _judge_fractions,
    ),
    (
        Claim(
            "headline",
            f"{_PAPER}, Table IV",
            "ArcGrad's 94.36 % on CIFAR-10+ can be had in an hour on two CPU cores.",
            "widemargin reproduce headline",
            "an hour on two cores",
            record="headline.jsonl",
        ),
        _judge_headline,
    ),
    (
        Claim(
            "rates",
            f"{_PAPER}, Tables III and VII",
            "The lead after 10 epochs at the printed rate (Adam at 0.1), against other rates.",
            "widemargin reproduce rates\nwidemargin reproduce rates --full",
            "30 runs, of the order of 10 minutes each on two cores; --full three runs of about 85 minutes; estimates",
        ),
        None,
    ),
    (
        Claim(
            "headline_losses",
            f"{_PAPER}, Table IV",
            "ArcGrad's lead over softmax and ArcFace in the same hour, three seeds.",
            "widemargin reproduce headline_losses",
            "nine runs of just under an hour on two cores",
        ),
        None,
    ),
    (
        Claim(
            "table4_none",
            f"{_PAPER}, Table IV",
            "Without augmentation ArcGrad has 87.83 % on CIFAR-10, softmax 86.2 %.",
            "widemargin reproduce table4 --size cpu --augment none --seeds 3",
            "24 runs of 5 minutes on two cores",
        ),
        None,
    ),
    (
        Claim(
            "table5",
            f"{_PAPER}, Table V",
            "ArcGrad has 75.12 % on CIFAR-100+, softmax 72.55 %.",
            "widemargin reproduce table5",
            "30 runs of ResNet-34, for GPUs; the files of CIFAR-100 are needed",
        ),
        None,
    ),
    (
        Claim(
            "adaacos",
            "AdaAcos",
            "Without tuning AdaAcos is as good as a tuned ArcFace (ten seeds, MNIST and Omniglot).",
            "widemargin reproduce openset adaacos --seeds 10",
            "380 runs, about 10 minutes each on one core; three seeds are in records/openset_adaacos.jsonl",
        ),
        None,
    ),
    (
        Claim(
            "seeds_96",
            "training scripts",
            "96.35 % and 96.21 % on CIFAR-10 (ResNet-18 at 64 px, ViT-Tiny).",
            "widemargin reproduce seed_resnet18\nwidemargin reproduce seed_vit_tiny",
            "100 epochs each, for GPUs",
        ),
        None,
    ),
    (
        Claim(
            "emnist",
            "AdaAcos",
            "AdaAcos on EMNIST.",
            "widemargin train FOLDER fast adaacos",
            "the files of EMNIST as a folder of images are needed; about 10 minutes per epoch on two "
            "cores, not measured",
        ),
        None,
    ),
    (
        Claim(
            "digiface",
            "training scripts",
            "Margins on DigiFace-1M.",
            "widemargin train FOLDER iresnet18 'arcface(s=64, m=0.5)'",
            "the files of DigiFace-1M are needed; days on a CPU, for GPUs, not measured",
        ),
        None,
    ),
)
