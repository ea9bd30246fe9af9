"""Which metric decides a comparison, and the scores of results in it.

By default accuracy; balanced accuracy for all tables where one class of some table has at least 80 % of its rows,
because always predicting that class then has a high accuracy. On balanced tables the two hardly differ, so one such
table is enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..data.tabular.table import Table
from ..io.errors import InputError, format_value, spell_option
from ..metrics.classification import METRICS, Metric
from .results import Result

RANKING_METRICS = tuple(name for name, metric in METRICS.items() if metric.is_ranking)
"""Metrics by which methods may be ranked."""
BALANCED_METRIC_THRESHOLD = 0.8
"""From this share of one class on, methods are ranked by balanced accuracy unless another metric is asked for."""


def choose_metric(metric: Any, tables: Sequence[Table]) -> tuple[str, list[str]]:
    """The given metric, or for None the default for these tables, with a note if that is not accuracy.

    >>> choose_metric("log_loss", [])
    ('log_loss', [])
    """
    if metric is not None:
        return check_metric(metric), []
    unbalanced = [table for table in tables if table.largest_class[1] >= BALANCED_METRIC_THRESHOLD]
    if not unbalanced:
        return "accuracy", []
    name, share = unbalanced[0].largest_class
    where = f"class {name!r} of {unbalanced[0].name} has {100 * share:.1f} % of the rows"
    note = f"losses are ranked by balanced accuracy, because {where}; metric='accuracy' ranks by accuracy"
    return "balanced_accuracy", [note]


def check_metric(metric: Any) -> str:
    """Return the name of a metric that can rank methods, or refuse it."""
    if not isinstance(metric, str) or metric not in METRICS:
        raise InputError(
            f"{spell_option('metric')} must be one of {', '.join(RANKING_METRICS)}, got {format_value(metric)}"
        )
    if metric not in RANKING_METRICS:
        raise InputError(
            f"{spell_option('metric', metric)} cannot rank losses, because constant predictions of the class "
            "frequencies score almost 0; use "
            "log_loss or brier, which count calibration too (every table shows the calibration error)"
        )
    return metric


def defined_folds(results: Sequence[Result], metric: Metric) -> list[int]:
    """The folds in which a metric is defined for every loss of a set; an InputError where there are none."""
    scores = [result.scores(metric.name) for result in results]
    if len({len(folds) for folds in scores}) > 1:  # the tests report which results differ
        return list(range(max(map(len, scores))))
    found = [k for k, fold in enumerate(zip(*scores, strict=True)) if all(map(math.isfinite, fold))]
    if not found:
        raise InputError(
            f"{results[0].set}: {metric.label} is defined in no fold, because test parts have rows of one class "
            "only, or a classifier gives no probabilities; use fewer folds, stratified folds or another metric"
        )
    return found


def select_scores(result: Result, metric: Metric, folds: Sequence[int]) -> list[float]:
    """The scores of a result in these folds, of a baseline in the first of them; empty where one is undefined."""
    if not result.is_baseline:
        scores = result.scores(metric.name)
    else:
        scores = result.folds if metric.name == "accuracy" else result.metrics.get(metric.name, [])
    found = [scores[k] for k in folds if k < len(scores)]
    return found if all(map(math.isfinite, found)) else []
