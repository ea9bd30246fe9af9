"""Whether settings fit a table well enough to compare losses, what to try otherwise, and cautions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..io.errors import spell_option
from ..metrics.classification import Metric
from ..stats.verdict import OVERFIT_GAP, FoldScores, Verdict, verdict_if_not_comparable
from .config import MLPConfig
from .metric_choice import select_scores
from .results import MAJORITY, Result
from .suggestions import (
    config_against_overfitting,
    config_against_underfitting,
    suggest_options_against_overfitting,
    suggest_options_against_underfitting,
)

LOW_TRAIN_ACCURACY = 90.0
"""Percent; below this training accuracy a statement without baselines comes with a caution."""


def no_statement_verdict(
    results: Sequence[Result],
    baselines: Sequence[Result],
    metric: Metric,
    folds: Sequence[int],
    test_fraction: float,
    alpha: float,
) -> tuple[Verdict | None, MLPConfig | None]:
    """Why no statement about the losses of a set can be made, and what to try; None if they can be compared.

    Args:
        metric: the metric of the comparison; training accuracy is compared with accuracies.
        folds: those in which the metric is defined.
    """
    if baselines and all(result.has_diverged for result in results):
        sentence = f"Every loss diverged; no statement about the losses. Try a smaller {spell_option('lr')}."
        return Verdict((), (), 1.0, sentence, "diverged"), None
    scores = _fold_scores(results, baselines, metric, folds)
    found = verdict_if_not_comparable(scores, test_fraction, alpha)
    if found is None:
        return None, None
    sentence, config = _suggestion(found, results, scores)
    return replace(found, sentence=f"{found.sentence} {sentence}"), config


def _fold_scores(
    results: Sequence[Result], baselines: Sequence[Result], metric: Metric, folds: Sequence[int]
) -> FoldScores:
    known = {result.loss: select_scores(result, metric, folds) for result in baselines}
    known = {loss: scores for loss, scores in known.items() if scores}
    scores = FoldScores(
        test={result.loss: select_scores(result, metric, folds) for result in results},
        train={result.loss: [result.train[k] for k in folds] for result in results if result.train},
        baselines={loss: scores for loss, scores in known.items() if loss != MAJORITY},
        majority=known.get(MAJORITY, ()),
    )
    if metric.name == "accuracy":
        return scores
    return scores._replace(
        metric=metric.label,
        is_percent=metric.is_percent,
        higher_is_better=metric.higher_is_better,
        test_accuracy=_accuracies(results, scores.test, folds),
        baseline_accuracy=_accuracies(baselines, scores.baselines, folds),
    )


def _accuracies(
    results: Sequence[Result], wanted: Mapping[str, Sequence[float]], folds: Sequence[int]
) -> dict[str, list[float]]:
    return {
        result.loss: [result.folds[k] for k in folds if k < len(result.folds)]
        for result in results
        if result.loss in wanted
    }


def _suggestion(verdict: Verdict, results: Sequence[Result], scores: FoldScores) -> tuple[str, MLPConfig | None]:
    """What may help: a sentence with options of the command, and the settings where settings can."""
    settings, fitted = results[0].settings, [result.train_mean for result in results if result.train_mean is not None]
    rows, columns = (results[0].details.get(name, 0) for name in ("rows", "columns"))
    if verdict.kind == "chance":
        above = map(scores.is_above_chance, scores.baselines.values())
        no_baseline_either = bool(scores.baselines) and not any(above)
        if columns > rows:
            options = suggest_options_against_overfitting(settings)
            sentence = (
                f"{'Nor is a baseline. ' if no_baseline_either else ''}The table is wide: {columns} columns and {rows} "
                "rows, where a model fits its training rows by columns that mean nothing. Try fewer columns (chosen "
                f"by what they mean or on other rows) or more rows; else, with another {spell_option('out')}: "
                f"{options}."
            )
            return sentence, config_against_overfitting(settings)
        if no_baseline_either:
            return "Nor is a baseline: other columns or more rows are needed.", None
    best_mean = max(result.mean for result in results)
    if verdict.kind != "underfit" and fitted and max(fitted) >= best_mean + OVERFIT_GAP:
        options = suggest_options_against_overfitting(settings)
        more_rows = f"More rows or fewer columns may help; else try, with another {spell_option('out')}: {options}."
        return more_rows, config_against_overfitting(settings)
    options = suggest_options_against_underfitting(settings)
    return f"Try, with another {spell_option('out')}: {options}.", config_against_underfitting(settings)


def baseline_caution(
    results: Sequence[Result], baselines: Sequence[Result], metric: Metric, folds: Sequence[int]
) -> str:
    """A sentence if a baseline has a better mean than every loss, but not significantly."""
    sign = 1.0 if metric.higher_is_better else -1.0
    scores = {result.loss: select_scores(result, metric, folds) for result in (*results, *baselines)}
    means = {result.loss: float(np.mean(scores[result.loss])) for result in baselines if scores[result.loss]}
    for name in sorted(means, key=lambda loss: -sign * means[loss]):
        count = len(scores[name])
        if sign * means[name] > max(sign * float(np.mean(scores[result.loss][:count])) for result in results):
            shown = f"{means[name]:.1f} %" if metric.is_percent else f"{means[name]:.3f}"
            how = "higher" if metric.higher_is_better else "lower"
            what = "" if metric.name == "accuracy" else f" {metric.label}"
            better = f" {name} has a {how} mean{what} than every loss ({shown} in {count} folds)"
            return f"{better}: with other settings the order of the losses may differ."
    return ""


def low_train_accuracy_caution(results: Sequence[Result], baselines: Sequence[Result]) -> str:
    """A sentence if training accuracy is low and no baseline was run that would show whether more is possible."""
    fitted = [result.train_mean for result in results if result.train_mean is not None]
    if any(result.loss != MAJORITY for result in baselines) or not fitted or max(fitted) >= LOW_TRAIN_ACCURACY:
        return ""
    return (
        f" No loss has more than {max(fitted):.1f} % even on its training rows, and no baseline was run that "
        "would show whether these settings underfit: with others the order of the losses may differ."
    )
