"""The table of an open-set recipe: runs of all methods and seeds, intervals, comparisons, and the page.

Missing runs are trained. Runs evaluated by an older version are evaluated again from their saved files; only a run
without saved files is trained again.

A method's value is its mean over splits (one per seed). It is uncertain for two reasons: the identities in the
evaluation, and the training of the network. The first is the jackknife variance of the mean, leaving out each identity
in turn in every split that has it: splits overlap, so identities are counted once. The second is the variance over
splits, which includes some of the first; both are added, so that intervals are wide rather than narrow.

Three splits estimate their variance poorly, and one of many pairs of methods has a small one by chance. So a pair has
at least the typical variance over splits: the median over all pairs, corrected for the median of χ² over its degrees
of freedom.
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
from ...io.locks import lock_folder, write_text_atomic
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

IDENTITIES_FILE = "identities.json"
ALPHA = 0.05
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SplitScore:
    """A metric of one run, in percent, and its values without each identity."""

    value: float
    leave_one_out: Mapping[str, float]


@dataclass(frozen=True)
class MethodComparison:
    """Two methods: their difference with its 95 % interval, and the p-value after Holm's correction over all pairs."""

    method_a: str
    method_b: str
    difference: float
    half_width: float
    p: float

    @property
    def is_significant(self) -> bool:
        return self.p <= ALPHA


def save_evaluation(folder: Path, evaluation: EmbeddingMetrics, identity_names: Sequence[str]) -> None:
    """Write an evaluation to the run's record, and its leave-one-out values to a file next to it."""
    path = folder / "record.json"
    record = bounded.read_json(path)
    metrics = {name: value for name, value in evaluation.values.items() if name != "angles"}
    angles = {**record.get("angles", {}), **evaluation.values.get("angles", {})}
    record |= {"test": metrics, "angles": angles, "intervals": evaluation.intervals, "evaluation": EVALUATION_VERSION}
    leave_one_out = {
        name: values.tolist() for name, values in evaluation.leave_one_out.items() if len(values) == len(identity_names)
    }
    content = {
        "evaluation": EVALUATION_VERSION,
        "identities": list(identity_names),
        "leave_one_out": leave_one_out,
    }
    write_text_atomic(folder / IDENTITIES_FILE, json.dumps(content, ensure_ascii=False))
    write_text_atomic(path, json.dumps(record, indent=1))


def is_evaluation_current(folder: Path) -> bool:
    """True if a finished run was evaluated by this version."""
    try:
        return all(
            bounded.read_json(folder / name).get("evaluation") == EVALUATION_VERSION
            for name in ("record.json", IDENTITIES_FILE)
        )
    except (OSError, ValueError, AttributeError):
        return False


