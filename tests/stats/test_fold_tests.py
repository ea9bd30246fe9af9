"""Tests on the folds of one set and Holm's correction: against scipy, the formulas, laws and simulation."""

import itertools
import math
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

import widemargin as wm
from score_tables import coarse_scores
from widemargin import stats


def test_holm_of_a_worked_example():
    """Four p-values: 0.005·4, 0.01·3, 0.03·2, then 0.04·1 lifted to 0.06."""
    assert stats.holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([]).tolist() == []
    assert stats.holm([0.5, 0.9]).tolist() == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), max_size=9))
def test_holm_is_at_least_the_raw_p_and_in_its_order(p):
    adjusted = stats.holm(p)
    assert (adjusted >= np.array(p)).all()
    assert (adjusted <= np.minimum(1, len(p) * np.array(p))).all()  # never beyond Bonferroni
    for i, j in itertools.permutations(range(len(p)), 2):
        assert p[i] > p[j] or adjusted[i] <= adjusted[j]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.sampled_from([0.01, 0.05, 0.4]))
def test_holm_rejects_as_his_steps_do(p, alpha):
    rejected = set()
    for step, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] * (len(p) - step) > alpha:
            break
        rejected.add(i)
    assert {i for i, q in enumerate(stats.holm(p)) if q <= alpha} == rejected


def corrected_t_by_formula(a, b, ratio):
    d = np.array(a) - np.array(b)
    error = math.sqrt((1 / len(d) + ratio) * sum((x - d.mean()) ** 2 for x in d) / (len(d) - 1))
    return d.mean(), d.mean() / error, 2 * scipy_stats.t.sf(abs(d.mean() / error), len(d) - 1), error


@pytest.mark.parametrize(
    ("folds", "share", "ratio"), [(10, 0.1, 1 / 9), (100, 0.1, 1 / 9), (5, 0.2, 0.25), (30, (70, 30), 3 / 7)]
)
def test_corrected_t_is_nadeau_and_bengios(folds, share, ratio):
    draw = np.random.default_rng(folds)
    a, b = draw.normal(0.8, 0.05, folds), draw.normal(0.78, 0.05, folds)
    mean, t, p, error = corrected_t_by_formula(a, b, ratio)
    found = stats.corrected_t_test(a, b, share, level=0.9)
    assert (found.difference, found.t, found.p) == (pytest.approx(mean), pytest.approx(t), pytest.approx(p, rel=1e-8))
    assert found.df == folds - 1
    reach = scipy_stats.t.ppf(0.95, folds - 1) * error
    assert (found.low, found.high) == (pytest.approx(mean - reach), pytest.approx(mean + reach))


@given(st.lists(st.tuples(coarse_scores, coarse_scores), min_size=1, max_size=12), st.sampled_from([0.1, 0.5, (9, 1)]))
def test_laws_of_the_corrected_t(folds, share):
    a, b = zip(*folds, strict=True)
    found, turned = stats.corrected_t_test(a, b, share), stats.corrected_t_test(b, a, share)
    assert 0 <= found.p <= 1
    assert turned.p == found.p
    assert turned.difference == -found.difference
    assert found.low <= found.difference <= found.high
    if len(folds) > 1:  # the interval leaves zero out exactly where p is below 5 %
        assert (found.low <= 0 <= found.high) == (found.p >= 0.05)
    percent = stats.corrected_t_test(100 * np.array(a), 100 * np.array(b), share)
    assert percent.p == pytest.approx(found.p, rel=1e-6, abs=1e-12)


def test_folds_without_variance():
    same = stats.corrected_t_test([0.9, 0.8, 0.7], [0.9, 0.8, 0.7], 0.1)
    assert (same.p, same.t, same.difference, same.low, same.high) == (1.0, 0.0, 0.0, 0.0, 0.0)
    noise = stats.corrected_t_test([0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2], 0.1)
    assert noise.p == 1.0
    p = [stats.corrected_t_test([0.9] * n, [0.8] * n, 0.1).p for n in (2, 3, 5, 10, 30, 100)]
    assert p == sorted(p, reverse=True)
    assert 0 < p[-1] < 1e-6
    assert p[0] > 0.05  # two folds are too few
    # as the formula has it when the variance is that of the folds and one more without a difference
    extended = np.var([0.1] * 10 + [0.0], ddof=1)
    t = 0.1 / math.sqrt(extended * (1 / 10 + 1 / 9))
    assert p[3] == pytest.approx(2 * scipy_stats.t.sf(t, 9), rel=1e-6)
    uneven = stats.corrected_t_test([0.9, 0.4, 0.7], [0.8, 0.3, 0.6], 0.1)  # constant but for float noise
    assert uneven.p == pytest.approx(p[1], rel=1e-6)
    alone = stats.corrected_t_test([0.9], [0.1], 0.5)
    assert (alone.p, alone.low, alone.high) == (1.0, -math.inf, math.inf)
    nothing = stats.corrected_t_test([0.0], [0.0], 0.5)
    assert (nothing.p, nothing.low, nothing.high) == (1.0, -math.inf, math.inf)


def test_tiny_scores_are_not_taken_for_none():
    tiny = stats.corrected_t_test([1e-200, 2e-200, 4e-200], [1e-200] * 3, 0.1)
    assert tiny.p == pytest.approx(stats.corrected_t_test([1, 2, 4], [1] * 3, 0.1).p)
    assert tiny.difference == pytest.approx(4e-200 / 3)


