"""Numbers of a comparison as text, for its page, its table in the terminal and its short form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..metrics.classification import METRICS, Metric
from ..stats.verdict import join_names

if TYPE_CHECKING:
    from ..tabular.comparison import Comparison, DatasetComparison
    from ..tabular.results import Result

NOT_WORSE_MARK = "≈"
BEST_MARK = "*"
"""In addition to bold type, which a file does not keep."""


def format_score(value: float, metric: Metric) -> str:
    """A score in the decimals of its metric; a dash where it is undefined.

    >>> format_score(91.256, METRICS["accuracy"]), format_score(0.12345, METRICS["log_loss"])
    ('91.26', '0.1235')
    """
    return f"{value:.{metric.decimals}f}" if math.isfinite(value) else "–"


def format_mean_and_std(result: Result, metric: Metric, separator: str = " ± ") -> str:
    """Mean and standard deviation of a result in a metric; a dash where it is undefined."""
    mean, std = result.mean_and_std(metric.name)
    return separator.join((format_score(mean, metric), format_score(std, metric))) if math.isfinite(mean) else "–"


def format_interval(low: float, high: float, digits: int) -> str:
    """An interval as text; a dash for an empty one, as equal folds do not say how far off the mean may be.

    >>> format_interval(94.48, 99.9, 1), format_interval(96.0, 96.0, 1)
    ('94.5 – 99.9', '–')
    """
    return "–" if low == high or math.isnan(low) else f"{low:.{digits}f} – {high:.{digits}f}"


def metric_axis_label(metric: Metric) -> str:
    """Return the axis label of a metric.

    >>> metric_axis_label(METRICS["accuracy"]), metric_axis_label(METRICS["log_loss"])
    ('accuracy in percent', 'log loss (less is better)')
    """
    return f"{metric.label} in percent" if metric.is_percent else f"{metric.label} (less is better)"


def metric_column_head(metric: Metric) -> str:
    """Return the column head of a metric.

    >>> metric_column_head(METRICS["roc_auc"]), metric_column_head(METRICS["brier"])
    ('ROC AUC\\xa0%', 'Brier score\\xa0↓')
    """
    label = "ECE" if metric.name == "ece" else metric.label
    return f"{label}\N{NO-BREAK SPACE}{'%' if metric.is_percent else '↓'}"


METRICS_NOTE = "↓: less is better. ECE: calibration error of the top probability, by which nothing is ranked."


def capitalize(text: str) -> str:
    """With a capital in front, and the rest as it is."""
    return text[:1].upper() + text[1:]


def format_train_accuracy(result: Result) -> str:
    """The training accuracy as a table shows it; a dash where it was not measured."""
    return "–" if result.train_mean is None else f"{result.train_mean:.2f}"


def format_mean_range(comparison: DatasetComparison) -> str:
    """The lowest and the highest mean of the losses of a set."""
    metric = METRICS[comparison.metric]
    return _format_range([result.mean_and_std(metric.name)[0] for result in comparison.results], metric.decimals - 1)


def format_train_accuracy_range(comparison: DatasetComparison) -> str:
    """The lowest and the highest training accuracy of the losses of a set, of those that are known."""
    return _format_range([result.train_mean for result in comparison.results if result.train_mean is not None], 1)


def _format_range(values: Sequence[float], digits: int) -> str:
    if not values:
        return "–"
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} – {high}"


def score_mark(result: Result, comparison: DatasetComparison) -> str:
    """The mark behind a mean: of the best, of one that no test finds worse, or a space."""
    if round(result.mean_and_std(comparison.metric)[0], METRICS[comparison.metric].decimals) == comparison.best_mean:
        return BEST_MARK
    return NOT_WORSE_MARK if result.loss in comparison.not_worse else " "


def best_means(results: Sequence[Result]) -> dict[str, float]:
    """The best mean in every metric, rounded as it is shown; metrics of which no result knows anything are absent."""
    found = {}
    for name, metric in METRICS.items():
        means = [result.mean_and_std(name)[0] for result in results]
        known = [round(mean, metric.decimals) for mean in means if math.isfinite(mean)]
        if known:
            found[name] = max(known) if metric.higher_is_better else min(known)
    return found


def baseline_notes(comparison: Comparison) -> list[str]:
    """Notes on baselines that were run on fewer folds than the losses, or fitted to fewer rows than there are."""
    datasets_by_phrase: dict[str, list[str]] = {}
    for one in comparison.sets:
        fewer: dict[int, list[str]] = {}
        for result in one.baselines:
            if len(result.folds) < len(one.results[0].folds):
                fewer.setdefault(len(result.folds), []).append(result.loss)
        phrases = [f"{join_names(names)}: the first {count} of these folds" for count, names in fewer.items()]
        capped: dict[int, list[str]] = {}
        for result in one.baselines:
            if "fit_rows" in result.settings:
                capped.setdefault(result.settings["fit_rows"], []).append(result.loss)
        phrases += [
            f"{join_names(names)}: fitted to {rows} rows of every training part" for rows, names in capped.items()
        ]
        for phrase in phrases:
            datasets_by_phrase.setdefault(phrase, []).append(one.set)
    return [
        phrase + ("" if len(sets) == len(comparison.sets) else f" ({', '.join(sets)})")
        for phrase, sets in datasets_by_phrase.items()
    ]