def read_split_score(folder: Path, metric: str, value: float | None) -> SplitScore | None:
    """Read a metric of a run; None if it has no value or no leave-one-out values."""
    try:
        content = bounded.read_json(folder / IDENTITIES_FILE)
        values = content["leave_one_out"].get(metric)
        if value is None or values is None:
            return None
        return SplitScore(value, dict(zip(content["identities"], map(float, values), strict=True)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            f"{folder / IDENTITIES_FILE}: not a file of this recipe; delete it to evaluate the run again"
        ) from None


def _leave_one_out_means(splits: Sequence[SplitScore]) -> Floats:
    """Means over splits, leaving out each identity in any of them."""
    names = sorted({name for split in splits for name in split.leave_one_out})
    table = [[split.leave_one_out.get(name, split.value) for name in names] for split in splits]
    means: Floats = np.array(table).mean(0)
    return means


def pooled_interval(splits: Sequence[SplitScore]) -> tuple[float, float] | None:
    """95 % interval of the mean over splits, in percent; None for too few identities."""
    means = _leave_one_out_means(splits) / 100.0
    if len(means) < MIN_IDENTITIES:
        return None
    shares = [split.value / 100.0 for split in splits]
    parts = [jackknife_variance(logit(means)), *_split_variance(logit(shares))]
    ends = logit_interval(float(np.mean(shares)), sum_variances(parts))
    return None if ends is None else (100.0 * ends[0], 100.0 * ends[1])


def _split_variance(values: Floats) -> list[VarianceEstimate]:
    """The variance of a mean of values, as a list of one; empty for fewer than two values."""
    count = len(values)
    return [VarianceEstimate(float(values.var(ddof=1)) / count, count - 1.0)] if count > 1 else []


def compare_methods(scores_by_method: Mapping[str, Mapping[int, SplitScore]]) -> list[MethodComparison]:
    """Compare every two methods on the splits that both have, by seed; empty for fewer than two common splits."""
    from scipy.special import stdtrit

    differences: dict[tuple[str, str], Floats] = {}
    identity_variances: dict[tuple[str, str], VarianceEstimate] = {}
    for one, other in combinations(scores_by_method, 2):
        seeds = [seed for seed in scores_by_method[one] if seed in scores_by_method[other]]
        ours, theirs = ([scores_by_method[name][seed] for seed in seeds] for name in (one, other))
        if any(a.leave_one_out.keys() != b.leave_one_out.keys() for a, b in zip(ours, theirs, strict=True)):
            raise InputError(
                f"{one} and {other} were evaluated on different identities; delete the older of their runs"
            )
        leave_one_out = _leave_one_out_means(ours) - _leave_one_out_means(theirs) if len(seeds) > 1 else np.empty(0)
        if len(leave_one_out) >= MIN_IDENTITIES:
            differences[one, other] = np.array([a.value - b.value for a, b in zip(ours, theirs, strict=True)])
            identity_variances[one, other] = jackknife_variance(leave_one_out)
    if not differences:
        return []
    split_variances = _apply_median_floor(list(differences.values()), len(scores_by_method))
    comparisons = []
    for pair, split_variance in zip(differences, split_variances, strict=True):
        total, difference = sum_variances([identity_variances[pair], split_variance]), float(differences[pair].mean())
        half_width = float(stdtrit(total.degrees_of_freedom, 1 - ALPHA / 2)) * float(np.sqrt(total.variance))
        comparisons.append(MethodComparison(*pair, difference, half_width, difference_p_value(difference, total)))
    adjusted = holm([each.p for each in comparisons])
    return [replace(each, p=float(p)) for each, p in zip(comparisons, adjusted, strict=True)]


def _apply_median_floor(differences: Sequence[Floats], num_methods: int) -> list[VarianceEstimate]:
    """Variance of each mean of differences over splits: its own, or the typical one of all pairs if that is larger."""
    from scipy.special import gammaincinv

    own = [_split_variance(each)[0] for each in differences]
    # Per split, divided by the median of χ² over its degrees of freedom, which a single pair's variance has.
    per_split = [
        each.variance
        * len(values)
        * each.degrees_of_freedom
        / (2 * float(gammaincinv(each.degrees_of_freedom / 2, 0.5)))
        for each, values in zip(own, differences, strict=True)
    ]
    typical = float(np.median(per_split))
    floored = []
    for each, values in zip(own, differences, strict=True):
        pooled = VarianceEstimate(
            typical / len(values), max((num_methods - 1) * each.degrees_of_freedom / 2, each.degrees_of_freedom)
        )
        floored.append(each if each.variance > pooled.variance else pooled)
    return floored


# Metric of a record → its title, the better direction, digits.
METRICS: dict[str, tuple[str, str, int]] = {
    "auc": ("AUC", "high", 2),
    "eer": ("EER", "low", 2),
    "pair_accuracy": ("pair accuracy over folds", "high", 2),
    "recall1": ("recall@1", "high", 2),
    "map_at_r": ("MAP@R", "high", 2),
    "five_way_one_shot": ("5-way-1-shot", "high", 2),
    "intra": ("image to centre, rad", "none", 3),
    "c_inter": ("C-Inter, rad", "none", 3),
}
_PLOTTED_METRICS = ("auc", "recall1", "five_way_one_shot")
COMPARED_METRICS = ("auc", "eer", "pair_accuracy", "recall1", "map_at_r")
"""Metrics by which all methods are compared."""
_NOT_DIFFERENT = "not significantly different from"


def complete_openset_runs(
    methods: Sequence[OpenSetMethod], seeds: range, options: argparse.Namespace, recipe: str
) -> Path | None:
    """Train missing runs, seed by seed, and write the records of all finished runs; None if only listed."""
    runs_dir, out = Path(options.runs_dir), Path(options.out or f"openset_{recipe}")
    runs = [(method, method.config_for_seed(seed)) for seed in seeds for method in methods]
    todo = [(method, config) for method, config in runs if read_record(config, runs_dir) is None]
    if options.list:
        for method, config in runs:
            print(_run_state(method, config, runs_dir), run_folder(config, runs_dir))
        return None
    with lock_folder(out):
        execute_missing(todo, runs_dir, options.data_dir)
        _reevaluate_outdated(
            [each for each in runs if _run_state(*each, runs_dir) == _STATE_OUTDATED], runs_dir, options.data_dir
        )
        count = write_records([config for _, config in runs], runs_dir, out / "records.jsonl")
    print(f"{count} of {len(runs)} runs are finished")
    return out


_STATE_MISSING, _STATE_OUTDATED, _STATE_FINISHED = "missing ", "outdated", "finished"


def _run_state(method: OpenSetMethod, config: TrainConfig, runs_dir: Path) -> str:
    """Return the state of a run: missing, outdated (to be evaluated again) or finished."""
    if read_record(config, runs_dir) is None:
        return _STATE_MISSING
    return (
        _STATE_OUTDATED
        if method.evaluate is not None and not is_evaluation_current(run_folder(config, runs_dir))
        else _STATE_FINISHED
    )


def execute_missing(todo: Sequence[tuple[OpenSetMethod, TrainConfig]], runs_dir: Path, data_dir: str | None) -> None:
    """Train one run after the other; a diverged run does not stop the others."""
    from ...io.resources import keep_freed_memory
    from ...training.divergence import DivergedError

    keep_freed_memory()
    for number, (method, config) in enumerate(todo, 1):
        print(f"run {number} of {len(todo)}: {method.name}, seed {config.seed}", file=sys.stderr, flush=True)
        try:
            method.execute(config, run_folder(config, runs_dir), data_dir)
        except DivergedError as error:
            print(f"{method.name}, seed {config.seed}: {error}", file=sys.stderr, flush=True)


def _reevaluate_outdated(
    outdated: Sequence[tuple[OpenSetMethod, TrainConfig]], runs_dir: Path, data_dir: str | None
) -> None:
    """Evaluate finished runs from their saved files; a run without them is trained again."""
    for number, (method, config) in enumerate(outdated, 1):
        folder, name = run_folder(config, runs_dir), f"{method.name}, seed {config.seed}"
        print(f"evaluating {number} of {len(outdated)}: {name}", file=sys.stderr, flush=True)
        assert method.evaluate is not None
        evaluation = method.evaluate(config, folder, data_dir)
        if evaluation is None:
            print(f"{name}: saved no network and is trained again", file=sys.stderr, flush=True)
            method.execute(config, folder, data_dir)
            evaluation = method.evaluate(config, folder, data_dir)
        if evaluation is not None:
            save_evaluation(folder, *evaluation)


def metric_by_seed(method: OpenSetMethod, seeds: range, runs_dir: Path, metric: str) -> dict[int, float]:
    """A metric of the finished runs of a method, by seed."""
    values = {}
    for seed in seeds:
        record = read_record(method.config_for_seed(seed), runs_dir)
        value = None if record is None else record["test"].get(metric, record["angles"].get(metric))
        if value is not None:
            values[seed] = float(value)
    return values


def metric_values(method: OpenSetMethod, seeds: range, runs_dir: Path, metric: str) -> list[float]:
    """A metric of the finished runs of a method, as a list."""
    return list(metric_by_seed(method, seeds, runs_dir, metric).values())


def interval_half_width(numbers: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of their mean (Student's t); None for fewer than two."""
    if len(numbers) < 2:
        return None
    from scipy.stats import t

    return float(t.ppf(0.975, len(numbers) - 1)) * statistics.stdev(numbers) / math.sqrt(len(numbers))


def format_mean_interval(numbers: Sequence[float], digits: int) -> str:
    """Mean and half the width of its 95 % interval, as text."""
    if not numbers:
        return "–"
    half = interval_half_width(numbers)
    return f"{statistics.fmean(numbers):.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def describe_paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """Describe the mean difference over common seeds, which have the same split and batches; empty for too few."""
    gaps = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    half = interval_half_width(gaps)
    if half is None:
        return ""
    mean = statistics.fmean(gaps)
    word = "better than" if mean > half else "worse than" if mean < -half else _NOT_DIFFERENT
    return f"{word} ({mean:+.2f} ± {half:.2f})"


def split_scores_by_seed(method: OpenSetMethod, seeds: range, runs_dir: Path, metric: str) -> dict[int, SplitScore]:
    """A metric of the finished runs of a method with its leave-one-out values, by seed."""
    scores = {
        seed: read_split_score(run_folder(method.config_for_seed(seed), runs_dir), metric, value)
        for seed, value in metric_by_seed(method, seeds, runs_dir, metric).items()
    }
    return {seed: score for seed, score in scores.items() if score is not None}


def format_metric_interval(method: OpenSetMethod, seeds: range, runs_dir: Path, metric: str) -> str:
    """Format the mean over the splits, with the interval over identities and splits if there is one."""
    numbers, digits = metric_values(method, seeds, runs_dir, metric), METRICS[metric][2]
    if METRICS[metric][1] == "none":
        return format_mean_interval(numbers, digits)
    if not numbers:
        return "–"
    ends = metric_interval(method, seeds, runs_dir, metric)
    mean = f"{statistics.fmean(numbers):.{digits}f}"
    return mean if ends is None else f"{mean} ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"


def metric_interval(method: OpenSetMethod, seeds: range, runs_dir: Path, metric: str) -> tuple[float, float] | None:
    """Interval over identities and splits of the mean over the splits, if there is one."""
    splits = list(split_scores_by_seed(method, seeds, runs_dir, metric).values())
    records = [record for seed in seeds if (record := read_record(method.config_for_seed(seed), runs_dir)) is not None]
    # If one split has no interval (too few events), there is none.
    missing = any(record.get("intervals", {}).get(metric) is None for record in records)
    finished = metric_values(method, seeds, runs_dir, metric)
    return None if missing or not finished or len(splits) < len(finished) else pooled_interval(splits)


def table_rows(methods: Sequence[OpenSetMethod], seeds: range, runs_dir: Path) -> list[dict[str, Any]]:
    """The table as plain data: of every method and metric the mean over the splits, their number and the interval."""
    rows = []
    for method in methods:
        found: dict[str, Any] = {"method": method.name, "splits": 0}
        for metric in COMPARED_METRICS:
            numbers = metric_values(method, seeds, runs_dir, metric)
            if numbers:
                ends = metric_interval(method, seeds, runs_dir, metric)
                found["splits"] = max(found["splits"], len(numbers))
                found[metric] = {"mean": statistics.fmean(numbers), "interval": None if ends is None else list(ends)}
        rows.append(found)
    return rows


def compare_methods_by_metric(
    methods: Sequence[OpenSetMethod], seeds: range, runs_dir: Path, metric: str
) -> list[MethodComparison]:
    """Compare every two methods by a metric."""
    return compare_methods({each.name: split_scores_by_seed(each, seeds, runs_dir, metric) for each in methods})


def significant_differences(
    comparisons: Sequence[MethodComparison], metric: str
) -> dict[str, tuple[list[str], list[str]]]:
    """For every method, list the methods it is better than, and those it is worse than."""
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
    """Return a sentence for every method that is better than others."""
    differences = significant_differences(comparisons, metric)
    return [f"{name} is better than {', '.join(better)}" for name, (better, _) in differences.items() if better]


def verdict_sentences(comparisons_by_metric: Mapping[str, Sequence[MethodComparison]]) -> list[str]:
    """Sentences: how many pairs of methods differ by each metric, and ours against pytorch-metric-learning's."""
    sentences = []
    for metric, rows in comparisons_by_metric.items():
        if rows:
            count = sum(each.is_significant for each in rows)
            sentences.append(f"{METRICS[metric][0]}: {count} of {len(rows)} pairs of methods differ significantly")
    for metric, rows in comparisons_by_metric.items():
        for each in rows:
            if PEER_LOSSES.get(each.method_b) == each.method_a:
                ahead = (each.difference > 0) == (METRICS[metric][1] == "high")
                word = ("better than" if ahead else "worse than") if each.is_significant else _NOT_DIFFERENT
                gap = f"{each.difference:+.2f} ± {each.half_width:.2f}, p = {each.p:.2g}"
                sentences.append(f"{each.method_a}, {METRICS[metric][0]}: {word} {each.method_b} ({gap})")
    return sentences


def write_openset_report(
    methods: Sequence[OpenSetMethod], seeds: range, options: argparse.Namespace, out: Path, title: str, sub: str
) -> None:
    """Print the table and write the page."""
    from rich.table import Table

    from ...viz import page
    from ...viz.charts import draw_strip_plot
    from ...viz.colours import loss_colour
    from ...viz.terminal import console

    runs_dir = Path(options.runs_dir)
    cells = {
        (each.name, metric): metric_values(each, seeds, runs_dir, metric) for each in methods for metric in METRICS
    }
    best = {metric: _best_method_name(methods, cells, metric) for metric in METRICS}
    grid = Table(title=title, title_justify="left", title_style="bold")
    grid.add_column("loss", no_wrap=True)
    for name, _, _ in METRICS.values():
        grid.add_column(name, justify="right")
    rows = []
    for each in methods:
        texts = [
            (format_metric_interval(each, seeds, runs_dir, metric), best[metric] == each.name) for metric in METRICS
        ]
        grid.add_row(each.name, *(f"[bold]{text}[/]" if wins else text for text, wins in texts))
        rows.append([(each.name, ""), *((text, "best" if wins else "") for text, wins in texts)])
    console(width=240).print(grid)
    comparisons = {metric: compare_methods_by_metric(methods, seeds, runs_dir, metric) for metric in COMPARED_METRICS}
    content = json.dumps(_comparison_rows(comparisons), indent=1, ensure_ascii=False) + "\n"
    write_text_atomic(out / "compared.json", content)
    rows_of_table = json.dumps(table_rows(methods, seeds, runs_dir), indent=1, ensure_ascii=False) + "\n"
    write_text_atomic(out / "table.json", rows_of_table)
    verdicts = verdict_sentences(comparisons)
    for sentence in verdicts:
        print(sentence)
    for metric in COMPARED_METRICS:
        for sentence in _better_than_sentences(comparisons[metric], metric):
            print(f"{METRICS[metric][0]}: {sentence}")
    body = [page.table(["loss", *(name for name, _, _ in METRICS.values())], rows)]
    if verdicts:
        body += [
            page.heading("Significant differences", _COMPARISON_NOTE),
            *(page.paragraph(sentence, "note") for sentence in verdicts),
        ]
    for metric in COMPARED_METRICS:
        ahead = _better_than_sentences(comparisons[metric], metric)
        if comparisons[metric]:
            body += [page.heading(f"Significant differences by {METRICS[metric][0]}", "" if ahead else "None.")]
            body += [page.paragraph(sentence) for sentence in ahead]
    for metric in _PLOTTED_METRICS:
        measured = [each.name for each in methods if cells[each.name, metric]]
        if measured:
            picture = draw_strip_plot(
                measured,
                [cells[name, metric] for name in measured],
                [None] * len(measured),
                [loss_colour(name) for name in measured],
                "percent",
                METRICS[metric][0],
            )
            body += [
                page.heading(METRICS[metric][0], "Each dot is a split, the bar is their mean."),
                page.figure(picture),
            ]
    loss_set = "" if options.loss_set == "usual" else f" --loss-set {options.loss_set}"
    command = f"widemargin reproduce openset {options.which}{loss_set} --seeds {len(seeds)}"
    body += [page.heading("Command"), page.code(command)]
    path = out / "report.html"
    path.write_text(page.html_page(title, sub, body), encoding="utf-8")
    print(f"wrote {path}, {out / 'records.jsonl'}, {out / 'table.json'} and {out / 'compared.json'}")


def _comparison_rows(comparisons_by_metric: Mapping[str, Sequence[MethodComparison]]) -> list[dict[str, Any]]:
    """Return every comparison as a dictionary, for `compared.json`."""
    return [
        {"metric": name, **asdict(each), "is_significant": each.is_significant}
        for name, rows in comparisons_by_metric.items()
        for each in rows
    ]


_COMPARISON_NOTE = (
    "All pairs of methods on the same splits and identities: the difference of their means with its 95 % interval over "
    f"identities and splits. Significant: p of at most {ALPHA:g} after Holm's correction over all pairs "
    "(p is given after the correction); no other order in the table is significant."
)


def _best_method_name(
    methods: Sequence[OpenSetMethod], cells: Mapping[tuple[str, str], list[float]], metric: str
) -> Any:
    means = {each.name: statistics.fmean(cells[each.name, metric]) for each in methods if cells[each.name, metric]}
    kind = METRICS[metric][1]
    if not means or kind == "none":
        return None
    return (max if kind == "high" else min)(means, key=lambda name: means[name])
