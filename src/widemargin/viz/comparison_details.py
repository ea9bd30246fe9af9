"""Details of a comparison beyond the ranks: every metric, classes, confusions, calibration, and what tuning chose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ..metrics.classification import METRICS, FoldMetrics
from ..metrics.confusion import Confusion
from . import page
from .charts import ReliabilityCurve, draw_reliability_diagram
from .colours import loss_colours
from .comparison_formats import best_means, format_score, metric_column_head
from .matrices import MAX_CONFUSION_CLASSES, draw_confusion_matrix, most_common_confusions
from .svg import truncate_label

if TYPE_CHECKING:
    from ..tabular.comparison import Comparison, DatasetComparison
    from ..tabular.results import Result

MAX_TABLE_CLASSES = 30
"""Classes in a table; of more those with the lowest F1."""
_MAX_PAIR_CLASSES = 12  # of matrices that stand side by side
_Heading = Callable[[str, str], str]


def has_metrics(comparison: DatasetComparison) -> bool:
    """True if every loss of a set has all metrics; lines of older versions have accuracy only."""
    return all(result.metrics for result in comparison.results)


def metrics_table(comparison: DatasetComparison) -> str:
    """Means of every metric, losses first and baselines at the foot; the best of the losses in bold type."""
    best = best_means(comparison.results) if comparison.has_statement else {}

    def row(result: Result) -> list[page.Cell]:
        cells: list[page.Cell] = [(result.loss, "")]
        for name, metric in METRICS.items():
            mean = result.mean_and_std(name)[0]
            is_best = not result.is_baseline and round(mean, metric.decimals) == best.get(name)
            cells.append((format_score(mean, metric), "best" if is_best else ""))
        return cells

    return page.table(
        ("loss", *map(metric_column_head, METRICS.values())),
        [row(comparison.results[i]) for i in comparison.order],
        [row(result) for result in comparison.baselines],
    )


# Classes and confusions.


def class_sections(comparison: DatasetComparison, heading: _Heading = page.heading) -> list[str]:
    """Precision, recall and F1 of every class and the confusion matrix: of the loss and the baseline with the best
    mean. Nothing where the results hold no counts."""
    shown = [(result, result.evaluation) for result in _leaders(comparison)]
    known = [(result, evaluation) for result, evaluation in shown if evaluation is not None]
    if not known or known[0][0].is_baseline:
        return []
    num_classes = max(evaluation.num_classes for _, evaluation in known)
    where = f"in {METRICS[comparison.metric].label}"
    why = f"Of the loss with the first place {where}{' and of the first baseline' * (len(known) > 1)}; in percent. "
    why += "Tested: rows of all folds, each once in every repeat."
    if num_classes > MAX_TABLE_CLASSES:
        why += f" The {MAX_TABLE_CLASSES} classes with the lowest F1 of {num_classes}."
    tables = [
        page.paragraph(result.loss) + _class_table(evaluation, _class_names(result)) for result, evaluation in known
    ]
    parts = [heading("Classes", why), page.side_by_side(tables)]
    if num_classes > MAX_CONFUSION_CLASSES:
        lists = [
            page.paragraph(result.loss) + _mistake_table(evaluation, _class_names(result))
            for result, evaluation in known
        ]
        return [*parts, heading("Most frequent confusions", ""), page.side_by_side(lists)]
    if num_classes > _MAX_PAIR_CLASSES:
        known = known[:1]
    matrices = [
        page.paragraph(result.loss) + page.figure(_draw_confusions(result, evaluation)) for result, evaluation in known
    ]
    why = "A row per true class, a column per prediction; counts over all folds, red where they are mistakes."
    pictures = [page.side_by_side(matrices)] if num_classes <= _MAX_PAIR_CLASSES else matrices
    return [*parts, heading("Confusions", why), *pictures]


def _leaders(comparison: DatasetComparison) -> list[Result]:
    """The loss and the baseline (the majority class aside) with the best mean."""
    metric = METRICS[comparison.metric]
    sign = 1.0 if metric.higher_is_better else -1.0
    known = [
        (sign * result.mean_and_std(metric.name)[0], result)
        for result in comparison.baselines
        if result.loss != "majority" and result.evaluation is not None
    ]
    known = [(mean, result) for mean, result in known if math.isfinite(mean)]
    first = comparison.results[comparison.order[0]]
    return [first, max(known, key=lambda pair: pair[0])[1]] if known else [first]


def _class_names(result: Result) -> list[str]:
    names: list[str] = result.details["class_names"]
    return names


def _draw_confusions(result: Result, evaluation: FoldMetrics) -> str:
    title = f"Confusion matrix of {result.loss}"
    return draw_confusion_matrix(_confusion(evaluation), _class_names(result), title)


def _class_table(evaluation: FoldMetrics, names: Sequence[str]) -> str:
    rows = list(zip(names, evaluation.per_class(), strict=True))
    if len(rows) > MAX_TABLE_CLASSES:
        rows = sorted(rows, key=lambda row: row[1]["f1"] if math.isfinite(row[1]["f1"]) else math.inf)
    cells = [
        [
            (name, ""),
            *((f"{row[key]:.1f}" if math.isfinite(row[key]) else "–", "") for key in ("precision", "recall", "f1")),
            (f"{row['support']:,}", ""),
        ]
        for name, row in rows[:MAX_TABLE_CLASSES]
    ]
    return page.table(("class", "precision", "recall", "F1", "tested"), cells)


def _confusion(evaluation: FoldMetrics) -> Confusion:
    true, predicted, counts = zip(*evaluation.mistakes, strict=True) if evaluation.mistakes else ((), (), ())
    return Confusion(evaluation.support, evaluation.hits, true, predicted, counts)


def _mistake_table(evaluation: FoldMetrics, names: Sequence[str]) -> str:
    found = most_common_confusions(_confusion(evaluation), names, limit=20)
    rows = [
        [(true, ""), (answer, ""), (f"{times:,}", ""), (f"{share:.1f} %", "")] for true, answer, times, share in found
    ]
    return page.table(("class", "taken for", "times", "of the class"), rows)


# Calibration.


def calibration_sections(
    comparison: DatasetComparison, colours: Mapping[str, str], heading: _Heading = page.heading
) -> list[str]:
    """The reliability diagram of the loss with the best mean, before and after temperature scaling where both are
    known, and of the baselines; and the temperatures of all losses."""
    first = comparison.results[comparison.order[0]]
    evaluation = first.evaluation
    if evaluation is None or evaluation.reliability is None:
        return []
    colour, is_scaled = colours[first.loss], evaluation.uncalibrated is not None
    short = truncate_label(first.loss, 26)
    name = f"{short}, scaled" if is_scaled else short
    curves = [ReliabilityCurve(name, evaluation.reliability, colour)]
    if evaluation.uncalibrated is not None:
        curves.append(ReliabilityCurve(f"{short}, before", evaluation.uncalibrated, colour, is_dashed=True))
    references = {result.loss: result.evaluation for result in comparison.baselines if result.loss != "majority"}
    palette = loss_colours(list(colours), list(references))
    curves += [
        ReliabilityCurve(loss, found.reliability, palette[loss])
        for loss, found in references.items()
        if found is not None and found.reliability is not None
    ]
    why = (
        "How often predictions of a confidence are right; on the diagonal they are right as often as they say. Larger "
        "dots stand for more rows. ECE: mean distance from the diagonal."
    )
    picture = draw_reliability_diagram(curves, f"Reliability diagram of {first.loss} and of baselines")
    parts = [heading("Calibration", why), page.side_by_side([page.figure(picture)])]
    return [*parts, *_temperature_parts(comparison)]


def _temperature_parts(comparison: DatasetComparison) -> list[str]:
    rows = []
    for i in comparison.order:
        evaluation = comparison.results[i].evaluation
        if evaluation is None or not evaluation.temperatures:
            continue
        known = evaluation.temperatures
        before, after = (
            "–" if bins is None else f"{bins.ece:.3f}" for bins in (evaluation.uncalibrated, evaluation.reliability)
        )
        mean = f"{sum(known) / len(known):.3g}"
        rows.append([(comparison.results[i].loss, ""), *((text, "") for text in (mean, before, after))])
    if not rows:
        return []
    why = (
        "Logits are divided by a temperature that is learnt for every fold; above 1 it makes predictions less sure. "
        "Its mean over the folds, and the calibration error before and after."
    )
    head = ("loss", "temperature", "ECE before", "ECE after")
    return [page.paragraph(why, "sub"), page.table(head, rows)]


# What tuning chose.


def tuning_sections(comparison: Comparison) -> list[str]:
    """Sections on `settings["tuning"]` of the results: trials, and median and range of every number chosen per fold."""
    parts = []
    for one in comparison.sets:
        known = [(r, r.settings["tuning"]) for r in one.results if isinstance(r.settings.get("tuning"), dict)]
        if known:
            if len(comparison.sets) > 1:
                parts.append(page.details(one.set, _tuning_table(known)))
            else:
                parts.append(_tuning_table(known))
    why = (
        "Chosen anew in every training part, which the test part had no share in: median and range over the folds. "
        "Where many trials are as good as the best, the optimum is flat and the numbers matter little."
    )
    return [page.heading("What tuning chose", why), *parts] if parts else []


def _tuning_table(known: Sequence[tuple[Result, dict[str, Any]]]) -> str:
    chosen = {result.loss: _numbers_by_name(tuning.get("chosen")) for result, tuning in known}
    names = list(dict.fromkeys(name for numbers in chosen.values() for name in numbers))
    rows = []
    for result, tuning in known:
        numbers = chosen[result.loss]
        texts = [str(tuning.get("trials", "–")), str(tuning.get("inner", "–"))]
        texts += [_median_and_range(numbers[name]) if name in numbers else "–" for name in names]
        rows.append([(result.loss, ""), *((text, "") for text in texts)])
    flatness = [
        page.paragraph(f"{result.loss}: {_describe_flatness(tuning['flatness'])}.", "note")
        for result, tuning in known
        if isinstance(tuning.get("flatness"), dict) and tuning["flatness"]
    ]
    return page.table(("loss", "trials", "inner", *names), rows) + "".join(flatness)


def _numbers_by_name(chosen: Any) -> dict[str, list[float]]:
    """The numbers of every name over the folds; values that are not numbers are left out."""
    found: dict[str, list[float]] = {}
    for fold in chosen if isinstance(chosen, list) else []:
        for name, value in fold.items() if isinstance(fold, dict) else ():
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                found.setdefault(str(name), []).append(float(value))
    return found


def _median_and_range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{median(values):.3g} ({low} – {high})"


def _describe_flatness(values: Mapping[str, Any]) -> str:
    """Return a sentence on how flat the optimum is; missing numbers are omitted.

    >>> _describe_flatness({"within_one_se": 0.45, "default_behind": 0.4, "median_behind": 1.25})
    '45 % of the trials are within one standard error of the best; behind the best on inner folds: first trial 0.4, \
median 1.25'
    """
    known = {name: value for name, value in values.items() if isinstance(value, int | float)}
    behind = [("first trial", "default_behind"), ("median", "median_behind")]
    words = ", ".join(f"{what} {known[name]:.3g}" for what, name in behind if name in known)
    share = [f"{known['within_one_se']:.0%}".replace("%", " %")] if "within_one_se" in known else []
    parts = [f"{text} of the trials are within one standard error of the best" for text in share]
    return "; ".join(parts + ([f"behind the best on inner folds: {words}"] if words else []))
