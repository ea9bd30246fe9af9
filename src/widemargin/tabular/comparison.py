"""What a set of results says: ranks, wins, intervals, tests and verdict, computed once for terminal, page and JSON.

One metric decides all of these; tests and ranks see the negative of a metric such as log loss, of which less is better.
Where the settings of a comparison fit a table badly, the verdict names options of the command to try next, and
`Comparison.suggested_config` is the same for Python.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from .. import stats
from ..io.errors import InputError
from ..metrics.classification import METRICS, Metric
from ..stats.fold_tests import p_values_against_best
from ..stats.verdict import VerdictKind, negate_scores
from .config import MLPConfig
from .fit_checks import baseline_caution, low_train_accuracy_caution, no_statement_verdict
from .metric_choice import check_metric, defined_folds, select_scores
from .recommendation import Recommendation
from .results import Result

if TYPE_CHECKING:
    import pandas as pd

ALPHA = 0.05

NO_STATEMENT_REASONS: dict[str, str] = {
    "underfit": "these settings underfit",
    "baseline_ahead": "a baseline is ahead of every loss",
    "chance": "no loss is significantly better than the majority class",
    "diverged": "every loss diverged",
}
"""Why no statement about the losses is made on a set, by the kind of its verdict."""


@dataclass(frozen=True)
class DatasetComparison:
    """All methods on one set, on the same folds; baselines are listed apart and have neither ranks nor marks."""

    set: str
    results: tuple[Result, ...]
    intervals: tuple[tuple[float, float], ...]
    """95 % interval of each mean, with the variance of overlapping folds."""
    ranks: tuple[float, ...]
    wins: tuple[int, ...]
    """In how many folds no other method was better."""
    not_worse: frozenset[str]
    """The best, and those that the corrected t-test does not find worse; empty where no statement is made."""
    groups: tuple[tuple[int, ...], ...]
    """Methods that no test tells apart, by place; empty where no statement is made."""
    verdict: str
    kind: VerdictKind = "no_evidence"
    baselines: tuple[Result, ...] = ()
    """Possibly on the first folds only."""
    baseline_intervals: tuple[tuple[float, float], ...] = ()
    suggested_config: MLPConfig | None = None
    """What the verdict suggests to try, where no statement is made and other settings may help."""
    metric: str = "accuracy"
    """The metric of ranks, tests, intervals and verdict."""
    adjusted_p: Mapping[str, float] = field(default_factory=dict)
    """Adjusted p of each loss against the best (corrected resampled t-test, Holm's correction over all pairs); empty
    where no statement is made."""

    @property
    def has_statement(self) -> bool:
        """Whether a statement about the losses is made, be it that no test tells them apart."""
        return self.kind not in NO_STATEMENT_REASONS

    @property
    def order(self) -> list[int]:
        """Places of the methods, the best mean first."""
        sign = _sign(METRICS[self.metric])
        return sorted(range(len(self.results)), key=lambda i: -sign * self.results[i].mean_and_std(self.metric)[0])

    @property
    def best_mean(self) -> float | None:
        """The mean that is marked as the best, rounded as it is shown; None where no statement is made."""
        if not self.has_statement:
            return None
        mean = self.results[self.order[0]].mean_and_std(self.metric)[0]
        return round(mean, METRICS[self.metric].decimals)

    @property
    def best(self) -> str | None:
        """The loss with the best mean; None where no statement is made."""
        return self.results[self.order[0]].loss if self.has_statement else None

    def table_rows(self) -> list[dict[str, Any]]:
        """The rows of `Comparison.table`: losses with the best mean first, then baselines."""
        unknown = (math.nan, None, None)
        places = [
            (rank, wins, result.loss in self.not_worse) if self.has_statement else unknown
            for result, rank, wins in zip(self.results, self.ranks, self.wins, strict=True)
        ]
        rows = [self._table_row(self.results[i], self.intervals[i], *places[i]) for i in self.order]
        spans = zip(self.baselines, self.baseline_intervals, strict=True)
        return rows + [self._table_row(result, interval, *unknown) for result, interval in spans]

    def _table_row(
        self, result: Result, interval: tuple[float, float], rank: float, wins: int | None, not_worse: bool | None
    ) -> dict[str, Any]:
        mean, std = result.mean_and_std(self.metric)
        angles = {key: math.degrees(result.angles.get(key, math.nan)) for key in ("wc_intra", "w_inter", "c_inter")}
        return {
            "set": self.set,
            "method": result.loss,
            "mean": mean,
            "std": std,
            "ci_low": interval[0],
            "ci_high": interval[1],
            "rank": rank,
            "wins": wins,
            "folds": len(result.folds),
            "train_accuracy": math.nan if result.train_mean is None else result.train_mean,
            **angles,
            "seconds": result.seconds,
            "not_worse": not_worse,
            "adjusted_p": math.nan if result.is_baseline else self.adjusted_p.get(result.loss, math.nan),
            "is_baseline": result.is_baseline,
            **{name: result.mean_and_std(name)[0] for name in METRICS},
        }


@dataclass(frozen=True, eq=False)
class CrossDatasetComparison:
    """All methods on several sets, by the ranks of their means; sets without a statement are left out."""

    sets: tuple[str, ...]
    scores: np.ndarray
    """[sets, methods]: means of the metric that decides."""
    averages: tuple[float, ...]
    mean_ranks: tuple[float, ...]
    wins: tuple[int, ...]
    tied_wins: tuple[int, ...]
    """How many of the wins were ties."""
    p_friedman: float
    critical_difference: float
    groups: tuple[tuple[int, ...], ...]
    not_worse: frozenset[str]
    """The best, and those that no test named in the verdict finds worse."""
    verdict: str
    kind: VerdictKind


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """What `compare` returns: every result, what the tests say of them, and a table, a page and JSON of it all.

    Printed, it is a short table with the verdict; a notebook shows the same as HTML.
    """

    methods: tuple[str, ...]
    """Losses; baselines only where there is no loss among the results."""
    sets: tuple[DatasetComparison, ...]
    across_datasets: CrossDatasetComparison | None
    """None where there is one set with a statement, or one method."""
    baselines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes: columns left out, unbalanced classes, losses that cannot learn or diverged."""
    data_notes: tuple[str, ...] = ()
    """A sentence on each table."""
    command: str = ""
    """The call or command that repeats the comparison, shown on the page."""
    metric: str = "accuracy"
    """What decides ranks, tests, intervals, verdict and best: a name of `widemargin.metrics.classification.METRICS`."""
    recommendation: Recommendation | None = None
    """What to use, and the command that fits it; None unless the comparison was made by `compare`."""

    @property
    def results(self) -> tuple[Result, ...]:
        """Every result, set after set: losses in the order given, then baselines."""
        return tuple(result for one in self.sets for result in (*one.results, *one.baselines))

    @property
    def best(self) -> str | None:
        """The loss with the best mean, or over several sets with the best mean rank; None without a statement.

        A statement is made unless the settings underfit, a baseline is ahead of every loss, no loss is better than the
        majority class, or all diverged (`kind`). The best need not be significantly better than the others: `not_worse`
        has all that no test finds worse, and `verdict` says it in words.
        """
        if self.across_datasets is not None:
            together = self.across_datasets
            places, sign = range(len(self.methods)), _sign(METRICS[self.metric])
            return self.methods[min(places, key=lambda i: (together.mean_ranks[i], -sign * together.averages[i]))]
        stated, _ = self._split_by_statement()
        return stated[0].best if stated else None

    @property
    def not_worse(self) -> frozenset[str]:
        """The best and every loss that no test finds worse than it; empty where no statement is made."""
        if self.across_datasets is not None:
            return self.across_datasets.not_worse
        stated, _ = self._split_by_statement()
        return stated[0].not_worse if stated else frozenset()

    @property
    def suggested_config(self) -> MLPConfig | None:
        """Settings to try where these fit the first set without a statement badly: `compare(…, mlp_config=…)`."""
        return next((one.suggested_config for one in self.sets if one.suggested_config is not None), None)

    @property
    def verdict(self) -> str:
        """What the numbers mean, in a few sentences."""
        if len(self.sets) == 1:
            return self.sets[0].verdict
        stated, left_out = self._split_by_statement()
        if not left_out:
            return self.sets[0].verdict if self.across_datasets is None else self.across_datasets.verdict
        why = "; ".join(f"{one.set} ({NO_STATEMENT_REASONS[one.kind]})" for one in left_out)
        if not stated:
            return f"No statement about the losses: {why}."
        first = (
            self.across_datasets.verdict
            if self.across_datasets is not None
            else f"On {stated[0].set}: {stated[0].verdict}"
        )
        return f"{first} Left out, because no statement about the losses can be made there: {why}."

    @property
    def kind(self) -> VerdictKind:
        """The kind of the verdict; of several sets without any statement the first one's."""
        if self.across_datasets is not None:
            return self.across_datasets.kind
        stated, left_out = self._split_by_statement()
        return (stated or left_out)[0].kind

    def _split_by_statement(self) -> tuple[list[DatasetComparison], list[DatasetComparison]]:
        return [one for one in self.sets if one.has_statement], [one for one in self.sets if not one.has_statement]

    def table(self) -> pd.DataFrame:
        """A row per set and method: losses with the best mean first, then baselines.

        Columns: set, method, mean, std and the 95 % interval ci_low, ci_high of the metric that decides (accuracy in
        percent, unless `metric` says another); rank and wins (folds in which no other loss was better) among the
        losses; folds; train_accuracy in percent; wc_intra, w_inter and c_inter in degrees; seconds; not_worse (than the
        best of the set, by the corrected t-test) and its adjusted_p; is_baseline; the mean of every metric by its name.
        rank, wins, not_worse and adjusted_p are missing for baselines and where no statement about the losses is made.
        """
        import pandas as pd

        frame = pd.DataFrame([row for one in self.sets for row in one.table_rows()])
        return frame.astype({"wins": "Int64", "not_worse": "boolean"})

    def to_json(self) -> str:
        """The verdict for programs: the metric, kind and sentence of all sets together and of each, and adjusted p."""
        sets = [
            {"set": one.set, "kind": one.kind, "verdict": one.verdict, "adjusted_p": dict(one.adjusted_p)}
            for one in self.sets
        ]
        known: dict[str, Any] = {"metric": self.metric, "kind": self.kind, "verdict": self.verdict, "sets": sets}
        if self.recommendation is not None:
            known["recommendation"] = self.recommendation.sentence
        return json.dumps(known, indent=1, ensure_ascii=False) + "\n"

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | Path) -> Path: ...
    def to_html(self, path: str | Path | None = None) -> str | Path:
        """The page: verdict, charts, numbers, how it was made. Returns its text, or writes it and returns the path.

        Args:
            path: file to write; None returns the page as text.
        """
        from ..io.locks import write_text_atomic
        from ..viz import page
        from ..viz.comparison_page import comparison_page

        notes = [page.paragraph(f"Note: {note}.", "note") for note in self.notes]
        text = comparison_page(self, self.data_notes, self.command, notes)
        if path is None:
            return text
        place = Path(path).expanduser()
        try:
            write_text_atomic(place, text)
        except OSError as error:
            raise InputError(f"{place}: cannot be written ({error.strerror or error}); choose another path") from None
        return place

    def __repr__(self) -> str:
        from ..viz.comparison_summary import summary_text

        return summary_text(self)

    def _repr_html_(self) -> str:
        from ..viz.comparison_summary import summary_html

        return summary_html(self)


