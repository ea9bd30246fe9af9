"""The table of an open-set recipe: lines and seeds, done as far as they are missing, with intervals and verdicts.

Runs whose figures an older version computed are judged again from what they kept; only what kept nothing is trained
again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...io import bounded
from ...io.errors import InputError
from ...io.locks import lock_folder
from ...io.writing import write_text_atomic
from ...metrics.intervals import (
    MIN_IDENTITIES,
    VarianceEstimate,
    difference_p_value,
    jackknife_variance,
    logit,
    logit_interval,
    sum_variances,
)
from ...recognition.evaluation import EVALUATION_VERSION, EmbeddingMetrics
from ...stats import holm
from ...training.config import TrainConfig
from .openset_methods import PEER_LOSSES, OpenSetMethod
from .runs import read_record, run_folder, write_records

# What is kept of a run for intervals over identities, and which lines of a table these tell apart.
#
# A figure of a line is its mean over splits. Two things make it uncertain: the identities that happened to be judged on,
# and how a network happened to be trained. The first is the spread of the mean without each identity in turn, which
# leaves every split where it was judged: splits overlap, so their identities are counted once. The second is the spread
# over the splits, which holds some of the first as well; both are added, so that intervals are wide rather than narrow.
#
# Three splits say little of their spread, and one of many pairs of lines has a small one by luck. So a pair has at least
# the spread over splits that pairs have in the middle: their median, less that of χ² over its degrees of freedom.

IDENTITIES_FILE = "identities.json"
ALPHA = 0.05
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SplitScore:
    """A figure of one run, in percent, and the same without each of its identities."""

    value: float
    leave_one_out: Mapping[str, float]


@dataclass(frozen=True)
class MethodComparison:
    """Two lines: their difference with its 95 % interval, and the p-value after Holm's correction over all pairs."""

    method_a: str
    method_b: str
    difference: float
    half_width: float
    p: float

    @property
    def is_significant(self) -> bool:
        return self.p <= ALPHA


def save_evaluation(folder: Path, evaluation: EmbeddingMetrics, identity_names: Sequence[str]) -> None:
    """Write a judgement beside the run's record, and the record's figures anew."""
    path = folder / "record.json"
    record = bounded.read_json(path)
    figures = {name: value for name, value in evaluation.values.items() if name != "angles"}
    angles = {**record.get("angles", {}), **evaluation.values.get("angles", {})}
    record |= {"test": figures, "angles": angles, "intervals": evaluation.intervals, "evaluation": EVALUATION_VERSION}
    without = {
        name: values.tolist() for name, values in evaluation.leave_one_out.items() if len(values) == len(identity_names)
    }
    facts = {"evaluation": EVALUATION_VERSION, "identities": list(identity_names), "without": without}
    write_text_atomic(folder / IDENTITIES_FILE, json.dumps(facts, ensure_ascii=False))
    write_text_atomic(path, json.dumps(record, indent=1))


def is_current(folder: Path) -> bool:
    """Whether a finished run's figures and identities are of this version."""
    try:
        return all(
            bounded.read_json(folder / name).get("evaluation") == EVALUATION_VERSION
            for name in ("record.json", IDENTITIES_FILE)
        )
    except (OSError, ValueError, AttributeError):
        return False


