"""What a set of results says: ranks, wins, intervals, tests and verdict, computed once for terminal, page and JSON.

Where the settings of a comparison fit a table badly, the verdict names options of the command to try next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from .. import stats
from ..io.errors import InputError
from ..stats.verdict import OVERFIT_GAP, FoldAccuracies, Verdict, VerdictKind, verdict_if_not_comparable
from .config import MLPConfig
from .results import MAJORITY, Result

CONFIG_AGAINST_UNDERFITTING = MLPConfig(
    hidden=(256, 64), epochs=20.0, batch=64, lr=0.005, weight_decay=0.01, dropout=0.0
)
"""Ordinary settings for tables of thousands of rows: a wider network that is held back less and trained for longer."""
CONFIG_AGAINST_OVERFITTING = MLPConfig(epochs=4.0, weight_decay=1.0, dropout=0.5)


def suggest_options_against_underfitting(settings: Mapping[str, Any]) -> str:
    """Options with which models fit their training rows better than with the settings of a result.

    >>> suggest_options_against_underfitting({})
    '--hidden 256 64 --batch 64 --lr 0.005 --weight-decay 0.01 --dropout 0 --epochs 20'
    """
    current = _mlp_config_from_settings(settings)
    is_regularized_more = (
        current.dropout > CONFIG_AGAINST_UNDERFITTING.dropout
        or current.weight_decay > CONFIG_AGAINST_UNDERFITTING.weight_decay
    )
    if (
        is_regularized_more
        or current.hidden[0] < CONFIG_AGAINST_UNDERFITTING.hidden[0]
        or current.epochs < CONFIG_AGAINST_UNDERFITTING.epochs
    ):
        wide, last = CONFIG_AGAINST_UNDERFITTING.hidden
        inner = [max(width, wide) for width in current.hidden[:-1]] or [wide]
        hidden = (*inner, max(current.hidden[-1], last))
        better = replace(
            CONFIG_AGAINST_UNDERFITTING, hidden=hidden, epochs=max(current.epochs, CONFIG_AGAINST_UNDERFITTING.epochs)
        )
    else:  # these were tried: more of the same
        better = replace(current, hidden=tuple(2 * width for width in current.hidden), epochs=2 * current.epochs)
    return (
        f"--hidden {' '.join(map(str, better.hidden))} --batch {better.batch} --lr {better.lr:g} "
        f"--weight-decay {better.weight_decay:g} --dropout {better.dropout:g} --epochs {better.epochs:g}"
    )


def suggest_options_against_overfitting(settings: Mapping[str, Any]) -> str:
    """Options with which models fit their training rows less closely than with the settings of a result.

    >>> suggest_options_against_overfitting({})
    '--dropout 0.5 --weight-decay 1 --epochs 4'
    """
    current = _mlp_config_from_settings(settings)
    decay = max(CONFIG_AGAINST_OVERFITTING.weight_decay, 3 * current.weight_decay)
    dropout, epochs = (
        max(current.dropout, CONFIG_AGAINST_OVERFITTING.dropout),
        min(current.epochs, CONFIG_AGAINST_OVERFITTING.epochs),
    )
    return f"--dropout {dropout:g} --weight-decay {decay:g} --epochs {epochs:g}"


def _mlp_config_from_settings(settings: Mapping[str, Any]) -> MLPConfig:
    """The `MLPConfig` of a result; the default one where a line of a file holds none, or something else."""
    values = settings.get("mlp_config", {})
    try:
        return MLPConfig(**{**values, "hidden": tuple(values.get("hidden", MLPConfig().hidden))})
    except (InputError, TypeError):
        return MLPConfig()


ALPHA = 0.05
TIE_DECIMALS = 2
"""Accuracies that agree to so many decimals of a percent are a tie."""


LOW_TRAIN_ACCURACY = 90.0
"""Percent; below this training accuracy a statement without baselines comes with a caution."""

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
    """Perhaps on the first few folds only."""
    baseline_intervals: tuple[tuple[float, float], ...] = ()

    @property
    def has_statement(self) -> bool:
        """Whether a statement about the losses is made, be it that no test tells them apart."""
        return self.kind not in NO_STATEMENT_REASONS

    @property
    def order(self) -> list[int]:
        """Places of the methods, the highest mean first."""
        return sorted(range(len(self.results)), key=lambda i: -self.results[i].mean)

    @property
    def best_mean(self) -> float | None:
        """The mean that is marked as the best, in two decimals; None where no statement is made."""
        return max(round(result.mean, TIE_DECIMALS) for result in self.results) if self.has_statement else None


@dataclass(frozen=True)
class CrossDatasetComparison:
    """All methods on several sets, by the ranks of their means; sets without a statement are left out."""

    sets: tuple[str, ...]
    scores: np.ndarray
    """[sets, methods] in percent."""
    averages: tuple[float, ...]
    mean_ranks: tuple[float, ...]
    wins: tuple[int, ...]
    tied_wins: tuple[int, ...]
    """How many of the wins were ties."""
    p_friedman: float
    critical_difference: float
    groups: tuple[tuple[int, ...], ...]
    verdict: str
    kind: VerdictKind


@dataclass(frozen=True)
class Comparison:
    """Everything a report shows."""

    methods: tuple[str, ...]
    """Losses; baselines only where there is no loss among the results."""
    sets: tuple[DatasetComparison, ...]
    across_datasets: CrossDatasetComparison | None
    """None where there is one set with a statement, or one method."""
    baselines: tuple[str, ...] = ()

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


def build_comparison(results: Sequence[Result], *, check_fit: bool = True) -> Comparison:
    """Ranks and tests of results; every set must have the same methods.

    Where a baseline among them is ahead of every loss, or no loss is better than the majority class, no statement
    about the losses is made (`stats.verdict`), unless `check_fit` is False.
    """
    methods = tuple(dict.fromkeys(result.loss for result in results if not result.is_baseline))
    baselines = tuple(dict.fromkeys(result.loss for result in results if result.is_baseline))
    if not methods:
        methods, baselines = baselines, ()
    names = tuple(dict.fromkeys(result.set for result in results))
    by_key = {result.key: result for result in results}
    sets = tuple(
        _compare_on_dataset(name, [by_key[name, m] for m in methods], [by_key[name, b] for b in baselines], check_fit)
        for name in names
    )
    stated = [one for one in sets if one.has_statement]
    together = _compare_across_datasets(stated, methods) if len(stated) > 1 and len(methods) > 1 else None
    return Comparison(methods, sets, together, baselines)


def _test_fraction(result: Result) -> float:
    return 1.0 / int(result.settings.get("folds", 10))


def _compare_on_dataset(
    name: str, results: Sequence[Result], baselines: Sequence[Result], check_fit: bool
) -> DatasetComparison:
    folds = {result.loss: result.folds for result in results}
    test_fraction = _test_fraction(results[0])
    means = [[round(result.mean, TIE_DECIMALS) for result in results]]
    per_fold = np.array([result.folds for result in results]).T
    verdict = _no_statement_verdict(results, baselines, test_fraction) if check_fit else None
    has_statement = verdict is None
    if verdict is None:
        verdict = stats.verdict_one_dataset(folds, test_fraction, alpha=ALPHA, family="pairs")
        if check_fit and verdict.kind == "ahead":
            caution = _baseline_caution(results, baselines) or _low_train_accuracy_caution(results, baselines)
            verdict = replace(verdict, sentence=verdict.sentence + caution)
    return DatasetComparison(
        set=name,
        results=tuple(results),
        intervals=_intervals(results, test_fraction),
        ranks=tuple(stats.ranks(means)[0].tolist()),
        wins=tuple(stats.wins(per_fold).counts),
        not_worse=frozenset(
            stats.methods_not_worse(folds, test_fraction, ALPHA, family="pairs") if has_statement else ()
        ),
        groups=_indistinguishable_groups(results, test_fraction) if has_statement else (),
        verdict=verdict.sentence,
        kind=verdict.kind,
        baselines=tuple(baselines),
        baseline_intervals=_intervals(baselines, test_fraction),
    )


def _intervals(results: Sequence[Result], test_fraction: float) -> tuple[tuple[float, float], ...]:
    return tuple(stats.interval(result.folds, test_fraction, bounds=(0.0, 100.0)) for result in results)


def _no_statement_verdict(
    results: Sequence[Result], baselines: Sequence[Result], test_fraction: float
) -> Verdict | None:
    """Why nothing can be said about the losses of a set, and what to try; None where they can be compared."""
    if baselines and all(result.has_diverged for result in results):
        sentence = "Every loss diverged; no statement about the losses. Try a smaller --lr."
        return Verdict((), (), 1.0, sentence, "diverged")
    scores = FoldAccuracies(
        test={result.loss: result.folds for result in results},
        train={result.loss: result.train for result in results if result.train},
        baselines={result.loss: result.folds for result in baselines if result.loss != MAJORITY},
        majority=next((result.folds for result in baselines if result.loss == MAJORITY), ()),
    )
    found = verdict_if_not_comparable(scores, test_fraction, ALPHA)
    return (
        None
        if found is None
        else replace(found, sentence=f"{found.sentence} {_suggestion_sentence(found, results, scores)}")
    )


def _suggestion_sentence(verdict: Verdict, results: Sequence[Result], scores: FoldAccuracies) -> str:
    """What may help, as options of the command where settings can."""
    if (
        verdict.kind == "chance"
        and scores.baselines
        and not any(map(scores.is_above_chance, scores.baselines.values()))
    ):
        return "Nor is a baseline: other columns or more rows are needed."
    settings, fitted = results[0].settings, [result.train_mean for result in results if result.train_mean is not None]
    best_mean = max(result.mean for result in results)
    if verdict.kind != "underfit" and fitted and max(fitted) >= best_mean + OVERFIT_GAP:
        options = suggest_options_against_overfitting(settings)
        return f"More rows or fewer columns may help; else try, with another --out: {options}."
    return f"Try, with another --out: {suggest_options_against_underfitting(settings)}."


def _baseline_caution(results: Sequence[Result], baselines: Sequence[Result]) -> str:
    """A sentence where a baseline has a higher mean than every loss, though no test shows it."""
    for result in sorted(baselines, key=lambda baseline: -baseline.mean):
        if result.mean > max(float(np.mean(loss.folds[: len(result.folds)])) for loss in results):
            higher = (
                f" {result.loss} has a higher mean than every loss ({result.mean:.1f} % in {len(result.folds)} folds)"
            )
            return f"{higher}: with other settings the order of the losses may be another."
    return ""


def _low_train_accuracy_caution(results: Sequence[Result], baselines: Sequence[Result]) -> str:
    """A sentence where training accuracy is low and no baseline was run that would show whether more can be had."""
    fitted = [result.train_mean for result in results if result.train_mean is not None]
    if any(result.loss != MAJORITY for result in baselines) or not fitted or max(fitted) >= LOW_TRAIN_ACCURACY:
        return ""
    return (
        f" No loss has more than {max(fitted):.1f} % even on the rows it has learnt from, and no baseline was run that "
        "would show whether these settings underfit: with others the order of the losses may be another."
    )


def _indistinguishable_groups(results: Sequence[Result], test_fraction: float) -> tuple[tuple[int, ...], ...]:
    """Longest stretches of neighbours by mean among which no pair differs (corrected t, Holm over all pairs)."""
    order = sorted(range(len(results)), key=lambda i: -results[i].mean)
    pairs = list(combinations(range(len(order)), 2))
    if not pairs:
        return ()
    tests = [
        stats.corrected_t_test(results[order[a]].folds, results[order[b]].folds, test_fraction).p for a, b in pairs
    ]
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


def _compare_across_datasets(sets: Sequence[DatasetComparison], methods: Sequence[str]) -> CrossDatasetComparison:
    scores = np.array([[result.mean for result in one.results] for one in sets])
    mean_ranks = stats.mean_ranks(scores, decimals=TIE_DECIMALS)
    wins = stats.wins(scores, decimals=TIE_DECIMALS)
    difference = stats.critical_difference(len(methods), len(sets), ALPHA)
    verdict = stats.verdict_many_datasets(scores, methods, alpha=ALPHA, decimals=TIE_DECIMALS)
    return CrossDatasetComparison(
        sets=tuple(one.set for one in sets),
        scores=scores,
        averages=tuple(scores.mean(0).tolist()),
        mean_ranks=tuple(mean_ranks.tolist()),
        wins=tuple(wins.counts),
        tied_wins=tuple(wins.tie_counts),
        p_friedman=stats.friedman(scores, decimals=TIE_DECIMALS).p,
        critical_difference=difference,
        groups=tuple(stats.cliques(mean_ranks, difference)),
        verdict=verdict.sentence,
        kind=verdict.kind,
    )


def comparison_to_json(comparison: Comparison) -> str:
    """The verdict for programs: its kind and sentence, of all sets together and of each."""
    sets = [{"set": one.set, "kind": one.kind, "verdict": one.verdict} for one in comparison.sets]
    return (
        json.dumps({"kind": comparison.kind, "verdict": comparison.verdict, "sets": sets}, indent=1, ensure_ascii=False)
        + "\n"
    )
