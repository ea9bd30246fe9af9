"""Judges of the claims that records of training runs on images decide; unfinished records are "so far".

An accuracy is that of the test images without flips, of the last epoch. Leads are judged over seeds (`claim.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...stats import holm
from ...viz.svg import Chart
from ..paper import read_paper_table
from .claim import (
    ALPHA,
    CONDITIONS,
    FAILS,
    HOLDS,
    OPEN,
    Claim,
    Lead,
    describe_missing,
    group_values,
    judge_lead,
    measure_lead,
    read_record_lines,
)
from .runs import EXTRA_LOSSES, IMAGE_LOSSES

_SOFTMAX, _ARCFACE, _ARCGRAD = IMAGE_LOSSES["soft"], IMAGE_LOSSES["arcface"], IMAGE_LOSSES["arcgrad"]
_LINE = Mapping[str, Any]


def short_name(loss: str) -> str:
    """The loss as papers write it, without its options.

    >>> short_name("arcgrad(s=10)"), short_name("softmax + 0.02*center(alpha=0.5)"), short_name("softmax")
    ('ArcGrad', 'softmax + center', 'softmax')
    """
    names = {"arcface": "ArcFace", "adacos": "AdaCos", "arcgrad": "ArcGrad", "cosface": "CosFace", "adaacos": "AdaAcos"}
    if "center" in loss:
        return "softmax + center"
    plain = loss.partition("(")[0]
    return names.get(plain, plain)


def _top1(line: _LINE) -> float:
    return float(line["test"]["top1"])


def join_sentences(*sentences: str) -> str:
    """The sentences that are not empty."""
    return " ".join(sentence for sentence in sentences if sentence)


def format_means(values: Mapping[str, Sequence[float]]) -> str:
    """Means by loss, with the number of seeds where it is not the same for all."""
    counts = {len(own) for own in values.values()}
    seeds = f"; {_count(counts.pop(), 'seed')} each" if len(counts) == 1 else ""
    return (
        ", ".join(
            f"{short_name(loss)} {statistics.fmean(own):.2f}" + ("" if seeds else f" ({_count(len(own), 'seed')})")
            for loss, own in values.items()
        )
        + seeds
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _describe_lead(first: str, second: str, values: Mapping[str, Sequence[float]], where: str = "") -> str:
    """ArcGrad minus softmax and the like, with Welch's interval if there are seeds enough; empty if one is missing."""
    ours, theirs = values.get(first, ()), values.get(second, ())
    if not ours or not theirs:
        return ""
    lead = measure_lead(ours, theirs)
    names = f"{short_name(first)} minus {short_name(second)}{where}"
    if lead is None:
        difference = statistics.fmean(ours) - statistics.fmean(theirs)
        return f"{names}: {difference:+.2f} points, from {_count(min(len(ours), len(theirs)), 'seed')} and so no test."
    return f"{names}: {lead.describe('points', f'Welch over {len(ours)} and {len(theirs)} seeds')}."


def _printed_lead(table: int, column: str | None = None, epochs: int = 10) -> float:
    """ArcGrad's lead over softmax in a table of the paper."""
    rows = read_paper_table(table)
    if column is not None:
        values = {row["method"]: float(row[column]) for row in rows}
        return values["arcgrad"] - values["soft"]
    (row,) = (row for row in rows if int(row["epochs"]) == epochs)
    return float(row["arcgrad"]) - float(row["soft"])


def _strip(values: Mapping[str, Sequence[float]], title: str, paper: float | None = None) -> Chart:
    from ...viz.charts import draw_strip_plot
    from ...viz.colours import loss_colours

    names = list(values)
    colours = loss_colours(names)
    rows = [list(own) for own in values.values()]
    return draw_strip_plot(names, rows, [paper] * len(rows), [colours[k] for k in names], "accuracy in percent", title)


# ---------------------------------------------------------------- accuracy of six methods


