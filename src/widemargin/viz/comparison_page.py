"""A comparison as a page (`report.html`): the verdict, then the charts, then the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..io.text import escape
from ..metrics.classification import METRICS
from . import charts, page
from .colours import BASELINE_COLOUR, loss_colours
from .comparison_details import (
    calibration_sections,
    class_sections,
    has_metrics,
    metrics_table,
    tuning_sections,
)
from .comparison_formats import (
    BEST_MARK,
    METRICS_NOTE,
    NOT_WORSE_MARK,
    baseline_notes,
    capitalize,
    format_interval,
    format_mean_and_std,
    format_mean_range,
    format_score,
    format_train_accuracy,
    format_train_accuracy_range,
    metric_axis_label,
    metric_column_head,
    score_mark,
)
from .critical_difference import draw_critical_difference_diagram

if TYPE_CHECKING:
    from ..tabular.comparison import Comparison, CrossDatasetComparison, DatasetComparison
    from ..tabular.results import Result
    from .svg import Chart


MAX_DETAILED_SETS = 20
"""Of more sets the page has neither classes nor calibration: it would be too large to open."""
_ANGLE_DESCRIPTIONS = (
    ("wc_intra", "WC-Intra: class weight to class centre (small is compact)"),
    ("w_inter", "W-Inter: between class weights (large is separated)"),
    ("c_inter", "C-Inter: between class centres (large is separated)"),
)


def comparison_page(
    comparison: Comparison,
    data_notes: Sequence[str] = (),
    command: str = "",
    extra_sections: Sequence[str] = (),
    title: str = "",
) -> str:
    """The whole page; `data_notes` are sentences on the data, `extra_sections` follow the verdict."""
    one = comparison.sets[0]
    first = one.results[0]
    count = len(first.folds)
    methods = f"{len(comparison.methods)} method{'s' if len(comparison.methods) > 1 else ''}"
    subtitle = f"{methods}, {count} folds each on the same partitions, seed {first.seed}"
    if comparison.baselines:
        subtitle += f"; {len(comparison.baselines)} baseline{'s' if len(comparison.baselines) > 1 else ''}"
    question = f"{one.set}: which loss serves it?"
    if len(comparison.sets) > 1:
        subtitle, question = (
            f"{len(comparison.sets)} sets, " + subtitle,
            f"{len(comparison.sets)} sets: which loss serves them?",
        )
    body = [f'<p class="verdict">{escape(comparison.verdict)}</p>', *extra_sections]
    colours = loss_colours(comparison.methods)
    if comparison.across_datasets is not None:
        body += _cross_dataset_sections(comparison, colours)
    else:
        body += [part for one in comparison.sets for part in _dataset_sections(one, colours)]
    body += _result_table_sections(comparison)
    body += _metric_sections(comparison)
    if len(comparison.sets) == 1:
        body += [*class_sections(one), *calibration_sections(one, colours)]
    body += _angle_metric_sections(comparison, colours)
    body += tuning_sections(comparison)
    body += _provenance_sections(data_notes, command, first)
    body += _recommendation_sections(comparison)
    return page.html_page(title or question, subtitle, body)


def _draw_score_intervals(comparison: DatasetComparison, order: Sequence[int], colours: Mapping[str, str]) -> Chart:
    """Losses in this order with their intervals, baselines below a line."""
    metric = METRICS[comparison.metric]
    rows = [(comparison.results[i], comparison.intervals[i], colours[comparison.results[i].loss]) for i in order]
    references = [
        (result, span, BASELINE_COLOUR)
        for result, span in zip(comparison.baselines, comparison.baseline_intervals, strict=True)
        if not math.isnan(span[0])  # a classifier without probabilities has no log loss
    ]
    rows += references
    return charts.draw_intervals(
        [r.loss for r, _, _ in rows],
        [r.mean_and_std(metric.name)[0] for r, _, _ in rows],
        [span for _, span, _ in rows],
        [colour for _, _, colour in rows],
        metric_axis_label(metric),
        f"{capitalize(metric.label)} of each method on {comparison.set} with its 95 % interval",
        num_references=len(references),
        decimals=metric.decimals,
        higher_is_better=metric.higher_is_better,
    )


def _dataset_sections(comparison: DatasetComparison, colours: Mapping[str, str]) -> list[str]:
    metric = METRICS[comparison.metric]
    parts = [
        page.heading(
            f"{capitalize(metric.label)} on {comparison.set}",
            "The dot is the mean over all folds, the line its 95 % interval, allowing for rows that folds share."
            + _baseline_hint(comparison),
        ),
        page.figure(_draw_score_intervals(comparison, comparison.order, colours)),
    ]
    if len(comparison.results) > 1 and comparison.has_statement:
        diagram = draw_critical_difference_diagram(
            [r.loss for r in comparison.results],
            [r.mean_and_std(metric.name)[0] for r in comparison.results],
            comparison.groups,
            metric.label,
            f"Methods by {metric.label}; a bar joins those that no test tells apart",
            best_left=not metric.higher_is_better,
            decimals=metric.decimals,
        )
        why = (
            "A bar joins methods that the corrected resampled t-test with Holm's correction does not tell apart "
            "(adjusted p above 5 %)."
        )
        parts += [page.heading("Who differs from whom", why), page.figure(diagram)]
    return parts


def _baseline_hint(comparison: DatasetComparison) -> str:
    """A sentence that explains the baselines in a picture; empty where there are none."""
    return (
        " Baselines stand below the line; an arrow marks one that lies too far off to be drawn."
        if comparison.baselines
        else ""
    )


def _cross_dataset_sections(comparison: Comparison, colours: Mapping[str, str]) -> list[str]:
    summary, metric = comparison.across_datasets, METRICS[comparison.metric]
    assert summary is not None
    diagram = draw_critical_difference_diagram(
        comparison.methods,
        summary.mean_ranks,
        summary.groups,
        "mean rank",
        "Critical-difference diagram: mean ranks, bars join methods that Nemenyi's test does not tell apart",
        (summary.critical_difference, f"critical difference {summary.critical_difference:.2f}"),
    )
    friedman = (
        f"Mean ranks over {len(summary.sets)} sets, 1 is best; a bar joins methods whose ranks differ by less than "
        "the critical difference (Nemenyi, 5 %). "
        f"Friedman's test that any differ at all: p = {summary.p_friedman:.3g}."
    )
    parts = [page.heading("Critical-difference diagram", friedman), page.figure(diagram)]
    parts.append(
        page.heading(
            f"{capitalize(metric.label)} by set",
            "The mean of each method; open a set for the 95 % intervals (folds share rows, which they allow for).",
        )
    )
    names = [one.set for one in comparison.sets]
    scores = [[result.mean_and_std(metric.name)[0] for result in one.results] for one in comparison.sets]
    palette = [colours[method] for method in comparison.methods]
    axis = metric_axis_label(metric)
    everything = charts.draw_dot_plot(names, comparison.methods, scores, palette, axis, metric.decimals)
    parts.append(page.figure(everything))
    for one in comparison.sets:
        picture = page.figure(_draw_score_intervals(one, range(len(one.results)), colours), one.verdict)
        parts.append(page.details(one.set, "".join([picture, *_details_of_one_of_many(comparison, one, colours)])))
    return parts


def _details_of_one_of_many(comparison: Comparison, one: DatasetComparison, colours: Mapping[str, str]) -> list[str]:
    if not has_metrics(one):
        return []
    parts = [page.subheading("Every metric", METRICS_NOTE), metrics_table(one)]
    if len(comparison.sets) <= MAX_DETAILED_SETS:
        parts += [*class_sections(one, page.subheading), *calibration_sections(one, colours, page.subheading)]
    return parts


def _angle_metric_sections(comparison: Comparison, colours: Mapping[str, str]) -> list[str]:
    measured = [
        m for m in comparison.methods if any(r.angles for one in comparison.sets for r in one.results if r.loss == m)
    ]
    if not measured:
        return []
    values = [[_mean_angle(comparison, method, key) for key, _ in _ANGLE_DESCRIPTIONS] for method in measured]
    picture = charts.draw_grouped_bars(
        measured,
        [name for _, name in _ANGLE_DESCRIPTIONS],
        values,
        [colours[method] for method in measured],
        "Angle metrics in radians",
    )
    why = "Angles in radians (π/2 = 1.57), training rows, mean over all models" + (
        " and sets; sets with other numbers of classes have other largest angles."
        if len(comparison.sets) > 1
        else ". With two classes only the difference of two angles decides: there a centre may lie far from its weight."
    )
    return [page.heading("Compact within, far apart between", why), page.figure(picture)]


def _mean_angle(comparison: Comparison, method: str, key: str) -> float:
    values = [r.angles.get(key) for one in comparison.sets for r in one.results if r.loss == method]
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else math.nan


def _result_table_sections(comparison: Comparison) -> list[str]:
    marks = (
        "Bold: the best. ≈: not significantly worse than it (corrected resampled t-test, Holm, adjusted p above 5 %)."
    )
    explained = [marks] if any(one.has_statement for one in comparison.sets) else []
    most = comparison.sets[0].results[0].max_train_rows
    measured = f"Train: accuracy on the rows that were learnt from, on {most:,} of each fold where there are more."
    fit = [measured, *(f"{line}." for line in baseline_notes(comparison))]
    if len(comparison.sets) == 1:
        if comparison.sets[0].has_statement:
            explained.append("Adjusted p: against the best, of that test.")
            explained.append("A fold is won by every method that no other beats in it.")
        return [page.heading("The numbers", " ".join([*explained, *fit])), _dataset_table(comparison.sets[0])]
    rows = [[(one.set, ""), *(_score_cell(r, one) for r in one.results)] for one in comparison.sets]
    together = comparison.across_datasets
    foot = _summary_footer(together, comparison.metric) if together is not None else []
    ranges = [
        [
            (one.set, ""),
            (format_mean_range(one), ""),
            (format_train_accuracy_range(one), ""),
            *(_mean_std_cell(result, one) for result in one.baselines),
        ]
        for one in comparison.sets
    ]
    return [
        page.heading("The numbers", " ".join(explained)),
        page.table(("set", *comparison.methods), rows, foot),
        page.heading(
            "Training accuracy and baselines" if comparison.baselines else "Training accuracy",
            " ".join(["Of the losses the lowest and the highest mean.", *fit]),
        ),
        page.table(("set", "losses, test", "losses, train", *comparison.baselines), ranges),
    ]


def _metric_sections(comparison: Comparison) -> list[str]:
    """Every metric of one set, or its average over several."""
    if not all(map(has_metrics, comparison.sets)):
        return []
    if len(comparison.sets) == 1:
        bold = "Bold: the best mean of the losses in each column, tested or not. "
        why = f"Means over the folds. {bold if comparison.sets[0].has_statement else ''}{METRICS_NOTE}"
        return [page.heading("Every metric", why), metrics_table(comparison.sets[0])]
    rows = [
        [(method, ""), *((_average_score(comparison, method, name), "") for name in METRICS)]
        for method in comparison.methods
    ]
    foot = [
        [(method, ""), *((_average_score(comparison, method, name), "") for name in METRICS)]
        for method in comparison.baselines
    ]
    head = ("loss", *map(metric_column_head, METRICS.values()))
    return [
        page.heading("Every metric", f"Average of the means of all sets. {METRICS_NOTE}"),
        page.table(head, rows, foot),
    ]


def _average_score(comparison: Comparison, method: str, name: str) -> str:
    means = [result.mean_and_std(name)[0] for result in comparison.results if result.loss == method]
    return format_score(sum(means) / len(means), METRICS[name])


def _dataset_table(comparison: DatasetComparison) -> str:
    """Losses, the best mean first, and the baselines at the foot."""
    rank_columns = ("adjusted p", "rank", "folds won") if comparison.has_statement else ()
    metric = METRICS[comparison.metric]

    def row(r: Result, mean: page.Cell, interval: tuple[float, float], place: Sequence[str]) -> list[page.Cell]:
        texts = (
            format_train_accuracy(r),
            format_interval(*interval, metric.decimals),
            *place[: len(rank_columns)],
            f"{r.seconds:.1f} s",
        )
        return [(r.loss, ""), mean, *((text, "") for text in texts)]

    best = comparison.best
    rows = [
        row(
            comparison.results[i],
            _score_cell(comparison.results[i], comparison),
            comparison.intervals[i],
            (
                _format_p(comparison, comparison.results[i].loss, best),
                f"{comparison.ranks[i]:g}",
                str(comparison.wins[i]),
            ),
        )
        for i in comparison.order
    ]
    foot = [
        row(r, _mean_std_cell(r, comparison), interval, ("–", "–", "–"))
        for r, interval in zip(comparison.baselines, comparison.baseline_intervals, strict=True)
    ]
    return page.table(("loss", "mean ± std", "train", "95 % interval", *rank_columns, "time"), rows, foot)


def _format_p(comparison: DatasetComparison, loss: str, best: str | None) -> str:
    """The adjusted p of a loss against the best one, which has none."""
    return "–" if loss == best or loss not in comparison.adjusted_p else f"{comparison.adjusted_p[loss]:.2g}"


def _summary_footer(summary: CrossDatasetComparison, metric_name: str) -> list[list[page.Cell]]:
    metric = METRICS[metric_name]
    wins = (f"{n} ({s} shared)" if s else f"{n}" for n, s in zip(summary.wins, summary.tied_wins, strict=True))
    return [
        [("average", ""), *((format_score(v, metric), "") for v in summary.averages)],
        [("mean rank", ""), *((f"{v:.2f}", "") for v in summary.mean_ranks)],
        [("wins", ""), *((text, "") for text in wins)],
    ]


def _score_cell(result: Result, comparison: DatasetComparison) -> page.Cell:
    css_class = {BEST_MARK: "best", NOT_WORSE_MARK: "alike"}.get(score_mark(result, comparison), "")
    return _mean_std_cell(result, comparison)[0], css_class


def _mean_std_cell(result: Result, comparison: DatasetComparison) -> page.Cell:
    return format_mean_and_std(result, METRICS[comparison.metric]), ""


def _recommendation_sections(comparison: Comparison) -> list[str]:
    """Return the last section: the recommended method and the command that fits it."""
    found = comparison.recommendation
    if found is None:
        return []
    parts = [page.heading("What to use"), f'<p class="verdict">{escape(found.sentence)}</p>']
    if found.commands:
        many = "s" if len(found.commands) > 1 else ""
        parts += [page.paragraph(f"The command{many} for a model to take home:"), page.code("\n".join(found.commands))]
    return parts


def _provenance_sections(data_notes: Sequence[str], command: str, first: Result) -> list[str]:
    parts = [page.heading("How this was made")]
    parts += [page.paragraph(sentence, "note") for sentence in data_notes]
    if command:
        parts += [page.paragraph("The command that makes it again:"), page.code(command)]
    known = {name: value for name, value in first.settings.items() if name != "tuning"}  # a section of its own
    settings = json.dumps({"settings": known, "versions": first.versions}, indent=1, ensure_ascii=False)
    parts.append(page.details("Settings and versions", page.code(settings)))
    return parts