def read_split_score(folder: Path, metric: str, value: float | None) -> SplitScore | None:
    """A figure of a run; None where it is refused or not known without each identity."""
    try:
        facts = bounded.read_json(folder / IDENTITIES_FILE)
        values = facts["without"].get(metric)
        if value is None or values is None:
            return None
        return SplitScore(value, dict(zip(facts["identities"], map(float, values), strict=True)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            f"{folder / IDENTITIES_FILE}: not what a recipe writes; delete it to have the run judged again"
        ) from None


def _leave_one_out_means(splits: Sequence[SplitScore]) -> Floats:
    """The mean over splits without each identity that any of them has."""
    names = sorted({name for split in splits for name in split.leave_one_out})
    table = [[split.leave_one_out.get(name, split.value) for name in names] for split in splits]
    found: Floats = np.array(table).mean(0)
    return found


def pooled_interval(splits: Sequence[SplitScore]) -> tuple[float, float] | None:
    """95 % interval of the mean over splits, in percent; None for too few identities."""
    means = _leave_one_out_means(splits) / 100.0
    if len(means) < MIN_IDENTITIES:
        return None
    shares = [split.value / 100.0 for split in splits]
    parts = [jackknife_variance(logit(means)), *_split_spread(logit(shares))]
    ends = logit_interval(float(np.mean(shares)), sum_variances(parts))
    return None if ends is None else (100.0 * ends[0], 100.0 * ends[1])


def _split_spread(values: Floats) -> list[VarianceEstimate]:
    """The spread of a mean of values, of two or more."""
    count = len(values)
    return [VarianceEstimate(float(values.var(ddof=1)) / count, count - 1.0)] if count > 1 else []


def compare_methods(scores_by_method: Mapping[str, Mapping[int, SplitScore]]) -> list[MethodComparison]:
    """Every two lines on the splits that both have, by seed; none where fewer than two splits are shared."""
    from scipy.special import stdtrit

    gaps: dict[tuple[str, str], Floats] = {}
    of_identities: dict[tuple[str, str], VarianceEstimate] = {}
    for one, other in combinations(scores_by_method, 2):
        seeds = [seed for seed in scores_by_method[one] if seed in scores_by_method[other]]
        ours, theirs = ([scores_by_method[name][seed] for seed in seeds] for name in (one, other))
        if any(a.leave_one_out.keys() != b.leave_one_out.keys() for a, b in zip(ours, theirs, strict=True)):
            raise InputError(f"{one} and {other} were judged on other identities; delete the older of their runs")
        without = _leave_one_out_means(ours) - _leave_one_out_means(theirs) if len(seeds) > 1 else np.empty(0)
        if len(without) >= MIN_IDENTITIES:
            gaps[one, other] = np.array([a.value - b.value for a, b in zip(ours, theirs, strict=True)])
            of_identities[one, other] = jackknife_variance(without)
    if not gaps:
        return []
    found = []
    for pair, of_splits in zip(gaps, _apply_median_floor(list(gaps.values()), len(scores_by_method)), strict=True):
        total, difference = sum_variances([of_identities[pair], of_splits]), float(gaps[pair].mean())
        reach = float(stdtrit(total.degrees_of_freedom, 1 - ALPHA / 2)) * float(np.sqrt(total.variance))
        found.append(MethodComparison(*pair, difference, reach, difference_p_value(difference, total)))
    adjusted = holm([each.p for each in found])
    return [replace(each, p=float(p)) for each, p in zip(found, adjusted, strict=True)]


def _apply_median_floor(differences: Sequence[Floats], num_methods: int) -> list[VarianceEstimate]:
    """Spread of each mean of differences over splits: its own, or that of pairs in the middle if that is larger."""
    from scipy.special import gammaincinv

    own = [_split_spread(each)[0] for each in differences]
    # Per split, over the median of χ² / its degrees of freedom: a single pair's variance has that one.
    per_split = [
        each.variance
        * len(values)
        * each.degrees_of_freedom
        / (2 * float(gammaincinv(each.degrees_of_freedom / 2, 0.5)))
        for each, values in zip(own, differences, strict=True)
    ]
    usual = float(np.median(per_split))
    found = []
    for each, values in zip(own, differences, strict=True):
        pooled = VarianceEstimate(
            usual / len(values), max((num_methods - 1) * each.degrees_of_freedom / 2, each.degrees_of_freedom)
        )
        found.append(each if each.variance > pooled.variance else pooled)
    return found


# Figure of a record → its title, whether high or low is good, digits.
METRICS: dict[str, tuple[str, str, int]] = {
    "auc": ("AUC", "high", 2),
    "eer": ("EER", "low", 2),
    "pair_accuracy": ("pairs right in folds", "high", 2),
    "recall1": ("recall@1", "high", 2),
    "map_at_r": ("MAP@R", "high", 2),
    "five_way_one_shot": ("5-way-1-shot", "high", 2),
    "intra": ("image to centre, rad", "none", 3),
    "c_inter": ("C-Inter, rad", "none", 3),
}
_PLOTTED_METRICS = ("auc", "recall1", "five_way_one_shot")
COMPARED_METRICS = ("auc", "eer", "pair_accuracy", "recall1", "map_at_r")
"""Figures by which all lines are compared with each other."""


def complete_openset_runs(
    methods: Sequence[OpenSetMethod], seeds: range, options: argparse.Namespace, recipe: str
) -> Path | None:
    """Do what is missing, seed by seed; write the records of all that is finished. None where only a list was asked."""
    runs_dir, out = Path(options.runs_dir), Path(options.out or f"openset_{recipe}")
    wanted = [(line, line.config_for_seed(seed)) for seed in seeds for line in methods]
    todo = [(line, run) for line, run in wanted if read_record(run, runs_dir) is None]
    if options.list:
        for line, run in wanted:
            print(_run_state(line, run, runs_dir), run_folder(run, runs_dir))
        return None
    with lock_folder(out):
        _execute_missing(todo, runs_dir, options.data_dir)
        _reevaluate_outdated(
            [each for each in wanted if _run_state(*each, runs_dir) == _STATE_OUTDATED], runs_dir, options.data_dir
        )
        count = write_records([run for _, run in wanted], runs_dir, out / "records.jsonl")
    print(f"{count} of {len(wanted)} runs are finished")
    return out


_STATE_MISSING, _STATE_OUTDATED, _STATE_FINISHED = "missing ", "to judge", "finished"


def _run_state(method: OpenSetMethod, config: TrainConfig, runs_dir: Path) -> str:
    """Whether a run is to be done, to be judged again, or neither."""
    if read_record(config, runs_dir) is None:
        return _STATE_MISSING
    return (
        _STATE_OUTDATED
        if method.evaluate is not None and not is_current(run_folder(config, runs_dir))
        else _STATE_FINISHED
    )


def _execute_missing(todo: Sequence[tuple[OpenSetMethod, TrainConfig]], runs_dir: Path, data_dir: str | None) -> None:
    """One run after the other; one that diverges does not keep the others from being done."""
    from ...io.resources import keep_freed_memory
    from ...training.trainer import DivergedError

    keep_freed_memory()
    for number, (line, run) in enumerate(todo, 1):
        print(f"run {number} of {len(todo)}: {line.name}, seed {run.seed}", file=sys.stderr, flush=True)
        try:
            line.execute(run, run_folder(run, runs_dir), data_dir)
        except DivergedError as error:
            print(f"{line.name}, seed {run.seed}: {error}", file=sys.stderr, flush=True)


def _reevaluate_outdated(
    outdated: Sequence[tuple[OpenSetMethod, TrainConfig]], runs_dir: Path, data_dir: str | None
) -> None:
    """Figures of finished runs from what they kept, and without each identity; one that kept nothing is done again."""
    for number, (line, run) in enumerate(outdated, 1):
        folder = run_folder(run, runs_dir)
        print(f"judging {number} of {len(outdated)}: {line.name}, seed {run.seed}", file=sys.stderr, flush=True)
        assert line.evaluate is not None
        found = line.evaluate(run, folder, data_dir)
        if found is None:
            print(f"{line.name}, seed {run.seed}: kept no network and is trained again", file=sys.stderr, flush=True)
            line.execute(run, folder, data_dir)
            found = line.evaluate(run, folder, data_dir)
        if found is not None:
            save_evaluation(folder, *found)


def metric_by_seed(method: OpenSetMethod, seeds: range, runs_dir: Path, metric: str) -> dict[int, float]:
    """A figure of the finished runs of a line."""
    found = {}
    for seed in seeds:
        record = read_record(method.config_for_seed(seed), runs_dir)
        value = None if record is None else record["test"].get(metric, record["angles"].get(metric))
        if value is not None:
            found[seed] = float(value)
    return found


def metric_values(method: OpenSetMethod, seeds: range, runs_dir: Path, metric: str) -> list[float]:
    """The same without the seeds."""
    return list(metric_by_seed(method, seeds, runs_dir, metric).values())


def interval_half_width(numbers: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of their mean (Student's t); None for fewer than two."""
    if len(numbers) < 2:
        return None
    from scipy.stats import t

    return float(t.ppf(0.975, len(numbers) - 1)) * statistics.stdev(numbers) / math.sqrt(len(numbers))


def format_mean_interval(numbers: Sequence[float], digits: int) -> str:
    """Mean and interval."""
    if not numbers:
        return "–"
    half = interval_half_width(numbers)
    return f"{statistics.fmean(numbers):.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def describe_paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """In words, seed by seed: the same split, the same batches; nothing where too few seeds are finished."""
    gaps = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    half = interval_half_width(gaps)
    if half is None:
        return ""
    mean = statistics.fmean(gaps)
    word = "better than" if mean > half else "worse than" if mean < -half else "not told apart from"
    return f"{word} ({mean:+.2f} ± {half:.2f})"


def split_scores_by_seed(method: OpenSetMethod, seeds: range, runs_dir: Path, metric: str) -> dict[int, SplitScore]:
    """A figure of the finished runs of a line with what it is without each identity, by seed."""
    values_of = metric_by_seed(method, seeds, runs_dir, metric)
    found = {
        seed: read_split_score(run_folder(method.config_for_seed(seed), runs_dir), metric, value)
        for seed, value in values_of.items()
    }
    return {seed: split for seed, split in found.items() if split is not None}


def format_metric_interval(method: OpenSetMethod, seeds: range, runs_dir: Path, metric: str) -> str:
    """Mean over the splits, with the interval over identities and splits where there is one."""
    numbers, digits = metric_values(method, seeds, runs_dir, metric), METRICS[metric][2]
    if METRICS[metric][1] == "none":
        return format_mean_interval(numbers, digits)
    if not numbers:
        return "–"
    splits = list(split_scores_by_seed(method, seeds, runs_dir, metric).values())
    given = [record for seed in seeds if (record := read_record(method.config_for_seed(seed), runs_dir)) is not None]
    refused = any(record.get("intervals", {}).get(metric) is None for record in given)  # few events, in one split
    ends = None if refused or len(splits) < len(numbers) else pooled_interval(splits)
    mean = f"{statistics.fmean(numbers):.{digits}f}"
    return mean if ends is None else f"{mean} ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"


def compare_methods_by_metric(
    methods: Sequence[OpenSetMethod], seeds: range, runs_dir: Path, metric: str
) -> list[MethodComparison]:
    """Every two lines by a figure."""
    return compare_methods({line.name: split_scores_by_seed(line, seeds, runs_dir, metric) for line in methods})


def significant_differences(
    comparisons: Sequence[MethodComparison], metric: str
) -> dict[str, tuple[list[str], list[str]]]:
    """For every line those that it is better and those that it is worse than."""
    names = dict.fromkeys(name for each in comparisons for name in (each.method_a, each.method_b))
    result: dict[str, tuple[list[str], list[str]]] = {name: ([], []) for name in names}
    for each in comparisons:
        if each.is_significant:
            ahead = (each.difference > 0) == (METRICS[metric][1] == "high")
            better, worse = (each.method_a, each.method_b) if ahead else (each.method_b, each.method_a)
            result[better][0].append(worse)
            result[worse][1].append(better)
    return result


def _better_than_sentences(comparisons: Sequence[MethodComparison], metric: str) -> list[str]:
    """A sentence for every line that is better than others."""
    apart = significant_differences(comparisons, metric)
    return [f"{name} is better than {', '.join(better)}" for name, (better, _) in apart.items() if better]


def verdict_sentences(comparisons_by_metric: Mapping[str, Sequence[MethodComparison]]) -> list[str]:
    """How many lines each figure tells apart, and ours against the peer's of the same kind."""
    sentences = []
    for figure, rows in comparisons_by_metric.items():
        if rows:
            apart = sum(each.is_significant for each in rows)
            sentences.append(f"{METRICS[figure][0]}: {apart} of {len(rows)} pairs of lines are told apart")
    for figure, rows in comparisons_by_metric.items():
        for each in rows:
            if PEER_LOSSES.get(each.method_b) == each.method_a:
                ahead = (each.difference > 0) == (METRICS[figure][1] == "high")
                word = ("better than" if ahead else "worse than") if each.is_significant else "not told apart from"
                gap = f"{each.difference:+.2f} ± {each.half_width:.2f}, p = {each.p:.2g}"
                sentences.append(f"{each.method_a}, {METRICS[figure][0]}: {word} {each.method_b} ({gap})")
    return sentences


def write_openset_report(
    methods: Sequence[OpenSetMethod], seeds: range, options: argparse.Namespace, out: Path, title: str, sub: str
) -> None:
    """The table in the terminal and the page."""
    from rich.table import Table

    from ...viz import page
    from ...viz.charts import draw_strip_plot, loss_colour
    from ...viz.terminal import console

    place = Path(options.runs_dir)
    cells = {(line.name, figure): metric_values(line, seeds, place, figure) for line in methods for figure in METRICS}
    best = {figure: _best_method_name(methods, cells, figure) for figure in METRICS}
    grid = Table(title=title, title_justify="left", title_style="bold")
    grid.add_column("loss", no_wrap=True)
    for name, _, _ in METRICS.values():
        grid.add_column(name, justify="right")
    rows = []
    for line in methods:
        texts = [(format_metric_interval(line, seeds, place, f), best[f] == line.name) for f in METRICS]
        grid.add_row(line.name, *(f"[bold]{text}[/]" if wins else text for text, wins in texts))
        rows.append([(line.name, ""), *((text, "best" if wins else "") for text, wins in texts)])
    console(width=240).print(grid)
    found = {figure: compare_methods_by_metric(methods, seeds, place, figure) for figure in COMPARED_METRICS}
    write_text_atomic(out / "compared.json", json.dumps(_comparison_rows(found), indent=1, ensure_ascii=False) + "\n")
    said = verdict_sentences(found)
    for sentence in said:
        print(sentence)
    for figure in COMPARED_METRICS:
        for sentence in _better_than_sentences(found[figure], figure):
            print(f"{METRICS[figure][0]}: {sentence}")
    body = [page.table(["loss", *(name for name, _, _ in METRICS.values())], rows)]
    if said:
        body += [
            page.heading("What is told apart", _COMPARISON_NOTE),
            *(page.paragraph(sentence, "note") for sentence in said),
        ]
    for figure in COMPARED_METRICS:
        ahead = _better_than_sentences(found[figure], figure)
        if found[figure]:
            body += [page.heading(f"Told apart by {METRICS[figure][0]}", "" if ahead else "None are.")]
            body += [page.paragraph(sentence) for sentence in ahead]
    for figure in _PLOTTED_METRICS:
        there = [line.name for line in methods if cells[line.name, figure]]
        if there:
            picture = draw_strip_plot(
                there,
                [cells[name, figure] for name in there],
                [None] * len(there),
                [loss_colour(name) for name in there],
                "percent",
                METRICS[figure][0],
            )
            body += [page.heading(METRICS[figure][0], "A dot is a split, the bar their mean."), page.figure(picture)]
    body += [page.heading("Again"), page.code(f"widemargin reproduce openset {options.which} --seeds {len(seeds)}")]
    path = out / "report.html"
    path.write_text(page.html_page(title, sub, body), encoding="utf-8")
    print(f"wrote {path}, {out / 'records.jsonl'} and {out / 'compared.json'}")


def _comparison_rows(comparisons_by_metric: Mapping[str, Sequence[MethodComparison]]) -> list[dict[str, Any]]:
    """Every comparison, for a file."""
    return [
        {"figure": name, **asdict(each), "apart": each.is_significant}
        for name, rows in comparisons_by_metric.items()
        for each in rows
    ]


_COMPARISON_NOTE = (
    "Every two lines on the same splits and identities: the difference of their means with its 95 % interval over "
    f"identities and splits. Told apart are those with p of at most {ALPHA:g} after Holm's correction over all pairs "
    "(p is given after it); all others are not, whatever their order in the table."
)


def _best_method_name(
    methods: Sequence[OpenSetMethod], cells: Mapping[tuple[str, str], list[float]], metric: str
) -> Any:
    means = {line.name: statistics.fmean(cells[line.name, metric]) for line in methods if cells[line.name, metric]}
    kind = METRICS[metric][1]
    if not means or kind == "none":
        return None
    return (max if kind == "high" else min)(means, key=lambda name: means[name])