def judge_epochs(claim: Claim, path: Path) -> Claim:
    """Table VII in CPU size: ArcGrad's lead after 10 epochs."""
    return _judge_table(
        claim,
        path,
        _printed_lead(7),
        2,
        "In CPU size (a small network at a rate at which all losses learn, 10 epochs)",
        "Accuracy after 10 epochs",
    )


def judge_no_augmentation(claim: Claim, path: Path) -> Claim:
    """Table IV without augmentation in CPU size."""
    where = "In CPU size (a small network, 10 epochs, no augmentation)"
    return _judge_table(claim, path, _printed_lead(4, "cifar10"), 3, where, "Accuracy without augmentation", "none")


def _judge_table(
    claim: Claim, path: Path, printed: float, seeds: int, where: str, title: str, augment: str = "paper"
) -> Claim:
    """ArcGrad's lead over softmax in a table of all methods."""
    lines = [line for line in read_record_lines(path) if line["augment"] == augment]
    losses = [*IMAGE_LOSSES.values(), *EXTRA_LOSSES.values()]
    found = group_values(lines, lambda line: line["loss"], _top1)
    values = {loss: found[loss] for loss in losses if loss in found}
    if not values:
        return claim
    missing = describe_missing(
        {f"seed {seed}": losses for seed in range(seeds)},
        {f"seed {k}": [line["loss"] for line in lines if line["seed"] == k] for k in range(seeds)},
    )
    lead = measure_lead(values.get(_ARCGRAD, ()), values.get(_SOFTMAX, ()))
    text = join_sentences(
        missing,
        f"{where}: {format_means(values)}.",
        _describe_lead(_ARCGRAD, _SOFTMAX, values),
        f"The paper prints {printed:+.2f}.",
    )
    status = OPEN if missing else judge_lead(lead, printed)
    return replace(claim, status=status, finding=text, chart=_strip(values, title))


def judge_rates(claim: Claim, path: Path) -> Claim:
    """Table VII at the printed rate and at others."""
    from ..rates import PRINTED_RATE, QUARTER, RATES, draw_rates

    lines = [line for line in read_record_lines(path) if line.get("lr") is not None]
    small = group_values(
        (line for line in lines if line["model"] == QUARTER),
        lambda line: (line["loss"], float(line["lr"]), int(line["epochs"])),
        _top1,
    )
    full = group_values((line for line in lines if line["model"] == "resnet18"), lambda line: line["loss"], _top1)
    if not small and not full:
        return claim
    losses = list(IMAGE_LOSSES.values())
    at = {lr: {loss: small[loss, lr, 10] for loss in losses if (loss, lr, 10) in small} for lr in reversed(RATES)}
    missing = describe_missing(
        {f"rate {lr:g}": list(map(short_name, losses)) for lr in at},
        {f"rate {lr:g}": list(map(short_name, values)) for lr, values in at.items()},
    )
    by_rate = [
        f"{lr:g}: {statistics.fmean(values[_ARCGRAD]) - statistics.fmean(values[_SOFTMAX]):+.2f}"
        for lr, values in at.items()
        if _ARCGRAD in values and _SOFTMAX in values
    ]
    best = max((lr for lr in at if _SOFTMAX in at[lr]), key=lambda lr: statistics.fmean(at[lr][_SOFTMAX]), default=None)
    has_all_rates = all(_SOFTMAX in values and _ARCGRAD in values for values in at.values())
    longer = [
        f"After {epochs} epochs at {lr:g}: "
        + format_means({loss: small[loss, lr, epochs] for loss in losses if (loss, lr, epochs) in small})
        + "."
        for lr, epochs in sorted({(lr, epochs) for _, lr, epochs in small if epochs != 10}, key=lambda c: (c[1], c[0]))
    ]
    printed = _printed_lead(7)
    text = join_sentences(
        missing,
        "ResNet-18 of quarter width, 10 epochs.",
        f"At {PRINTED_RATE:g}: {format_means(at[PRINTED_RATE])}." if at[PRINTED_RATE] else "",
        f"ArcGrad minus softmax by rate: {', '.join(by_rate)}." if by_rate else "",
        _describe_lead(_ARCGRAD, _SOFTMAX, at[PRINTED_RATE], f" at {PRINTED_RATE:g}"),
        f"The paper prints {printed:+.2f}.",
        _describe_lead(_ARCGRAD, _SOFTMAX, at[best], f" at {best:g}, softmax's best rate (chosen on the test images)")
        if best is not None and best != PRINTED_RATE and has_all_rates
        else "",
        *longer,
        f"The whole ResNet-18 at {PRINTED_RATE:g}: {format_means(full)}." if full else "",
    )
    means: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for (loss, lr, epochs), values in small.items():
        means.setdefault((loss, epochs), []).append((lr, statistics.fmean(values)))
    lead = measure_lead(at[PRINTED_RATE].get(_ARCGRAD, ()), at[PRINTED_RATE].get(_SOFTMAX, ()))
    status = judge_lead(lead, printed)
    if status in (HOLDS, CONDITIONS):
        at_best = None if best is None else measure_lead(at[best].get(_ARCGRAD, ()), at[best].get(_SOFTMAX, ()))
        if not has_all_rates or at_best is None:
            status = OPEN
        elif at_best.low <= 0:
            status = CONDITIONS  # of the rate
    return replace(claim, status=OPEN if missing else status, finding=text, chart=draw_rates(means))