def test_interval_of_a_mean():
    draw = np.random.default_rng(1)
    folds = draw.normal(80, 4, 100)
    error = math.sqrt((1 / 100 + 1 / 9) * folds.var(ddof=1))
    reach = scipy_stats.t.ppf(0.975, 99) * error
    assert stats.interval(folds, 0.1) == (pytest.approx(folds.mean() - reach), pytest.approx(folds.mean() + reach))
    wide, narrow = stats.interval(folds, 0.1, 0.99), stats.interval(folds, 0.1, 0.5)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert stats.interval([100.0] * 10, 0.1) == (100.0, 100.0)
    assert stats.interval([95.0, 100.0], 0.5, bounds=(50, 100)) == (50, 100)
    assert stats.interval([95.0], 0.5, bounds=(0, 100)) == (0, 100)


def folds_of_two_equal_learners(draw, samples=40, runs=5, folds=10):
    """Accuracies [runs·folds] of two nearest-mean classifiers, each on its own half of features that are alike."""
    y = np.arange(samples) % 2
    x = draw.standard_normal((samples, 8)) + 0.35 * (2 * y[:, None] - 1)
    tests = np.zeros((runs * folds, samples))
    for run in range(runs):
        for fold, members in enumerate(np.array_split(draw.permutation(samples), folds)):
            tests[run * folds + fold, members] = 1
    sign = (2 * y - 1) * (1 - tests)
    weights = sign @ x  # difference of class sums in the training part
    both = ((1 - tests) / (samples - tests.sum(1, keepdims=True))) @ x
    result = []
    for half in (slice(0, 4), slice(4, 8)):
        side = ((x[None, :, half] - both[:, None, half]) * weights[:, None, half]).sum(2) > 0
        result.append(((side == y) * tests).sum(1) / tests.sum(1))
    return result


def test_under_the_null_the_corrected_test_keeps_its_level_and_the_usual_does_not():
    draw = np.random.default_rng(0)
    corrected = naive = 0
    trials = 400
    for _ in range(trials):
        a, b = folds_of_two_equal_learners(draw)
        corrected += stats.corrected_t_test(a, b, 0.1).p <= 0.05
        naive += scipy_stats.ttest_rel(a, b).pvalue <= 0.05
    assert corrected / trials <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)
    assert naive / trials > 0.2


def test_the_corrected_test_sees_a_large_difference():
    draw = np.random.default_rng(1)
    found = 0
    for _ in range(40):
        a, b = folds_of_two_equal_learners(draw)
        found += stats.corrected_t_test(a, b - 0.4, 0.1).p <= 0.05
    assert found >= 30


def equal_methods(draw, methods, folds=20, share=0.1):
    """Folds as Nadeau and Bengio think of them: scores of one method correlated by the test share."""
    common = math.sqrt(share) * draw.standard_normal((methods, 1))
    rows = common + math.sqrt(1 - share) * draw.standard_normal((methods, folds))
    return {f"m{i}": scores.tolist() for i, scores in enumerate(rows)}


def test_all_pairs_keep_the_level_where_the_best_is_picked_from_the_folds():
    draw = np.random.default_rng(0)
    trials = [equal_methods(draw, methods=6) for _ in range(300)]
    best, pairs = (
        np.mean([len(stats.methods_not_worse(folds, 0.1, family=family)) < 6 for folds in trials])
        for family in ("best", "pairs")
    )
    assert pairs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)
    assert pairs < best < 0.2


def test_not_worse_is_the_best_and_those_the_test_does_not_part_from_it():
    draw = np.random.default_rng(2)
    means = {"a": 0.90, "b": 0.895, "c": 0.80, "d": 0.5}
    folds = {name: (mean + 0.02 * draw.standard_normal(50)).tolist() for name, mean in means.items()}
    best = max(folds, key=lambda name: np.mean(folds[name]))
    rest = [name for name in folds if name != best]
    raw = [corrected_t_by_formula(folds[best], folds[name], 1 / 9)[2] for name in rest]
    adjusted = dict(zip(rest, stats.holm(raw), strict=True))
    for alpha in (0.001, 0.05, 0.5):
        wanted = {best} | {name for name in rest if adjusted[name] > alpha}
        assert stats.methods_not_worse(folds, 0.1, alpha) == wanted
    assert stats.methods_not_worse(folds, 0.1) == {"a", "b"}
    assert stats.methods_not_worse(folds, 0.1, family="pairs") == {"a", "b"}
    assert stats.methods_not_worse({"only": [0.5, 0.6]}, 0.5) == {"only"}
    assert stats.methods_not_worse({"a": [1.0, 0.5], "b": [0.5, 1.0]}, 0.5) == {"a", "b"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.holm([0.5, 1.5]), "from 0 to 1"),
        (lambda: stats.holm([math.nan]), "p[0] is nan"),
        (lambda: stats.corrected_t_test([], [], 0.1), "a is empty"),
        (lambda: stats.corrected_t_test([1.0, 2.0], [1.0, 3.0], 1.0), "test_fraction=1.0"),
        (lambda: stats.corrected_t_test([1.0, 2.0], [1.0, 3.0], (0, 10)), "(n_train, n_test)"),
        (lambda: stats.interval([1.0, 2.0], 0.1, 95), "level=95"),
        (lambda: stats.methods_not_worse({}, 0.1), "at least one method"),
        (lambda: stats.methods_not_worse({"x": [1.0], "y": [1.0, 2.0]}, 0.1), "'x' has 1 folds and 'y' 2"),
        (lambda: stats.methods_not_worse({"x": [1.0]}, 0.1, family="all"), "'best' or 'pairs'"),
    ],
)
def test_a_mistake_is_one_line(call, message):
    with pytest.raises(wm.InputError, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_result_is_a_value():
    value = stats.corrected_t_test([1, 2], [2, 2], 0.1)
    assert pickle.loads(pickle.dumps(value)) == value
    hash(value)