def build_comparison(results: Sequence[Result], *, check_fit: bool = True, metric: str = "accuracy") -> Comparison:
    """Ranks and tests of results in one metric; every set must have the same methods.

    Where a baseline among them is ahead of every loss, or no loss is better than the majority class, no statement
    about the losses is made (`stats.verdict`), unless `check_fit` is False.
    """
    deciding = METRICS[check_metric(metric)]
    methods = tuple(dict.fromkeys(result.loss for result in results if not result.is_baseline))
    baselines = tuple(dict.fromkeys(result.loss for result in results if result.is_baseline))
    if not methods:
        methods, baselines = baselines, ()
    names = tuple(dict.fromkeys(result.set for result in results))
    by_key = {result.key: result for result in results}
    sets = tuple(
        _compare_on_dataset(
            name, [by_key[name, m] for m in methods], [by_key[name, b] for b in baselines], deciding, check_fit
        )
        for name in names
    )
    stated = [one for one in sets if one.has_statement]
    together = _compare_across_datasets(stated, methods, deciding) if len(stated) > 1 and len(methods) > 1 else None
    return Comparison(methods, sets, together, baselines, metric=metric)


def _sign(metric: Metric) -> float:
    """What scores are multiplied by so that the higher is the better."""
    return 1.0 if metric.higher_is_better else -1.0