# ---------------------------------------------------------------- the headline


def judge_headline(claim: Claim, path: Path) -> Claim:
    """ArcGrad's printed accuracy within an hour: single attempts, and three seeds where `headline_losses` is there."""
    from ..headline import PAPER_TOP1
    from ..headline_losses import SEEDS

    lines = read_record_lines(path)
    other = path.with_name("headline_losses.jsonl")
    seeds = [line for line in read_record_lines(other) if line["loss"] == _ARCGRAD] if other.is_file() else []
    rows = {"attempts": lines} | ({"three seeds": seeds} if seeds else {})
    values = {
        f"{name}, {how}": [float(line["test"][key]) for line in own]
        for name, own in rows.items()
        for how, key in (("with flips", "top1_flip"), ("without", "top1"))
    }
    missing = describe_missing({"seeds": list(SEEDS)}, {"seeds": [line["seed"] for line in seeds]}) if seeds else ""
    plain = list(map(_top1, seeds))
    status, tested = OPEN, "One seed for each attempt, so no verdict."
    if len(plain) == len(SEEDS):
        lead = _interval_of_mean(plain)
        status = HOLDS if lead.low >= PAPER_TOP1 else FAILS if lead.high < PAPER_TOP1 else OPEN
        tested = f"Three seeds, without flips: {lead.difference:.2f} % on average, 95 % interval {lead.low:.2f} to "
        tested += f"{lead.high:.2f} (Student's t)."
    text = join_sentences(
        missing,
        "Within an hour on two CPU cores, "
        + "; ".join(f"{name}: {', '.join(f'{v:.2f}' for v in own)} %" for name, own in values.items())
        + f". The paper has {PAPER_TOP1:.2f} % with ResNet-18 on a GPU.",
        tested,
    )
    return replace(claim, status=status, finding=text, chart=_strip(values, "CIFAR-10 within an hour", PAPER_TOP1))


