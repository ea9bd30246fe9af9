"""What a set of results says: ranks, wins, intervals and tests, worked out once for terminal and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from .. import stats
from ..results import Result

ALPHA = 0.05
DECIMALS = 2
"""Accuracies that agree to so many decimals of a percent are a tie."""


@dataclass(frozen=True)
class OnOneSet:
    """All methods on one set, on the same folds."""

    set: str
    results: tuple[Result, ...]
    intervals: tuple[tuple[float, float], ...]
    """95 % interval of each mean, with the variance of overlapping folds."""
    ranks: tuple[float, ...]
    wins: tuple[int, ...]
    """In how many folds no other method was better."""
    not_worse: frozenset[str]
    """The best, and those that the corrected t-test does not find worse."""
    groups: tuple[tuple[int, ...], ...]
    """Methods that no test tells apart, by place."""
    verdict: str


@dataclass(frozen=True)
class OnManySets:
    """All methods on several sets, by the ranks of their means."""

    scores: np.ndarray
    """[sets, methods] in percent."""
    averages: tuple[float, ...]
    mean_ranks: tuple[float, ...]
    wins: tuple[int, ...]
    shared: tuple[int, ...]
    """How many of the wins were ties."""
    p_friedman: float
    critical_difference: float
    groups: tuple[tuple[int, ...], ...]
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Everything a report shows."""

    methods: tuple[str, ...]
    sets: tuple[OnOneSet, ...]
    together: OnManySets | None
    """None where there is one set, or one method."""

    @property
    def verdict(self) -> str:
        """What the numbers mean, in two sentences."""
        return self.sets[0].verdict if self.together is None else self.together.verdict


def comparison(results: Sequence[Result]) -> Comparison:
    """Ranks and tests of results; every set must have the same methods."""
    methods = tuple(dict.fromkeys(result.loss for result in results))
    names = tuple(dict.fromkeys(result.set for result in results))
    by_key = {result.key: result for result in results}
    sets = tuple(_one_set(name, [by_key[name, method] for method in methods]) for name in names)
    together = _many_sets(sets, methods) if len(sets) > 1 and len(methods) > 1 else None
    return Comparison(methods, sets, together)


def _share(result: Result) -> float:
    return 1.0 / int(result.settings.get("parts", 10))


def _one_set(name: str, results: Sequence[Result]) -> OnOneSet:
    folds = {result.loss: result.folds for result in results}
    share = _share(results[0])
    means = [[round(result.mean, DECIMALS) for result in results]]
    per_fold = np.array([result.folds for result in results]).T
    return OnOneSet(
        set=name,
        results=tuple(results),
        intervals=tuple(stats.interval(result.folds, share, within=(0.0, 100.0)) for result in results),
        ranks=tuple(stats.ranks(means)[0].tolist()),
        wins=tuple(stats.wins(per_fold).counts),
        not_worse=frozenset(stats.not_worse(folds, share, ALPHA, family="pairs")),
        groups=_groups(results, share),
        verdict=stats.verdict_one_set(folds, share, alpha=ALPHA, family="pairs").sentence,
    )


def _groups(results: Sequence[Result], share: float) -> tuple[tuple[int, ...], ...]:
    """Longest stretches of neighbours by mean among which no pair differs (corrected t, Holm over all pairs)."""
    order = sorted(range(len(results)), key=lambda i: -results[i].mean)
    pairs = list(combinations(range(len(order)), 2))
    if not pairs:
        return ()
    tests = [stats.corrected_t(results[order[a]].folds, results[order[b]].folds, share).p for a, b in pairs]
    alike = {pair for pair, p in zip(pairs, stats.holm(tests), strict=True) if p > ALPHA}
    found: list[tuple[int, ...]] = []
    reached = -1
    for start in range(len(order)):
        end = start
        while end + 1 < len(order) and all((i, end + 1) in alike for i in range(start, end + 1)):
            end += 1
        if end > start and end > reached:
            found.append(tuple(order[start : end + 1]))
            reached = end
    return tuple(found)


def _many_sets(sets: Sequence[OnOneSet], methods: Sequence[str]) -> OnManySets:
    scores = np.array([[result.mean for result in one.results] for one in sets])
    mean_ranks = stats.mean_ranks(scores, rounded=DECIMALS)
    wins = stats.wins(scores, rounded=DECIMALS)
    difference = stats.critical_difference(len(methods), len(sets), ALPHA)
    return OnManySets(
        scores=scores,
        averages=tuple(scores.mean(0).tolist()),
        mean_ranks=tuple(mean_ranks.tolist()),
        wins=tuple(wins.counts),
        shared=tuple(wins.shared),
        p_friedman=stats.friedman(scores, rounded=DECIMALS).p,
        critical_difference=difference,
        groups=tuple(stats.cliques(mean_ranks, difference)),
        verdict=stats.verdict_many_sets(scores, methods, alpha=ALPHA, rounded=DECIMALS).sentence,
    )


def span(low: float, high: float, digits: int) -> str:
    """An interval in words; equal folds say nothing of how far the mean may be off, so theirs is a dash.

    >>> span(94.48, 99.9, 1), span(96.0, 96.0, 1)
    ('94.5 – 99.9', '–')
    """
    return "–" if low == high else f"{low:.{digits}f} – {high:.{digits}f}"