def _test_fraction(result: Result) -> float:
    return 1.0 / int(result.settings.get("folds", 10))


def _compare_on_dataset(
    name: str, results: Sequence[Result], baselines: Sequence[Result], metric: Metric, check_fit: bool
) -> DatasetComparison:
    defined = defined_folds(results, metric)
    natural = {result.loss: select_scores(result, metric, defined) for result in results}
    folds = natural if metric.higher_is_better else negate_scores(natural)  # the higher the better
    test_fraction = _test_fraction(results[0])
    means = [[round(_sign(metric) * float(np.mean(scores)), metric.decimals) for scores in natural.values()]]
    verdict, suggested = (
        no_statement_verdict(results, baselines, metric, defined, test_fraction, ALPHA) if check_fit else (None, None)
    )
    has_statement = verdict is None
    adjusted_p = p_values_against_best(folds, test_fraction, family="pairs") if has_statement else {}
    if verdict is None:
        label = "" if metric.name == "accuracy" else metric.label
        verdict = stats.verdict_one_dataset(
            natural,
            test_fraction,
            alpha=ALPHA,
            family="pairs",
            metric=label,
            higher_is_better=metric.higher_is_better,
        )
        if check_fit and verdict.kind == "ahead":
            caution = baseline_caution(results, baselines, metric, defined)
            caution = caution or low_train_accuracy_caution(results, baselines)
            verdict = replace(verdict, sentence=verdict.sentence + caution)
    return DatasetComparison(
        set=name,
        results=tuple(results),
        intervals=tuple(_interval(scores, metric, test_fraction) for scores in natural.values()),
        ranks=tuple(stats.ranks(means)[0].tolist()),
        wins=tuple(stats.wins(np.array(list(folds.values())).T).counts),
        not_worse=frozenset(loss for loss, p in adjusted_p.items() if p > ALPHA),
        groups=_indistinguishable_groups(list(folds.values()), test_fraction) if has_statement else (),
        verdict=verdict.sentence,
        kind=verdict.kind,
        baselines=tuple(baselines),
        baseline_intervals=tuple(
            _interval(select_scores(result, metric, defined), metric, test_fraction) for result in baselines
        ),
        suggested_config=suggested,
        metric=metric.name,
        adjusted_p=adjusted_p,
    )


