"""The outcome of a comparison in plain words: two sentences at most, and no claim without a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from numpy.typing import ArrayLike

from ..errors import InputError
from .critical import critical_difference
from .friedman_ranks import friedman
from .ranking import ranks
from .resampled import Split, best_methods, p_values_against_best
from .scores import FloatArray, check_fraction, check_score_table
from .signed_ranks import signed_rank_test, wilcoxon

VerdictKind = Literal["ahead", "no_evidence", "alone", "underfit", "baseline_ahead", "chance", "diverged"]
"""Whether a test separates the best from another method, none does, or there is one method only; the last four make
no statement about the methods, because of what baselines reach (see `stats.reference`) or because none has numbers."""


@dataclass(frozen=True)
class Verdict:
    """What a comparison shows.

    `best` has the best mean score or mean rank (several if they tie), shown or not. `worse` are those that a
    test named in the sentence finds worse than the first of them; nothing is claimed of the others.
    `p` belongs to the first test: Friedman's, or the smallest adjusted one where each method is tested.
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
) -> Verdict:
    """Methods on the same folds of one set, by the corrected resampled t-test with Holm's correction.

    >>> scores = {"arcgrad": [91, 89, 92, 90, 93], "softmax": [90, 90, 91, 90, 92], "adacos": [50, 52, 49, 51, 50]}
    >>> print(verdict_one_set(scores, test_share=0.2).sentence)
    arcgrad has the highest mean on this set and is ahead of adacos (corrected resampled t-test with Holm's \
correction, p = 4.08e-05). softmax is not significantly worse.
    """
    alpha = check_fraction("alpha", alpha)
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
            f"smallest p = {smallest:.3g}). {_describe_leaders(best, 'the highest mean')}, which may be chance."
        )
        return Verdict(best, (), smallest, sentence)
    ahead = f"{best[0]} is ahead" if len(best) > 1 else "is ahead"
    largest = max(p[name] for name in worse)
    sentence = (
        f"{_describe_leaders(best, 'the highest mean')} on this set and {ahead} of {_join_names(worse)} "
        f"({test}, p {'=' if len(worse) == 1 else '≤'} {largest:.3g})."
    )
    level = [name for name in p if name not in worse and name not in best]
    if level:
        sentence += f" {_join_names(level)} {'is' if len(level) == 1 else 'are'} not significantly worse."
    return Verdict(best, worse, smallest, sentence, "ahead")


def verdict_many_datasets(
    scores: ArrayLike, names: Sequence[str], *, alpha: float = 0.05, decimals: int | None = None
) -> Verdict:
    """Methods over many sets, scores [sets, methods]: Friedman first, pairs only if it rejects.

    The best mean rank is then compared with the others by Nemenyi's test and by Wilcoxon's with Holm's correction.
    Wilcoxon's may favour the other side; such a contradiction is no claim. Two methods need one test
    only, Wilcoxon's (Demšar 2006, section 3.1).

    >>> scores = [[0.9, 0.8, 0.7], [0.8, 0.9, 0.6], [0.9, 0.7, 0.6], [0.8, 0.7, 0.6]]
    >>> print(verdict_many_sets(scores, ["arcgrad", "softmax", "adacos"]).sentence)
    Over 4 sets the 3 methods differ (Friedman test, p = 0.0417). arcgrad has the best mean rank, 1.25, and is ahead \
of adacos by Nemenyi's test; Wilcoxon's with Holm's correction separates it from none.
    """
    alpha = check_fraction("alpha", alpha)
    values = check_score_table(scores, decimals)
    n, k = values.shape
    if len(names) != k:
        raise InputError(f"{len(names)} names for {k} methods; scores must be [sets, methods] with a name for each")
    if k == 1:
        return Verdict((names[0],), (), 1.0, _ONE_METHOD_SENTENCE.format(names[0]), "alone")
    sets = f"{n} sets" if n > 1 else "1 set"
    if k == 2:
        return _verdict_of_two_methods(values, names, alpha, sets)
    mean = ranks(values).mean(axis=0)
    best_columns = [i for i in range(k) if mean[i] <= mean.min() + 1e-9]
    best = tuple(names[i] for i in best_columns)
    p = friedman(values).p
    if p > alpha:
        sentence = (
            f"{sets} give{'s' if n == 1 else ''} no evidence that the {k} methods differ (Friedman test, p = {p:.3g}). "
            f"{_describe_leaders(best, 'the best mean rank')}, {mean.min():.3g}, which may be chance."
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
        f"Over {sets} the {k} methods differ (Friedman test, p = {p:.3g}). "
        f"{_describe_leaders(best, 'the best mean rank')}, {mean.min():.3g}, {_describe_claims(best, by_nemenyi, by_wilcoxon)}."
    )
    worse = tuple(name for name in names if name in by_nemenyi or name in by_wilcoxon)
    return Verdict(best, worse, p, sentence, "ahead" if worse else "no_evidence")


_ONE_METHOD_SENTENCE = "Only {} was run, so there is nothing to compare."


def _verdict_of_two_methods(values: FloatArray, names: Sequence[str], alpha: float, sets: str) -> Verdict:
    test = signed_rank_test(values[:, 0], values[:, 1])
    best = tuple(names) if test.plus == test.minus else (names[0] if test.plus > test.minus else names[1],)
    other = tuple(name for name in names if name not in best)
    if test.p <= alpha:
        sentence = f"Over {sets} {best[0]} is ahead of {other[0]} (Wilcoxon signed-rank test, p = {test.p:.3g})."
        return Verdict(best, other, test.p, sentence, "ahead")
    sentence = (
        f"{sets} give{'s' if sets == '1 set' else ''} no evidence that {names[0]} and {names[1]} differ "
        f"(Wilcoxon signed-rank test, p = {test.p:.3g})."
    )
    return Verdict(best, (), test.p, sentence)


def _describe_claims(best: tuple[str, ...], by_nemenyi: list[str], by_wilcoxon: list[str]) -> str:
    who, it = (f"{best[0]} is", best[0]) if len(best) > 1 else ("is", "it")
    if not by_nemenyi and not by_wilcoxon:
        return f"but neither Nemenyi's test nor Wilcoxon's with Holm's correction separates {it} from any other"
    if by_nemenyi == by_wilcoxon:
        return (
            f"and {who} ahead of {_join_names(by_nemenyi)} by Nemenyi's test and by Wilcoxon's with Holm's correction"
        )
    if not by_wilcoxon:
        return (
            f"and {who} ahead of {_join_names(by_nemenyi)} by Nemenyi's test; "
            f"Wilcoxon's with Holm's correction separates {it} from none"
        )
    if not by_nemenyi:
        return (
            f"and {who} ahead of {_join_names(by_wilcoxon)} by Wilcoxon's test with Holm's correction; "
            f"Nemenyi's separates {it} from none"
        )
    return (
        f"and {who} ahead of {_join_names(by_nemenyi)} by Nemenyi's test and "
        f"of {_join_names(by_wilcoxon)} by Wilcoxon's with Holm's correction"
    )


def _describe_leaders(best: tuple[str, ...], what: str) -> str:
    return f"{best[0]} has {what}" if len(best) == 1 else f"{_join_names(best)} share {what}"


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