def _interval_of_mean(values: Sequence[float]) -> Lead:
    from scipy.stats import t

    mean = statistics.fmean(values)
    half = float(t.ppf(1 - ALPHA / 2, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return Lead(mean, mean - half, mean + half, float("nan"))


def judge_headline_losses(claim: Claim, path: Path) -> Claim:
    """ArcGrad's lead over softmax and ArcFace with the settings of the headline."""
    from ..headline_losses import METHODS, SEEDS

    lines, losses = read_record_lines(path), [IMAGE_LOSSES[method] for method in METHODS]
    found = group_values(lines, lambda line: line["loss"], _top1)
    values = {loss: found[loss] for loss in losses if loss in found}
    if not values:
        return claim
    missing = describe_missing(
        {f"seed {seed}": list(map(short_name, losses)) for seed in SEEDS},
        {f"seed {k}": [short_name(line["loss"]) for line in lines if line["seed"] == k] for k in SEEDS},
    )
    leads = {loss: measure_lead(values.get(_ARCGRAD, ()), values.get(loss, ())) for loss in (_SOFTMAX, _ARCFACE)}
    tested = {loss: lead for loss, lead in leads.items() if lead is not None}
    adjusted = dict(zip(tested, map(float, holm([lead.p for lead in tested.values()])), strict=True)) if tested else {}
    ahead = [loss for loss, lead in tested.items() if adjusted[loss] <= ALPHA and lead.difference > 0]
    behind = [loss for loss, lead in tested.items() if adjusted[loss] <= ALPHA and lead.difference < 0]
    status = HOLDS if len(ahead) == 2 else FAILS if behind else CONDITIONS if ahead else OPEN
    text = join_sentences(
        missing,
        f"Without flips: {format_means(values)}.",
        *(_describe_lead(_ARCGRAD, loss, values) for loss in leads),
        f"With Holm's correction {', '.join(f'p = {p:.2g} against {short_name(k)}' for k, p in adjusted.items())}."
        if adjusted
        else "",
    )
    chart = _strip(values, "CIFAR-10 within an hour, by loss")
    return replace(claim, status=OPEN if missing else status, finding=text, chart=chart)


# ---------------------------------------------------------------- fewer images


def judge_fractions(claim: Claim, path: Path) -> Claim:
    """Figure 3: what each loss loses from all training images to a tenth of them."""
    from ...viz.charts import Line, draw_line_chart
    from ...viz.colours import loss_colours
    from ..figure3 import FIGURE3_METHODS, TRAIN_FRACTIONS

    losses = [IMAGE_LOSSES[method] for method in FIGURE3_METHODS]
    lines = [line for line in read_record_lines(path) if line["loss"] in losses]
    values = group_values(lines, lambda line: (line["loss"], float(line["train_fraction"])), _top1)
    seeds = range(max(3, 1 + max((int(line["seed"]) for line in lines), default=0)))
    missing = describe_missing(
        {f"seed {k}": [_name_fraction(loss, f) for f in TRAIN_FRACTIONS for loss in losses] for k in seeds},
        {
            f"seed {k}": [_name_fraction(line["loss"], line["train_fraction"]) for line in lines if line["seed"] == k]
            for k in seeds
        },
    )
    by_seed = {(li["loss"], float(li["train_fraction"]), int(li["seed"])): _top1(li) for li in lines}
    ends = max(TRAIN_FRACTIONS), min(TRAIN_FRACTIONS)
    falls = {
        loss: [
            by_seed[loss, ends[0], k] - by_seed[loss, ends[1], k]
            for k in seeds
            if all((loss, end, k) in by_seed for end in ends)
        ]
        for loss in losses
    }
    falls = {loss: own for loss, own in falls.items() if own}
    others = [loss for loss in falls if loss != _ARCGRAD]
    # Positive if the other loss falls further.
    leads = {loss: measure_lead(falls[loss], falls.get(_ARCGRAD, ())) for loss in others}
    tested = {loss: lead for loss, lead in leads.items() if lead is not None}
    adjusted = dict(zip(tested, map(float, holm([lead.p for lead in tested.values()])), strict=True)) if tested else {}
    less = [loss for loss in tested if adjusted[loss] <= ALPHA and tested[loss].difference > 0]
    more = [loss for loss in tested if adjusted[loss] <= ALPHA and tested[loss].difference < 0]
    status = HOLDS if len(less) == len(losses) - 1 else FAILS if more else CONDITIONS if less else OPEN
    best = {
        f: max((loss for loss in losses if (loss, f) in values), key=lambda loss: statistics.fmean(values[loss, f]))
        for f in TRAIN_FRACTIONS
        if any((loss, f) in values for loss in losses)
    }
    tests = ", ".join(f"{short_name(k)} {lead.describe('', f'p = {adjusted[k]:.2g}')}" for k, lead in tested.items())
    text = join_sentences(
        missing,
        "In CPU size (a small network, 10 epochs), best at "
        + ", ".join(f"{100 * f:g} %: {short_name(k)} {statistics.fmean(values[k, f]):.2f}" for f, k in best.items())
        + ".",
        f"Points lost from all images to a tenth: {format_means(falls)}." if falls else "",
        f"Beyond ArcGrad's loss (Welch, Holm's correction): {tests}." if tests else "One seed, so no test.",
    )
    drawn = {
        loss: [(100 * f, statistics.fmean(values[loss, f])) for f in reversed(TRAIN_FRACTIONS) if (loss, f) in values]
        for loss in losses
    }
    whole = {loss: points for loss, points in drawn.items() if len(points) == len(TRAIN_FRACTIONS)}
    colours = loss_colours(losses)
    chart = None
    if whole:
        chart = draw_line_chart(
            [Line(loss, points, colours[loss]) for loss, points in whole.items()],
            "percent of the training images",
            "accuracy in percent",
            "Accuracy by the share of the training images",
        )
    return replace(claim, status=OPEN if missing else status, finding=text, chart=chart)


def _name_fraction(loss: str, fraction: float) -> str:
    return f"{short_name(loss)} at {100 * fraction:g} %"


# ---------------------------------------------------------------- AdaAcos


CLAIM_SEEDS = 10
AS_GOOD = -0.5
"""Points below which no end of the interval may lie for "as good as", as for self-chosen scales."""


def judge_tuning(claim: Claim, path: Path) -> Claim:
    """AdaAcos without tuning against ArcFace, whose setting is the best on held-out images."""
    from .openset_claims import CLAIM_DATASETS

    lines, parts, verdicts = read_record_lines(path), [], []
    planned = [
        (dataset.base_config.data, method.name)
        for dataset in CLAIM_DATASETS
        for method in (*dataset.arcface_grid().values(), *dataset.untuned_methods())
    ]
    missing = describe_missing(
        {f"seed {k}": planned for k in range(CLAIM_SEEDS)},
        {f"seed {k}": [(li["data"], li["loss"]) for li in lines if li["seed"] == k] for k in range(CLAIM_SEEDS)},
    )
    for dataset in CLAIM_DATASETS:
        own = [line for line in lines if line["data"] == dataset.base_config.data]
        grid = [method.name for method in dataset.arcface_grid().values()]
        val = group_values(
            (li for li in own if "val" in li), lambda line: line["loss"], lambda line: float(line["val"])
        )
        tuned = max((loss for loss in grid if loss in val), key=lambda loss: statistics.fmean(val[loss]), default=None)
        by_seed = {(line["loss"], int(line["seed"])): float(line["test"][dataset.metric]) for line in own}
        # Runs of a seed share their split.
        gaps = [
            v - by_seed[tuned, k] for (loss, k), v in by_seed.items() if loss == "adaacos" and (tuned, k) in by_seed
        ]
        if len(gaps) < 2:
            verdicts.append(OPEN)
            continue
        found = _interval_of_mean(gaps)
        verdicts.append(HOLDS if found.low > AS_GOOD else FAILS if found.high < 0 else OPEN)
        difference = found.describe("", f"Student's t over {_count(len(gaps), 'seed')}")
        parts.append(f"{dataset.title}, {dataset.unit}: AdaAcos minus {tuned}, tuned on held-out images, {difference}")
    if not parts:
        return claim
    status = HOLDS if set(verdicts) == {HOLDS} else CONDITIONS if HOLDS in verdicts and FAILS in verdicts else OPEN
    status = FAILS if set(verdicts) == {FAILS} else status
    as_good = f"As good means: no end of the interval below {AS_GOOD:g} points."
    return replace(
        claim, status=OPEN if missing else status, finding=join_sentences(missing, f"{'; '.join(parts)}.", as_good)
    )