def _interval(scores: Sequence[float], metric: Metric, test_fraction: float) -> tuple[float, float]:
    """The interval of a mean, cut at what a score can be; NaN where the metric is not defined."""
    if not scores:
        return math.nan, math.nan
    bounds = (0.0, 100.0) if metric.is_percent else (0.0, 2.0 if metric.name == "brier" else math.inf)
    return stats.interval(scores, test_fraction, bounds=bounds)


def _indistinguishable_groups(folds: Sequence[Sequence[float]], test_fraction: float) -> tuple[tuple[int, ...], ...]:
    """Longest stretches of neighbours by mean among which no pair differs (corrected t, Holm over all pairs)."""
    order = sorted(range(len(folds)), key=lambda i: -float(np.mean(folds[i])))
    pairs = list(combinations(range(len(order)), 2))
    if not pairs:
        return ()
    tests = [stats.corrected_t_test(folds[order[a]], folds[order[b]], test_fraction).p for a, b in pairs]
    alike = {pair for pair, p in zip(pairs, stats.holm(tests), strict=True) if p > ALPHA}
    groups: list[tuple[int, ...]] = []
    reached = -1
    for start in range(len(order)):
        end = start
        while end + 1 < len(order) and all((i, end + 1) in alike for i in range(start, end + 1)):
            end += 1
        if end > start and end > reached:
            groups.append(tuple(order[start : end + 1]))
            reached = end
    return tuple(groups)


def _compare_across_datasets(
    sets: Sequence[DatasetComparison], methods: Sequence[str], metric: Metric
) -> CrossDatasetComparison:
    scores = np.array([[result.mean_and_std(metric.name)[0] for result in one.results] for one in sets])
    signed, decimals = _sign(metric) * scores, metric.decimals
    mean_ranks = stats.mean_ranks(signed, decimals=decimals)
    wins = stats.wins(signed, decimals=decimals)
    difference = stats.critical_difference(len(methods), len(sets), ALPHA)
    verdict = stats.verdict_many_datasets(
        scores,
        methods,
        alpha=ALPHA,
        decimals=decimals,
        metric="" if metric.name == "accuracy" else metric.label,
        higher_is_better=metric.higher_is_better,
    )
    return CrossDatasetComparison(
        sets=tuple(one.set for one in sets),
        scores=scores,
        averages=tuple(scores.mean(0).tolist()),
        mean_ranks=tuple(mean_ranks.tolist()),
        wins=tuple(wins.counts),
        tied_wins=tuple(wins.tie_counts),
        p_friedman=stats.friedman(signed, decimals=decimals).p,
        critical_difference=difference,
        groups=tuple(stats.cliques(mean_ranks, difference)),
        not_worse=frozenset(methods) - frozenset(verdict.worse),
        verdict=verdict.sentence,
        kind=verdict.kind,
    )
