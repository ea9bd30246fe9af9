"""Verdicts: short sentences that claim only what a test shows, and none where baselines show a bad fit."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import widemargin as wm
from score_tables import DEMSAR, NAMES, score_tables
from widemargin import stats
from widemargin.stats.verdict import FoldScores, verdict_if_not_comparable


def count_sentences(text):
    return len(re.findall(r"\.(?=\s|$)", text))


def test_verdict_of_one_set():
    far = {"a": [91, 89, 92, 90, 93], "b": [90, 90, 91, 90, 92], "c": [50, 52, 49, 51, 50]}
    found = stats.verdict_one_dataset(far, 0.2)
    assert (found.best, found.worse) == (("a",), ("c",))
    assert found.sentence.startswith("a has the highest mean on this set and is ahead of c (corrected resampled t-test")
    assert found.sentence.endswith("b is not significantly worse.")
    close = stats.verdict_one_dataset({"a": [0.9, 0.8, 0.7], "b": [0.8, 0.8, 0.7]}, 0.1)
    assert (close.best, close.worse) == (("a",), ())
    assert "no evidence that the 2 methods differ" in close.sentence
    assert "ahead" not in close.sentence
    tied = stats.verdict_one_dataset({"a": [90, 91, 92], "b": [92, 91, 90], "c": [10, 12, 11]}, 0.1)
    assert (tied.best, tied.worse) == (("a", "b"), ("c",))
    assert tied.sentence.startswith("a and b share the highest mean on this set and a is ahead of c")
    alone = stats.verdict_one_dataset({"a": [90, 91]}, 0.5)
    assert (alone.best, alone.worse, alone.p) == (("a",), (), 1.0)


def test_verdict_of_demsars_example():
    found = stats.verdict_many_datasets(DEMSAR, NAMES)
    assert found.best == ("C4.5+m+cf",)
    assert found.sentence.startswith("Over 14 sets the 4 methods differ (Friedman test, p = 0.01")
    # 3.143 − 1.964 = 1.18 is below the critical 1.25; Wilcoxon's sees more
    raw = {pair.second: pair.adjusted_p for pair in stats.wilcoxon(DEMSAR, 3)}
    assert found.worse == tuple(NAMES[i] for i in sorted(raw) if raw[i] <= 0.05) != ()
    assert "Nemenyi's separates it from none" in found.sentence


def test_verdict_without_evidence_claims_nothing():
    for n, k in [(1, 3), (2, 4), (15, 3)]:
        scores = np.full((n, k), 0.9)
        found = stats.verdict_many_datasets(scores, NAMES[:k])
        assert (found.worse, found.p) == ((), 1.0)
        assert "no evidence" in found.sentence
        assert "ahead" not in found.sentence
        assert "share the best mean rank" in found.sentence


def test_verdict_names_who_falls_behind_by_which_test():
    draw = np.random.default_rng(0)
    scores = np.array([0.9, 0.89, 0.7, 0.3]) + 0.02 * draw.standard_normal((20, 4))
    found = stats.verdict_many_datasets(scores, ["a", "b", "c", "d"])
    assert set(found.worse) >= {"c", "d"}
    assert "by Nemenyi's test and" in found.sentence
    shared = stats.verdict_many_datasets([[2, 2, 1, 0]] * 12, ["a", "b", "c", "d"])
    assert shared.best == ("a", "b")
    assert "a and b share the best mean rank, 1.5, and a is ahead of" in shared.sentence
    assert "b" not in shared.worse


def test_verdict_does_not_claim_what_wilcoxon_finds_the_other_way_round():
    """a is ahead of b on 33 sets by a little, behind on 27 by a lot; c is last on all."""
    a = np.concatenate([np.linspace(0.501, 0.533, 33), np.full(27, 0.5)])
    b = np.concatenate([np.full(33, 0.5), np.linspace(0.6, 0.9, 27)])
    scores = np.stack([a, b, np.full(60, 0.1)], axis=1)
    turned = next(pair for pair in stats.wilcoxon(scores, 0) if pair.second == 1)
    assert turned.adjusted_p < 0.05
    assert turned.test.minus > turned.test.plus
    found = stats.verdict_many_datasets(scores, ["a", "b", "c"])
    assert (found.best, found.worse) == (("a",), ("c",))


def test_verdict_of_two_methods_is_wilcoxons():
    better = stats.verdict_many_datasets(
        [[0.5, 0.6], [0.4, 0.7], [0.1, 0.3], [0.2, 0.6], [0.3, 0.8], [0.1, 0.7]], ["x", "y"]
    )
    assert (better.best, better.worse, better.p) == (("y",), ("x",), 0.03125)
    assert better.sentence == "Over 6 sets y is ahead of x (Wilcoxon signed-rank test, p = 0.0312)."
    open_ended = stats.verdict_many_datasets([[0.5, 0.6]], ["x", "y"])
    assert open_ended.sentence.startswith("1 set gives no evidence that x and y differ")
    assert (
        stats.verdict_many_datasets([[0.5], [0.6]], ["x"]).sentence == "Only x was run, so there is nothing to compare."
    )


@given(score_tables(sets=(1, 14), methods=(1, 5)), st.sampled_from([0.01, 0.05, 0.5]))
def test_every_verdict_is_short_and_claims_only_after_a_test(scores, alpha):
    names = [f"m{i}" for i in range(scores.shape[1])]
    many = stats.verdict_many_datasets(scores, names, alpha=alpha)
    one = stats.verdict_one_dataset(dict(zip(names, scores.T.tolist(), strict=True)), 0.1, alpha=alpha)
    for found in (many, one):
        assert 1 <= count_sentences(found.sentence) <= 2
        assert found.best
        assert not set(found.best[:1]) & set(found.worse)
        assert bool(found.worse) == ("ahead of" in found.sentence)
        if found.worse:
            assert found.p <= alpha
            assert "test" in found.sentence


def folds_around(mean, seed, count=10, noise=1.0):
    draws = np.random.default_rng(seed).normal(0, noise, count)
    return (mean + draws - draws.mean()).tolist()


def verdict_of_means(test, train=None, baselines=None, majority=(), share=0.1):
    losses = {f"loss{k}": folds_around(mean, k, 20) for k, mean in enumerate(test)}
    fitted = {f"loss{k}": folds_around(mean, 50 + k, 20, 0.2) for k, mean in enumerate(train or [])}
    simple = {name: folds_around(mean, 90 + k) for k, (name, mean) in enumerate((baselines or {}).items())}
    return verdict_if_not_comparable(FoldScores(losses, fitted, simple, majority), share)


def test_losses_that_fit_worse_than_a_baseline_generalises_underfit():
    found = verdict_of_means([38, 30], [40, 31], {"forest": 54, "line": 29})
    assert found.kind == "underfit"
    assert found.sentence.lower().startswith("these settings underfit; no statement about the losses.")
    assert found.p < 1e-5
    assert (found.best, found.worse) == ((), ())
    for word in ("forest has 54.0 %", "% there (loss0)", "% on the rows it has learnt from"):
        assert word in found.sentence
    assert "ahead of" not in found.sentence


def test_a_baseline_must_be_ahead_of_every_loss():
    assert verdict_of_means([38, 54], [40, 56], {"forest": 54}) is None
    assert verdict_of_means([38, 51], [40, 55], {"forest": 54}) is not None
    assert verdict_of_means([90, 90.2], [99, 99], {"forest": 90.3, "line": 80}) is None  # no more than chance
    assert verdict_of_means([90], [99]) is None
    assert verdict_of_means([90], [99], {"forest": 60}) is None


def test_who_fits_the_training_rows_does_not_underfit():
    far = verdict_of_means([80, 78], [99.8, 99], {"forest": 88})
    assert far.kind == "baseline_ahead"
    assert far.sentence.startswith("forest is ahead of every loss; no statement about the losses.")
    assert "these settings overfit" in far.sentence
    assert "underfit" not in far.sentence
    near = verdict_of_means([80, 78], [89, 89], {"forest": 88})
    assert "do not suit this table" in near.sentence
    unknown = verdict_of_means([80, 78], None, {"forest": 88})
    assert unknown.kind == "baseline_ahead"
    assert "learnt from" not in unknown.sentence
    half = verdict_of_means([80, 78], [82], {"forest": 88})  # the other loss may fit better
    assert half.kind == "baseline_ahead"


def test_low_training_accuracy_is_enough_where_test_folds_are_too_uneven_for_a_test():
    uneven = {"a": [10.0, 70.0, 10.0, 70.0]}
    simple = {"forest": [54.0, 55.0, 54.0, 53.0]}
    assert verdict_if_not_comparable(FoldScores(uneven, {}, simple), 0.25) is None
    assert (
        verdict_if_not_comparable(FoldScores(uneven, {"a": [52.0] * 4}, simple), 0.25) is None
    )  # two points are little
    assert verdict_if_not_comparable(FoldScores(uneven, {"a": [44.0] * 4}, simple), 0.25).kind == "underfit"


def test_a_noisy_table_is_no_underfitting():
    """If no method can exceed 70 %, a training accuracy of 71 % is not underfitting."""
    assert verdict_of_means([70, 69.8], [71, 70.9], {"forest": 69.5, "line": 70.2}, folds_around(60, 3, 20)) is None


def test_methods_and_baselines_all_alike_are_seldom_told_apart():
    """The level of the claim that a baseline is ahead of every loss: all come from one distribution."""
    wrong = 0
    for seed in range(300):
        draw = np.random.default_rng(seed)
        rows = draw.binomial(30, 0.8, (6, 10)) / 0.3
        losses, fitted = (
            dict(zip("abc", rows[:3].tolist(), strict=True)),
            dict(zip("abc", rows[3:].tolist(), strict=True)),
        )
        simple = dict(zip("xy", (draw.binomial(30, 0.8, (2, 10)) / 0.3).tolist(), strict=True))
        found = verdict_if_not_comparable(FoldScores(losses, fitted, simple), 0.1)
        wrong += found is not None
    assert wrong <= 6


def test_no_better_than_the_majority_class():
    majority = folds_around(73.5, 3, 20)
    found = verdict_of_means([74, 73], [80, 79], {"forest": 70}, majority)
    assert found.kind == "chance"
    assert found.sentence.startswith(
        "No loss is significantly better than the majority class (73.5 %; the best has 74.0 %"
    )
    assert found.sentence.endswith("no statement about the losses.")
    assert verdict_of_means([79, 73], [80, 79], {"forest": 70}, majority) is None
    assert verdict_of_means([74, 73], [80, 79], {"forest": 85}, majority).kind == "underfit"  # something can be learnt
    # so few folds show nothing, but a lead of half the errors is not chance
    few = FoldScores({"a": [90.0, 70.0]}, {}, {}, [50.0, 52.0])
    assert verdict_if_not_comparable(few, 0.5) is None


def test_tests_are_on_the_folds_in_common():
    losses = {"a": [50.0, 51.0, 50.0, 49.0] + [99.0] * 16}
    found = verdict_if_not_comparable(
        FoldScores(losses, {"a": [52.0] * 20}, {"forest": [70.0, 71.0, 70.0, 69.0]}), 0.25
    )
    assert found.kind == "underfit"
    assert "no loss has more than 50.0 % there" in found.sentence
    assert (
        verdict_if_not_comparable(FoldScores({"a": losses["a"][4:]}, {}, {"forest": [70.0, 71.0, 70.0, 69.0]}), 0.25)
        is None
    )


def test_verdicts_have_a_kind():
    assert stats.verdict_one_dataset({"a": [90, 91, 90, 92], "b": [10, 11, 10, 13]}, 0.2).kind == "ahead"
    assert stats.verdict_one_dataset({"a": [90, 91], "b": [91, 90]}, 0.2).kind == "no_evidence"
    assert stats.verdict_one_dataset({"a": [90, 91]}, 0.2).kind == "alone"
    assert stats.verdict_many_datasets(DEMSAR, NAMES).kind == "ahead"
    assert stats.verdict_many_datasets([[0.5, 0.6]], ["x", "y"]).kind == "no_evidence"
    assert stats.verdict_many_datasets([[0.5], [0.6]], ["x"]).kind == "alone"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.verdict_many_datasets([[1.0, 2.0]], ["x"]), "1 names for 2 methods"),
        (lambda: stats.verdict_one_dataset({"x": [math.inf]}, 0.1), "folds of 'x'[0] is inf"),
    ],
)
def test_a_mistake_is_one_line(call, message):
    with pytest.raises(wm.InputError, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
