"""The outcome of a comparison in plain words: at most two sentences, and no claim without a test.

`verdict_one_dataset` and `verdict_many_datasets` compare methods; `verdict_if_not_comparable` decides from the scores
of simple baselines whether the methods fit a table well enough to be compared at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..io.errors import InputError
from .fold_tests import (
    FloatArray,
    Split,
    best_methods,
    check_fraction,
    check_score_table,
    corrected_t_test,
    holm,
    p_values_against_best,
)
from .rank_tests import critical_difference, friedman, ranks, signed_rank_test, wilcoxon

VerdictKind = Literal["ahead", "no_evidence", "alone", "underfit", "baseline_ahead", "chance", "diverged"]
"""`ahead`: a test separates the best from another method; `no_evidence`: none does; `alone`: there is one method only.
The last four make no statement about the methods, because of what baselines reach (see `verdict_if_not_comparable`)
or because no method has numbers."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of a comparison.

    `best` has the best mean score or mean rank (several in a tie), significant or not. `worse` are the methods that a
    test named in the sentence finds worse than the first of them; nothing is claimed about the others. `p` belongs to
    the first test: Friedman's, or the smallest adjusted p if each method is tested.
    """

    best: tuple[str, ...]
    worse: tuple[str, ...]
    p: float
    sentence: str
    kind: VerdictKind = "no_evidence"


def verdict_one_dataset(
    folds: Mapping[str, Sequence[float]],
    test_fraction: Split,
    *,
    alpha: float = 0.05,
    family: Literal["best", "pairs"] = "best",
    metric: str = "",
    higher_is_better: bool = True,
) -> Verdict:
    """Compare methods on the same folds of one set by the corrected resampled t-test with Holm's correction.

    `metric` names the scores in the sentence; set `higher_is_better=False` for a metric such as log loss.

    >>> scores = {"arcgrad": [91, 89, 92, 90, 93], "softmax": [90, 90, 91, 90, 92], "adacos": [50, 52, 49, 51, 50]}
    >>> print(verdict_one_dataset(scores, test_fraction=0.2).sentence)
    arcgrad has the highest mean on this set and is ahead of adacos (corrected resampled t-test with Holm's \
correction, adjusted p = 4.08e-05). softmax is not significantly worse.
    """
    alpha = check_fraction("alpha", alpha)
    if not higher_is_better:
        folds = negate_scores(folds)
    place = f"the {'highest' if higher_is_better else 'lowest'} mean{metric and ' '}{metric}"
    p = p_values_against_best(folds, test_fraction, family=family)
    best = best_methods(folds)
    if len(p) == 1:
        return Verdict(best, (), 1.0, _ONE_METHOD_SENTENCE.format(best[0]), "alone")
    worse = tuple(name for name in p if p[name] <= alpha)
    test = "corrected resampled t-test with Holm's correction"
    smallest = min(p.values())
    if not worse:
        sentence = (
            f"These folds give no evidence that the {len(p)} methods differ ({test}, "
            f"smallest adjusted p = {smallest:.3g}). {_describe_leaders(best, place)}, which may be chance."
        )
        return Verdict(best, (), smallest, sentence)
    ahead = f"{best[0]} is ahead" if len(best) > 1 else "is ahead"
    largest = max(p[name] for name in worse)
    sentence = (
        f"{_describe_leaders(best, place)} on this set and {ahead} of {join_names(worse)} "
        f"({test}, adjusted p {'=' if len(worse) == 1 else '≤'} {largest:.3g})."
    )
    level = [name for name in p if name not in worse and name not in best]
    if level:
        sentence += f" {join_names(level)} {'is' if len(level) == 1 else 'are'} not significantly worse."
    return Verdict(best, worse, smallest, sentence, "ahead")


def negate_scores(folds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return scores with the opposite sign, so that higher is better for a metric such as log loss."""
    return {name: [-score for score in scores] for name, scores in folds.items()}


def verdict_many_datasets(
    scores: ArrayLike,
    names: Sequence[str],
    *,
    alpha: float = 0.05,
    decimals: int | None = None,
    metric: str = "",
    higher_is_better: bool = True,
) -> Verdict:
    """Compare methods over many sets, scores [sets, methods]: the Friedman test first, pairs only if it rejects.

    The best mean rank is then compared with the others by Nemenyi's test and by Wilcoxon's with Holm's correction.
    If Wilcoxon's favours the other method, the tests contradict each other and nothing is claimed. Two methods need
    only Wilcoxon's test (Demšar 2006, section 3.1). `metric` names the scores in the sentence.

    >>> scores = [[0.9, 0.8, 0.7], [0.8, 0.9, 0.6], [0.9, 0.7, 0.6], [0.8, 0.7, 0.6]]
    >>> print(verdict_many_datasets(scores, ["arcgrad", "softmax", "adacos"]).sentence)
    Over 4 sets the 3 methods differ (Friedman test, p = 0.0417). arcgrad has the best mean rank, 1.25, and is ahead \
of adacos by Nemenyi's test; Wilcoxon's with Holm's correction separates it from none.
    """
    alpha = check_fraction("alpha", alpha)
    values = check_score_table(scores, decimals)
    if not higher_is_better:
        values = -values
    n, k = values.shape
    if len(names) != k:
        raise InputError(f"{len(names)} names for {k} methods; scores must be [sets, methods] with a name for each")
    if k == 1:
        return Verdict((names[0],), (), 1.0, _ONE_METHOD_SENTENCE.format(names[0]), "alone")
    sets = f"{n} sets" if n > 1 else "1 set"
    differ = f"differ in {metric}" if metric else "differ"
    if k == 2:
        return _verdict_of_two_methods(values, names, alpha, sets, differ)
    mean = ranks(values).mean(axis=0)
    best_columns = [i for i in range(k) if mean[i] <= mean.min() + 1e-9]
    best = tuple(names[i] for i in best_columns)
    p = friedman(values).p
    if p > alpha:
        sentence = (
            f"{sets} give{'s' if n == 1 else ''} no evidence that the {k} methods {differ} (Friedman test, "
            f"p = {p:.3g}). {_describe_leaders(best, 'the best mean rank')}, {mean.min():.3g}, which may be chance."
        )
        return Verdict(best, (), p, sentence)
    first = best_columns[0]
    cd = critical_difference(k, n, alpha)
    by_nemenyi = [names[i] for i in range(k) if mean[i] - mean[first] >= cd]
    by_wilcoxon = [
        names[pair.second]
        for pair in wilcoxon(values, first)
        if pair.adjusted_p <= alpha and pair.test.plus > pair.test.minus
    ]
    sentence = (
        f"Over {sets} the {k} methods {differ} (Friedman test, p = {p:.3g}). "
        f"{_describe_leaders(best, 'the best mean rank')}, {mean.min():.3g}, "
        f"{_describe_claims(best, by_nemenyi, by_wilcoxon)}."
    )
    worse = tuple(name for name in names if name in by_nemenyi or name in by_wilcoxon)
    return Verdict(best, worse, p, sentence, "ahead" if worse else "no_evidence")


_ONE_METHOD_SENTENCE = "Only {} was run, so there is nothing to compare."


def _verdict_of_two_methods(values: FloatArray, names: Sequence[str], alpha: float, sets: str, differ: str) -> Verdict:
    test = signed_rank_test(values[:, 0], values[:, 1])
    best = tuple(names) if test.plus == test.minus else (names[0] if test.plus > test.minus else names[1],)
    other = tuple(name for name in names if name not in best)
    if test.p <= alpha:
        where = f"{other[0]}{differ.removeprefix('differ')}"
        sentence = f"Over {sets} {best[0]} is ahead of {where} (Wilcoxon signed-rank test, p = {test.p:.3g})."
        return Verdict(best, other, test.p, sentence, "ahead")
    sentence = (
        f"{sets} give{'s' if sets == '1 set' else ''} no evidence that {names[0]} and {names[1]} {differ} "
        f"(Wilcoxon signed-rank test, p = {test.p:.3g})."
    )
    return Verdict(best, (), test.p, sentence)


def _describe_claims(best: tuple[str, ...], by_nemenyi: list[str], by_wilcoxon: list[str]) -> str:
    who, it = (f"{best[0]} is", best[0]) if len(best) > 1 else ("is", "it")
    if not by_nemenyi and not by_wilcoxon:
        return f"but neither Nemenyi's test nor Wilcoxon's with Holm's correction separates {it} from any other"
    if by_nemenyi == by_wilcoxon:
        return f"and {who} ahead of {join_names(by_nemenyi)} by Nemenyi's test and by Wilcoxon's with Holm's correction"
    if not by_wilcoxon:
        return (
            f"and {who} ahead of {join_names(by_nemenyi)} by Nemenyi's test; "
            f"Wilcoxon's with Holm's correction separates {it} from none"
        )
    if not by_nemenyi:
        return (
            f"and {who} ahead of {join_names(by_wilcoxon)} by Wilcoxon's test with Holm's correction; "
            f"Nemenyi's separates {it} from none"
        )
    return (
        f"and {who} ahead of {join_names(by_nemenyi)} by Nemenyi's test and "
        f"of {join_names(by_wilcoxon)} by Wilcoxon's with Holm's correction"
    )


def _describe_leaders(best: tuple[str, ...], what: str) -> str:
    return f"{best[0]} has {what}" if len(best) == 1 else f"{join_names(best)} share {what}"


def join_names(names: Sequence[str]) -> str:
    """Names as a sentence lists them: `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# Comparability: do the methods fit a table well enough, judged by simple baselines on the same folds?
#
# Methods that are all worse than logistic regression or a random forest differ in how badly their settings suit the
# table, not in what they can reach: other settings may reverse their order. So no statement is made about them
# if a baseline is significantly ahead of every one on the test parts, or its test accuracy exceeds even their accuracy
# on the training parts by 5 points, or if none is better than the majority class. Methods that fit their own training
# rows no better than a baseline predicts new rows underfit.
#
# Tests are corrected resampled t-tests (`fold_tests.corrected_t_test`) on the common folds. A claim about every
# method needs every one of its tests, so its p is the largest of them (an intersection-union test: R. L. Berger,
# Technometrics 24, 1982); Holm's correction covers the baselines.

ScoresByMethod = Mapping[str, Sequence[float]]

MIN_LEAD_OVER_MAJORITY = 0.2
"""A lead over the majority class of this fraction of its errors counts as real even if few folds do not show it."""
UNDERFIT_GAP = 5.0
"""Percentage points by which a baseline's test accuracy must exceed a training accuracy to call it low."""
OVERFIT_GAP = 10.0
"""Percentage points between training and test accuracy from which a method behind a baseline is said to overfit."""

_TEST_NAME = "corrected resampled t-test, Holm over the baselines"


class FoldScores(NamedTuple):
    """Scores of the methods of one set, fold by fold in the same order: accuracies in percent unless `metric` says
    something else."""

    test: ScoresByMethod
    train: ScoresByMethod
    """Accuracies on the training parts; methods without them are absent."""
    baselines: ScoresByMethod
    """Scores of the baselines on the test parts, possibly of the first folds only."""
    majority: Sequence[float] = ()
    metric: str = ""
    """Name of the scores in sentences; empty for accuracy."""
    is_percent: bool = True
    higher_is_better: bool = True
    test_accuracy: ScoresByMethod | None = None
    """Accuracies of the methods on the test parts; None if the scores are accuracies."""
    baseline_accuracy: ScoresByMethod | None = None

    def is_above_chance(self, folds: Sequence[float]) -> bool:
        """True if the lead over the majority class on the common folds is a large fraction of its errors."""
        count, perfect = min(len(folds), len(self.majority)), 100.0 if self.is_percent else 0.0
        errors = abs(perfect - float(np.mean(self.majority[:count])))
        lead = errors - abs(perfect - float(np.mean(folds[:count])))
        return lead >= MIN_LEAD_OVER_MAJORITY * errors

    def negate_losses(self) -> FoldScores:
        """Return the same scores with the sign changed if lower is better, so that higher is better."""
        if self.higher_is_better:
            return self
        majority = [-score for score in self.majority]
        return self._replace(test=negate_scores(self.test), baselines=negate_scores(self.baselines), majority=majority)

    def describe(self, signed_score: float) -> str:
        """Format a score for a sentence."""
        score = signed_score if self.higher_is_better else -signed_score
        return f"{score:.1f} %" if self.is_percent else f"{score:.3f}"


def verdict_if_not_comparable(scores: FoldScores, test_fraction: Split, alpha: float = 0.05) -> Verdict | None:
    """Return the reason why the methods cannot be compared; None if they can.

    >>> scores = FoldScores(
    ...     {"a": [38, 39, 40, 38], "b": [30, 31, 31, 29]},
    ...     {"a": [40, 40, 41, 40], "b": [32] * 4},
    ...     {"forest": [53, 54, 53, 54]},
    ... )
    >>> print(verdict_if_not_comparable(scores, test_fraction=0.25).sentence)
    These settings underfit; no statement about the losses. forest has 53.5 % on rows that it has not seen; no loss \
has more than 38.8 % there (a), or 40.2 % on the rows it has learnt from (corrected resampled t-test, Holm over the \
baselines, adjusted p = 0.000601).
    """
    alpha, signed = check_fraction("alpha", alpha), scores.negate_losses()
    return _verdict_if_behind_baseline(signed, test_fraction, alpha) or _verdict_if_at_chance(
        signed, test_fraction, alpha
    )


def _verdict_if_behind_baseline(scores: FoldScores, test_fraction: Split, alpha: float) -> Verdict | None:
    if not scores.baselines or not scores.test:
        return None
    test_accuracy = scores.test if scores.test_accuracy is None else scores.test_accuracy
    accuracies = scores.baselines if scores.baseline_accuracy is None else scores.baseline_accuracy
    has_train = scores.train.keys() == scores.test.keys()  # training accuracies of every method are available
    ahead = _baselines_ahead_of_all(scores.baselines, scores.test, test_fraction, alpha)
    if has_train:
        better = _baselines_ahead_of_all(accuracies, scores.train, test_fraction, alpha, UNDERFIT_GAP)
        ahead = {**{name: p for name, p in better.items() if name in scores.baselines}, **ahead}
    if not ahead:
        return None
    baseline = max(ahead, key=lambda name: float(np.mean(scores.baselines[name])))
    reached, count = float(np.mean(scores.baselines[baseline])), len(scores.baselines[baseline])
    (best, mean), accuracy = _best_mean(scores.test, count), _best_mean(test_accuracy, count)[1]
    fitted = _best_mean(scores.train, count)[1] if has_train else None
    tested = f"({_TEST_NAME}, adjusted p = {ahead[baseline]:.3g})"
    new_rows_accuracy = float(np.mean(accuracies[baseline]))
    if fitted is not None and new_rows_accuracy >= fitted:
        what = " an accuracy of" if scores.metric else ""
        sentence = (
            f"These settings underfit; no statement about the losses. {baseline} has{what} "
            f"{new_rows_accuracy:.1f} % on rows that it has not seen; no loss has more than {accuracy:.1f} % there "
            f"({_best_mean(test_accuracy, count)[0]}), or {fitted:.1f} % on the rows it has learnt from {tested}."
        )
        return Verdict((), (), ahead[baseline], sentence, "underfit")
    what = f" a {scores.metric} of" if scores.metric else ""
    sentence = (
        f"{baseline} is ahead of every loss; no statement about the losses. It has{what} {scores.describe(reached)}, "
        f"the best loss, {best}, {scores.describe(mean)} {tested}."
    )
    if fitted is not None:
        how = "overfit" if fitted - accuracy >= OVERFIT_GAP else "do not suit this table"
        what = " an accuracy of" if scores.metric else ""
        sentence += f" On the rows that it has learnt from, a loss has{what} {fitted:.1f} %: these settings {how}."
    return Verdict((), (), ahead[baseline], sentence, "baseline_ahead")


def _verdict_if_at_chance(scores: FoldScores, test_fraction: Split, alpha: float) -> Verdict | None:
    if not len(scores.majority) or not scores.test:
        return None
    tests = [_p_value_ahead(folds, scores.majority, test_fraction) for folds in scores.test.values()]
    if min(tests) <= alpha or any(map(scores.is_above_chance, scores.test.values())):
        return None
    reached, mean = float(np.mean(scores.majority)), _best_mean(scores.test, len(scores.majority))[1]
    what = f"{scores.metric} " if scores.metric else ""
    sentence = (
        f"No loss is significantly better than the majority class ({what}{scores.describe(reached)}; the best has "
        f"{scores.describe(mean)}, corrected resampled t-test, smallest p = {min(tests):.3g}); no statement about the "
        "losses."
    )
    return Verdict((), (), min(tests), sentence, "chance")


def _baselines_ahead_of_all(
    baselines: ScoresByMethod, methods: ScoresByMethod, test_fraction: Split, alpha: float, min_lead: float = 0.0
) -> dict[str, float]:
    """Return the baselines significantly ahead of every method, by at least `margin` points, with their p."""
    worst = [
        max(_p_value_ahead(folds, other, test_fraction) for other in methods.values()) for folds in baselines.values()
    ]
    adjusted = dict(zip(baselines, holm(worst).tolist(), strict=True))
    leads = {name: float(np.mean(folds)) - _best_mean(methods, len(folds))[1] for name, folds in baselines.items()}
    return {name: p for name, p in adjusted.items() if p <= alpha and leads[name] >= min_lead}


def _p_value_ahead(folds: Sequence[float], other: Sequence[float], test_fraction: Split) -> float:
    """p of the test on the common folds; 1 unless `folds` have the higher mean."""
    count = min(len(folds), len(other))
    test = corrected_t_test(folds[:count], other[:count], test_fraction)
    return test.p if test.difference > 0 else 1.0


def _best_mean(methods: ScoresByMethod, num_folds: int) -> tuple[str, float]:
    """Return the method with the highest mean over the first `num_folds` folds, and that mean."""
    means = {name: float(np.mean(folds[:num_folds])) for name, folds in methods.items()}
    best = max(means, key=lambda name: means[name])
    return best, means[best]
