"""Whether methods fit a table well enough to be compared, by what simple baselines reach on the same folds.

Methods that are all worse than logistic regression or a random forest differ in how badly their settings suit the
table, not in what they can do: their order may turn round with other settings. So no statement is made about them
where a baseline is significantly ahead of every one on the test parts, or by 5 points even of their accuracy on the
training parts, nor where none is better than always answering the most frequent class. Methods that fit their own
training rows no better than a baseline answers new ones underfit.

Tests are corrected resampled t-tests (`resampled.corrected_t`) on the folds that both have. A claim about every method
needs every one of its tests, so that its p is the largest of them (an intersection-union test: R. L. Berger,
Technometrics 24, 1982); Holm's correction goes over the baselines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .correction import holm
from .resampled import Split, corrected_t_test
from .scores import check_fraction
from .verdict import Verdict

ScoresByMethod = Mapping[str, Sequence[float]]

MIN_LEAD_OVER_MAJORITY = 0.2
"""A lead over the majority class of this share of its errors is more than chance, though few folds may not show it."""
UNDERFIT_GAP = 5.0
"""Percent points by which a baseline's test accuracy must exceed a training accuracy for this to be low."""
OVERFIT_GAP = 10.0
"""Percent points from test to training accuracy from which on a method behind a baseline is said to overfit."""

_TEST_NAME = "corrected resampled t-test, Holm over the baselines"


class FoldAccuracies(NamedTuple):
    """Accuracies in percent of the methods of one set, fold by fold in the same order."""

    test: ScoresByMethod
    train: ScoresByMethod
    """On the training parts; methods of which it is not known are absent."""
    baselines: ScoresByMethod
    """On the test parts, perhaps of fewer folds: the first ones."""
    majority: Sequence[float] = ()

    def is_above_chance(self, folds: Sequence[float]) -> bool:
        """Whether the lead over the majority class on the folds in common is a large share of its errors."""
        count = min(len(folds), len(self.majority))
        reached = float(np.mean(self.majority[:count]))
        return float(np.mean(folds[:count])) - reached >= MIN_LEAD_OVER_MAJORITY * (100.0 - reached)


def verdict_if_not_comparable(scores: FoldAccuracies, test_fraction: Split, alpha: float = 0.05) -> Verdict | None:
    """Why nothing can be said about the methods; None where they can be compared.

    >>> scores = Scores(
    ...     {"a": [38, 39, 40, 38], "b": [30, 31, 31, 29]},
    ...     {"a": [40, 40, 41, 40], "b": [32] * 4},
    ...     {"forest": [53, 54, 53, 54]},
    ... )
    >>> print(no_statement(scores, test_share=0.25).sentence)
    These settings underfit; no statement about the losses. forest has 53.5 % on rows that it has not seen; no loss \
has more than 38.8 % there (a), or 40.2 % on the rows it has learnt from (corrected resampled t-test, Holm over the \
baselines, p = 0.000601).
    """
    alpha = check_fraction("alpha", alpha)
    return _verdict_if_behind_baseline(scores, test_fraction, alpha) or _verdict_if_at_chance(
        scores, test_fraction, alpha
    )


def _verdict_if_behind_baseline(scores: FoldAccuracies, test_fraction: Split, alpha: float) -> Verdict | None:
    if not scores.baselines or not scores.test:
        return None
    known = scores.train.keys() == scores.test.keys()  # of every method, how well it fits the training parts
    ahead = _baselines_ahead_of_all(scores.baselines, scores.test, test_fraction, alpha)
    if known:
        better = _baselines_ahead_of_all(scores.baselines, scores.train, test_fraction, alpha, UNDERFIT_GAP)
        ahead = {**better, **ahead}
    if not ahead:
        return None
    baseline = max(ahead, key=lambda name: float(np.mean(scores.baselines[name])))
    reached, count = float(np.mean(scores.baselines[baseline])), len(scores.baselines[baseline])
    best, mean = _best_mean(scores.test, count)
    fitted = _best_mean(scores.train, count)[1] if known else None
    tested = f"({_TEST_NAME}, p = {ahead[baseline]:.3g})"
    if fitted is not None and reached >= fitted:
        sentence = (
            f"These settings underfit; no statement about the losses. {baseline} has {reached:.1f} % on rows that it "
            f"has not seen; no loss has more than {mean:.1f} % there ({best}), or {fitted:.1f} % on the rows it has "
            f"learnt from {tested}."
        )
        return Verdict((), (), ahead[baseline], sentence, "underfit")
    sentence = (
        f"{baseline} is ahead of every loss; no statement about the losses. It has {reached:.1f} %, the best loss, "
        f"{best}, {mean:.1f} % {tested}."
    )
    if fitted is not None:
        how = "overfit" if fitted - mean >= OVERFIT_GAP else "do not suit this table"
        sentence += f" On the rows that it has learnt from, a loss has {fitted:.1f} %: these settings {how}."
    return Verdict((), (), ahead[baseline], sentence, "baseline_ahead")


def _verdict_if_at_chance(scores: FoldAccuracies, test_fraction: Split, alpha: float) -> Verdict | None:
    if not len(scores.majority) or not scores.test:
        return None
    tests = [_p_value_ahead(folds, scores.majority, test_fraction) for folds in scores.test.values()]
    if min(tests) <= alpha or any(map(scores.is_above_chance, scores.test.values())):
        return None
    reached, mean = float(np.mean(scores.majority)), _best_mean(scores.test, len(scores.majority))[1]
    sentence = (
        f"No loss is significantly better than the majority class ({reached:.1f} %; the best has {mean:.1f} %, "
        f"corrected resampled t-test, smallest p = {min(tests):.3g}); no statement about the losses."
    )
    return Verdict((), (), min(tests), sentence, "chance")


def _baselines_ahead_of_all(
    baselines: ScoresByMethod, methods: ScoresByMethod, test_fraction: Split, alpha: float, min_lead: float = 0.0
) -> dict[str, float]:
    """Baselines that are significantly ahead of every method, and by at least so many points, with their p."""
    worst = [
        max(_p_value_ahead(folds, other, test_fraction) for other in methods.values()) for folds in baselines.values()
    ]
    adjusted = dict(zip(baselines, holm(worst).tolist(), strict=True))
    leads = {name: float(np.mean(folds)) - _best_mean(methods, len(folds))[1] for name, folds in baselines.items()}
    return {name: p for name, p in adjusted.items() if p <= alpha and leads[name] >= min_lead}


def _p_value_ahead(folds: Sequence[float], other: Sequence[float], test_fraction: Split) -> float:
    """p of the test on the folds in common; 1 where these are not the higher ones."""
    count = min(len(folds), len(other))
    found = corrected_t_test(folds[:count], other[:count], test_fraction)
    return found.p if found.difference > 0 else 1.0


def _best_mean(methods: ScoresByMethod, num_folds: int) -> tuple[str, float]:
    """The method with the highest mean over the first so many folds, and that mean."""
    means = {name: float(np.mean(folds[:num_folds])) for name, folds in methods.items()}
    best = max(means, key=lambda name: means[name])
    return best, means[best]
