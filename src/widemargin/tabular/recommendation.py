"""The recommendation after a comparison: the loss to use, or a baseline that no loss beats, and the command to fit."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..data.tabular.table import Table
from ..data.tabular.uci import uci_set_names
from ..io.errors import spell_option
from ..metrics.classification import METRICS
from .results import MAJORITY

if TYPE_CHECKING:
    from .comparison import Comparison, DatasetComparison

_STANDARD_INPUT = "stdin"


class Recommendation(NamedTuple):
    """A sentence, and the commands that fit the best loss, one for each table."""

    sentence: str
    commands: tuple[str, ...]


def recommend(comparison: Comparison, tables: Sequence[Table], folder: Path | None) -> Recommendation:
    """What to use on the tables of a comparison, whose results are stored in `folder`, or not stored if it is None."""
    by_name = {table.name: table for table in tables}
    sentences, commands = [], []
    for one in comparison.sets:
        where = "" if len(comparison.sets) == 1 else f"{one.set}: "
        sentences.append(where + _sentence(one))
        if one.set in by_name and not all(result.has_diverged for result in one.results):
            commands.append(fit_command(by_name[one.set], one, folder))
    return Recommendation(" ".join(sentences), tuple(commands))


def best_loss(comparison: DatasetComparison) -> str:
    """The loss with the best mean, whether or not the verdict makes a statement about the losses."""
    return comparison.results[comparison.order[0]].loss


def _sentence(one: DatasetComparison) -> str:
    """The recommendation for one table."""
    loss = best_loss(one)
    if one.kind == "diverged":
        return f"None of these: every loss diverged; compare again with a smaller {spell_option('lr')}."
    if one.kind == "chance":
        return "Nothing here beats always predicting the most frequent class."
    unbeaten = _unbeaten_baseline(one)
    if unbeaten:
        return f"Nothing here beats {unbeaten}. The best loss, for embeddings or rejection of unknown rows, is {loss}."
    others = len(one.not_worse) - 1
    if one.results and others > 0:
        rest = f"{others} other loss{'es are' if others > 1 else ' is'} not significantly worse"
        return f"Use {loss}: it has the best mean ({rest})."
    return f"Use {loss}." if len(one.results) == 1 else f"Use {loss}: it is the best of {len(one.results)} losses."


def _unbeaten_baseline(one: DatasetComparison) -> str:
    """The best baseline with at least the mean of the best loss on the same folds, with both means; empty if none."""
    metric = METRICS[one.metric]
    sign = 1.0 if metric.higher_is_better else -1.0
    best = one.results[one.order[0]]
    found: tuple[float, str] | None = None
    for baseline in one.baselines:
        scores = baseline.folds if metric.name == "accuracy" else baseline.metrics.get(metric.name, [])
        if baseline.loss == MAJORITY or not scores or not all(map(math.isfinite, scores)):
            continue
        ours = best.scores(metric.name)[: len(scores)]
        known = [k for k, score in enumerate(ours) if math.isfinite(score)]
        if not known:
            continue
        theirs_mean, ours_mean = (sum(values[k] for k in known) / len(known) for values in (scores, ours))
        if sign * theirs_mean >= sign * ours_mean and (found is None or sign * theirs_mean > found[0]):
            unit = " %" if metric.is_percent else ""
            decimals = metric.decimals
            means = f"{metric.label} {theirs_mean:.{decimals}f}{unit} against {ours_mean:.{decimals}f}{unit}"
            found = sign * theirs_mean, f"{baseline.loss} ({means} of {best.loss} on the same {len(known)} folds)"
    return "" if found is None else found[1]


def fit_command(table: Table, one: DatasetComparison, folder: Path | None) -> str:
    """The command, or for data given in Python the call, that fits the best loss of a table."""
    loss, model = best_loss(one), f"model-{table.name}"
    chosen = loss if folder is None else str(folder)
    is_set = not table.readings and table.name in uci_set_names()
    if not table.source and not is_set:
        target = f", target={table.target!r}" if table.target else ""
        return f"wm.fit(data{target}, loss={chosen!r}, out={model!r})"
    source = table.name if is_set else "-" if table.source == _STANDARD_INPUT else table.source
    words = ["widemargin", "fit", source, *([] if is_set else ["--target", table.target, *table.read_options])]
    return shlex.join([*words, "--loss", chosen, "--out", model])
