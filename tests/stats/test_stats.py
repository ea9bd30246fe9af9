"""Tests of differences: against scipy, textbook numbers, references from the formulas, laws and simulation."""

import itertools
import math
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

import widemargin as wm
from widemargin import stats
from widemargin.stats.verdict import FoldAccuracies, verdict_if_not_comparable

# Demšar 2006, Table 6: AUC of C4.5 without and with m, cf and both tuned. On the 13th set his ranks tell
# the last two apart, which three printed decimals do not.
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],
        [0.957, 0.978, 0.946, 0.970],
    ]
)
NAMES = ["C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"]

coarse = st.integers(0, 8).map(lambda i: i / 8)  # so that ties are common


@st.composite
def tables(draw, sets=(1, 12), methods=(2, 6)):
    n, k = draw(st.integers(*sets)), draw(st.integers(*methods))
    return np.array(draw(st.lists(st.lists(coarse, min_size=k, max_size=k), min_size=n, max_size=n)))


def random_table(seed, n, k, decimals=1):
    return np.random.default_rng(seed).random((n, k)).round(decimals)


def sentences(text):
    return len(re.findall(r"\.(?=\s|$)", text))


# ---------------------------------------------------------------- ranks and wins


@given(tables())
def test_ranks_are_those_of_their_definition(scores):
    by_counting = 1 + (scores[:, None, :] > scores[:, :, None]).sum(2)
    by_counting = by_counting + ((scores[:, None, :] == scores[:, :, None]).sum(2) - 1) / 2
    assert np.array_equal(stats.ranks(scores), by_counting)
    k = scores.shape[1]
    assert np.allclose(stats.ranks(scores).sum(1), k * (k + 1) / 2)


@given(tables(), st.randoms(use_true_random=False))
def test_the_order_of_methods_and_sets_does_not_matter(scores, random):
    columns, rows = list(range(scores.shape[1])), list(range(scores.shape[0]))
    random.shuffle(columns)
    random.shuffle(rows)
    moved = scores[rows][:, columns]
    assert np.array_equal(stats.ranks(moved), stats.ranks(scores)[rows][:, columns])
    assert np.allclose(stats.mean_ranks(moved), stats.mean_ranks(scores)[columns])
    before, after = stats.friedman(scores), stats.friedman(moved)
    assert after.p == pytest.approx(before.p, abs=1e-12)
    assert after.chi2 == pytest.approx(before.chi2, abs=1e-9)
    assert stats.wins(moved).counts == tuple(stats.wins(scores).counts[i] for i in columns)


def test_float_noise_and_rounding_tie():
    assert stats.ranks([[0.1 + 0.2, 0.3, 0.2]]).tolist() == [[1.5, 1.5, 3.0]]
    assert stats.ranks([[1e-9, 2e-9, 3e-9]]).tolist() == [[3.0, 2.0, 1.0]]  # small is not noise
    assert stats.ranks([[97.34, 97.31, 97.26]]).tolist() == [[1.0, 2.0, 3.0]]
    assert stats.ranks([[97.34, 97.31, 97.24]], decimals=1).tolist() == [[1.5, 1.5, 3.0]]
    assert stats.mean_ranks([[97.34, 97.31], [50.0, 60.0]], decimals=1).tolist() == [1.75, 1.25]
    assert stats.ranks([[1e149, -1e149, 0.0]], decimals=3).tolist() == [[1.0, 3.0, 2.0]]


def test_wins_count_for_each_of_the_tied():
    won = stats.wins([[3, 3, 1], [1, 2, 3], [5, 5, 5], [9, 1, 1]])
    assert won == stats.Wins(counts=(3, 2, 2), tie_counts=(2, 2, 1))
    assert stats.wins([[0.94, 0.91]]) == stats.Wins((1, 0), (0, 0))
    assert stats.wins([[0.94, 0.91]], decimals=1) == stats.Wins((1, 1), (1, 1))


# ---------------------------------------------------------------- Friedman


def test_demsars_example():
    assert stats.mean_ranks(DEMSAR).round(3).tolist() == [3.143, 2.000, 2.893, 1.964]
    printed = stats.friedman(DEMSAR, tie_correction=False)
    assert printed.chi2 == pytest.approx(9.28, abs=0.005)
    assert printed.f == pytest.approx(3.69, abs=0.005)
    assert printed.p_f == pytest.approx(scipy_stats.f.sf(3.69, 3, 39), abs=2e-4)
    assert printed.p == printed.p_f
    assert (printed.num_datasets, printed.num_methods, printed.test) == (14, 4, "Iman–Davenport F")
    assert stats.friedman(DEMSAR).chi2 > printed.chi2  # ties leave less spread by chance


@pytest.mark.parametrize("seed", range(20))
def test_chi_square_is_scipys(seed):
    scores = random_table(seed, n=4 + seed, k=3 + seed % 5)
    theirs = scipy_stats.friedmanchisquare(*scores.T)
    ours = stats.friedman(scores)
    assert ours.chi2 == pytest.approx(theirs.statistic, rel=1e-10)
    assert ours.p_chi2 == pytest.approx(theirs.pvalue, rel=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_f_is_the_two_way_analysis_of_variance_of_ranks(seed):
    """Conover: Iman and Davenport's F is the usual F of a two-way layout, on ranks."""
    scores = random_table(seed, n=12, k=4)
    r = scipy_stats.rankdata(-scores, axis=1)
    n, k = r.shape
    between = n * ((r.mean(0) - r.mean()) ** 2).sum()
    within = ((r - r.mean(0) - r.mean(1, keepdims=True) + r.mean()) ** 2).sum()
    f = (between / (k - 1)) / (within / ((k - 1) * (n - 1)))
    ours = stats.friedman(scores)
    assert ours.f == pytest.approx(f, rel=1e-9)
    assert ours.p == pytest.approx(scipy_stats.f.sf(f, k - 1, (k - 1) * (n - 1)), rel=1e-8)


@pytest.mark.parametrize(
    ("n", "k", "chi2", "p"), [(3, 3, 6, 0.028), (4, 3, 6.5, 0.042), (4, 3, 8, 0.0046), (3, 4, 7.4, 0.033)]
)
def test_few_sets_have_the_p_of_friedmans_tables(n, k, chi2, p):
    for rows in itertools.product(itertools.permutations(range(k)), repeat=n - 1):
        found = stats.friedman([list(range(k)), *rows])
        if found.chi2 == pytest.approx(chi2):
            assert (found.p, found.test) == (pytest.approx(p, abs=5e-4), "all permutations")
            return
    raise AssertionError("no such table")


def test_few_sets_with_ties_have_the_share_of_all_orders():
    scores = np.array([[3.0, 2, 2], [3, 1, 2], [2, 1, 1]])
    r = scipy_stats.rankdata(-scores, axis=1)

    def spread(rows):
        return ((np.sum(rows, axis=0) - 6.0) ** 2).sum()

    every = [spread(rows) for rows in itertools.product(*(list(itertools.permutations(row)) for row in r))]
    assert stats.friedman(scores).p == pytest.approx(np.mean(np.array(every) >= spread(r) - 1e-9), abs=1e-12)


def test_random_permutations_agree_with_all_of_them(monkeypatch):
    from widemargin.stats import ranks

    for seed in range(4):
        scores = random_table(seed, n=5, k=4)
        exact = stats.friedman(scores)
        with monkeypatch.context() as patch:
            patch.setattr(ranks, "_exact_permutation_p", lambda *_: None)
            drawn = stats.friedman(scores)
        assert (exact.test, drawn.test) == ("all permutations", "random permutations")
        assert drawn.p == pytest.approx(exact.p, abs=5 * math.sqrt(0.25 / 99_999))


def test_a_small_table_does_not_reject_more_often_than_said():
    """Of 3 methods over 3 sets the F alone rejects 19 % of the time at 5 %."""
    orders = list(itertools.permutations(range(3)))
    found = [stats.friedman([orders[0], a, b]) for a in orders for b in orders]
    assert np.mean([f.p <= 0.05 for f in found]) <= 0.05
    assert np.mean([f.p_f <= 0.05 for f in found]) > 0.15


def test_two_methods_take_the_sign_test():
    scores = random_table(3, n=15, k=2)
    up, down = int((scores[:, 0] > scores[:, 1]).sum()), int((scores[:, 0] < scores[:, 1]).sum())
    assert up + down < 15  # there is a tie
    found = stats.friedman(scores)
    assert found.test == "sign test"
    assert found.p == pytest.approx(scipy_stats.binomtest(up, up + down).pvalue, rel=1e-10)


@pytest.mark.parametrize("shape", [(1, 2), (1, 5), (3, 2), (3, 4), (20, 4)])
def test_all_equal_is_no_evidence(shape):
    found = stats.friedman(np.full(shape, 0.9))
    assert (found.chi2, found.f, found.p, found.p_f, found.p_chi2) == (0.0, 0.0, 1.0, 1.0, 1.0)


def test_full_agreement_has_its_chance_not_zero():
    found = stats.friedman([[3, 2, 1]] * 12)
    assert found.f == math.inf
    assert found.p == pytest.approx(6.0**-11, rel=1e-9)
    assert stats.friedman([[3, 1, 1]] * 12).p == pytest.approx(3.0**-11, rel=1e-9)
    assert stats.friedman([[3, 2, 1]] * 4).p == pytest.approx(6.0**-3, rel=1e-9)
    assert stats.friedman([[3, 2, 1]]).p == 1.0  # one set alone


@given(tables())
def test_p_values_of_friedman_are_p_values(scores):
    found = stats.friedman(scores)
    assert all(0 <= p <= 1 for p in (found.p, found.p_f, found.p_chi2))


# ---------------------------------------------------------------- Nemenyi


def test_quantiles_of_demsars_table():
    for k, q05, q10 in [(2, 1.960, 1.645), (3, 2.343, 2.052), (4, 2.569, 2.291), (5, 2.728, 2.459), (10, 3.164, 2.920)]:
        assert stats.q_alpha(k) == pytest.approx(q05, abs=0.0012)
        assert stats.q_alpha(k, 0.1) == pytest.approx(q10, abs=0.0012)


def test_demsars_critical_difference():
    assert stats.critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert stats.critical_difference(4, 14, 0.1) == pytest.approx(1.12, abs=0.005)
    assert stats.critical_difference(5, 30) == pytest.approx(2.728 * math.sqrt(5 * 6 / (6 * 30)), abs=0.001)


def test_nemenyis_p_is_alpha_at_the_critical_difference():
    for alpha in (0.01, 0.05, 0.3):
        cd = stats.critical_difference(6, 15, alpha)
        p = stats.nemenyi([1, 1 + cd, 1, 2, 3, 4], 15)
        assert p[0, 1] == pytest.approx(alpha, abs=1e-6)
        assert p[0, 2] == 1.0
        assert np.array_equal(p, p.T)
        assert (np.diag(p) == 1).all()


def test_two_methods_by_nemenyi_are_a_normal_test():
    """The range of two standard normals is √2 |z|."""
    p = stats.nemenyi([1.2, 1.8], 10)[0, 1]
    assert p == pytest.approx(2 * scipy_stats.norm.sf(0.6 / math.sqrt(1 / 10)), abs=1e-9)


@given(st.lists(st.integers(4, 40).map(lambda i: i / 4), min_size=2, max_size=8), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_cliques_are_the_largest_groups(mean, cd):
    found = [frozenset(group) for group in stats.cliques(mean, cd)]

    def alike(group):
        apart = max(mean[i] for i in group) - min(mean[i] for i in group)
        return apart < cd or apart == 0

    groups = [
        frozenset(group)
        for size in range(2, len(mean) + 1)
        for group in itertools.combinations(range(len(mean)), size)
        if alike(group)
    ]
    largest = [group for group in groups if not any(group < other for other in groups)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, largest))
    for group in stats.cliques(mean, cd):
        assert [mean[i] for i in group] == sorted(mean[i] for i in group)


def test_cliques_of_demsars_example():
    """At alpha = 0.10 plain C4.5 falls behind both variants with m, at 0.05 nothing does."""
    assert stats.cliques([3.143, 2.000, 2.893, 1.964], 1.12) == ((3, 1, 2), (2, 0))
    assert stats.cliques([3.143, 2.000, 2.893, 1.964], 1.25) == ((3, 1, 2, 0),)
    assert stats.cliques([1.0, 2.0, 3.0], 0.5) == ()
    assert stats.cliques([2.0], 1.0) == ()


# ---------------------------------------------------------------- Wilcoxon and Holm


def test_demsars_signed_ranks():
    found = stats.signed_rank_test(DEMSAR[:, 1], DEMSAR[:, 0])
    assert (found.plus, found.minus, found.exact) == (93.0, 12.0, True)
    assert found.p < 0.02  # he has 12 below the critical 21 of alpha = 0.05


@pytest.mark.parametrize("n", [1, 2, 5, 6, 13, 30, 50])
def test_exact_p_is_scipys_where_nothing_ties(n):
    draw = np.random.default_rng(n)
    a, b = draw.random(n), draw.random(n)
    theirs = scipy_stats.wilcoxon(a, b, method="exact")
    ours = stats.signed_rank_test(a, b)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert min(ours.plus, ours.minus) == pytest.approx(theirs.statistic)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_exact_p_with_ties_and_zeros_is_the_share_of_all_signs(differences):
    d = np.array(differences, dtype=float)
    found = stats.signed_rank_test(d, np.zeros(len(d)))
    rank = scipy_stats.rankdata(np.abs(d))
    kept = rank[d != 0]
    lean = abs((rank * np.sign(d)).sum())
    every = [abs(np.dot(signs, kept)) >= lean - 1e-9 for signs in itertools.product([-1, 1], repeat=len(kept))]
    assert found.p == pytest.approx(np.mean(every), abs=1e-12)
    assert found.plus + found.minus == pytest.approx(len(d) * (len(d) + 1) / 2)
    split = rank[d == 0].sum() / 2
    assert found.plus == pytest.approx(rank[d > 0].sum() + split)


def test_many_sets_take_the_normal_distribution_of_pratt():
    draw = np.random.default_rng(0)
    a, b = draw.integers(0, 12, 150) / 12, draw.integers(0, 13, 150) / 12
    ours = stats.signed_rank_test(a, b)
    theirs = scipy_stats.wilcoxon((a - b).round(9), zero_method="pratt", method="asymptotic")
    assert not ours.exact
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-6)
    assert stats.signed_rank_test(a[:100], b[:100]).p == pytest.approx(
        scipy_stats.wilcoxon((a - b)[:100].round(9), zero_method="pratt", method="asymptotic").pvalue, abs=0.01
    )


def test_float_noise_breaks_no_tie_of_differences():
    a, b = np.array([94.1, 95.2, 0.3, 80.0]), np.array([93.9, 95.0, 0.1, 80.2])
    assert len(set(np.abs(a - b))) > 1
    assert stats.signed_rank_test(a, b) == stats.signed_rank_test([1, 1, 1, 0], [0, 0, 0, 1])
    a, b = np.array([2, 1, 9, 0]) / 12, np.array([1, 0, 8, 2]) / 12  # endless decimals
    assert stats.signed_rank_test(a, b) == stats.signed_rank_test([1, 1, 1, 0], [0, 0, 0, 2])


@pytest.mark.parametrize("n", [1, 4, 300])
def test_no_difference_has_p_1(n):
    found = stats.signed_rank_test([0.7] * n, [0.7] * n)
    assert found.p == 1.0
    assert found.plus == found.minus


def test_wilcoxon_of_one_against_all_and_of_all_pairs():
    scores = random_table(4, n=12, k=4, decimals=3)
    against = stats.wilcoxon(scores, control=2)
    assert [(pair.first, pair.second) for pair in against] == [(2, 0), (2, 1), (2, 3)]
    every = stats.wilcoxon(scores)
    assert [(pair.first, pair.second) for pair in every] == list(itertools.combinations(range(4), 2))
    for pairs in (against, every):
        raw = [scipy_stats.wilcoxon(scores[:, pair.first], scores[:, pair.second]).pvalue for pair in pairs]
        assert [pair.test.p for pair in pairs] == pytest.approx(raw)
        assert [pair.adjusted_p for pair in pairs] == pytest.approx(stats.holm(raw).tolist())
    assert stats.wilcoxon(scores[:, :1]) == ()
    assert all(pair.test.p == 1 for pair in stats.wilcoxon(np.round(scores) * 0 + 0.04, decimals=1))


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


# ---------------------------------------------------------------- folds of one set


def by_the_formula(a, b, ratio):
    d = np.array(a) - np.array(b)
    error = math.sqrt((1 / len(d) + ratio) * sum((x - d.mean()) ** 2 for x in d) / (len(d) - 1))
    return d.mean(), d.mean() / error, 2 * scipy_stats.t.sf(abs(d.mean() / error), len(d) - 1), error


@pytest.mark.parametrize(
    ("folds", "share", "ratio"), [(10, 0.1, 1 / 9), (100, 0.1, 1 / 9), (5, 0.2, 0.25), (30, (70, 30), 3 / 7)]
)
def test_corrected_t_is_nadeau_and_bengios(folds, share, ratio):
    draw = np.random.default_rng(folds)
    a, b = draw.normal(0.8, 0.05, folds), draw.normal(0.78, 0.05, folds)
    mean, t, p, error = by_the_formula(a, b, ratio)
    found = stats.corrected_t_test(a, b, share, level=0.9)
    assert (found.difference, found.t, found.p) == (pytest.approx(mean), pytest.approx(t), pytest.approx(p, rel=1e-8))
    assert found.df == folds - 1
    reach = scipy_stats.t.ppf(0.95, folds - 1) * error
    assert (found.low, found.high) == (pytest.approx(mean - reach), pytest.approx(mean + reach))


@given(st.lists(st.tuples(coarse, coarse), min_size=1, max_size=12), st.sampled_from([0.1, 0.5, (9, 1)]))
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


def alike(draw, methods, folds=20, share=0.1):
    """Folds as Nadeau and Bengio think of them: scores of one method correlated by the test share."""
    common = math.sqrt(share) * draw.standard_normal((methods, 1))
    rows = common + math.sqrt(1 - share) * draw.standard_normal((methods, folds))
    return {f"m{i}": scores.tolist() for i, scores in enumerate(rows)}


def test_all_pairs_keep_the_level_where_the_best_is_picked_from_the_folds():
    draw = np.random.default_rng(0)
    trials = [alike(draw, methods=6) for _ in range(300)]
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
    raw = [by_the_formula(folds[best], folds[name], 1 / 9)[2] for name in rest]
    adjusted = dict(zip(rest, stats.holm(raw), strict=True))
    for alpha in (0.001, 0.05, 0.5):
        wanted = {best} | {name for name in rest if adjusted[name] > alpha}
        assert stats.methods_not_worse(folds, 0.1, alpha) == wanted
    assert stats.methods_not_worse(folds, 0.1) == {"a", "b"}
    assert stats.methods_not_worse(folds, 0.1, family="pairs") == {"a", "b"}
    assert stats.methods_not_worse({"only": [0.5, 0.6]}, 0.5) == {"only"}
    assert stats.methods_not_worse({"a": [1.0, 0.5], "b": [0.5, 1.0]}, 0.5) == {"a", "b"}


# ---------------------------------------------------------------- verdicts


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


@given(tables(sets=(1, 14), methods=(1, 5)), st.sampled_from([0.01, 0.05, 0.5]))
def test_every_verdict_is_short_and_claims_only_after_a_test(scores, alpha):
    names = [f"m{i}" for i in range(scores.shape[1])]
    many = stats.verdict_many_datasets(scores, names, alpha=alpha)
    one = stats.verdict_one_dataset(dict(zip(names, scores.T.tolist(), strict=True)), 0.1, alpha=alpha)
    for found in (many, one):
        assert 1 <= sentences(found.sentence) <= 2
        assert found.best
        assert not set(found.best[:1]) & set(found.worse)
        assert bool(found.worse) == ("ahead of" in found.sentence)
        if found.worse:
            assert found.p <= alpha
            assert "test" in found.sentence


# ---------------------------------------------------------------- what comes in


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.ranks([[1.0, math.nan]]), "scores[0][1] is nan"),
        (lambda: stats.ranks([[1.0, 2.0], [1.0]]), "rows of the same length"),
        (lambda: stats.ranks([1.0, 2.0]), "must be [sets, methods]"),
        (lambda: stats.ranks(np.zeros((0, 3))), "hold nothing"),
        (lambda: stats.ranks([["a", "b"]]), "must be numbers"),
        (lambda: stats.ranks([[1e200, 1.0]]), "below 1e+150"),
        (lambda: stats.ranks([[1.0]], decimals=-1), "rounded=-1"),
        (lambda: stats.friedman([[1.0], [2.0]]), "only one"),
        (lambda: stats.q_alpha(1), "methods=1"),
        (lambda: stats.q_alpha(3, 1.5), "alpha=1.5"),
        (lambda: stats.critical_difference(3, 0), "sets=0"),
        (lambda: stats.nemenyi([1.0], 3), "methods=1"),
        (lambda: stats.cliques([1.0, 2.0], -1), "cd=-1"),
        (lambda: stats.cliques([1.0, 2.0], math.nan), "cd=nan"),
        (lambda: stats.signed_rank_test([1.0], [1.0, 2.0]), "a has 1 scores and b 2"),
        (lambda: stats.wilcoxon([[1.0, 2.0]], control=2), "from 0 to 1"),
        (lambda: stats.holm([0.5, 1.5]), "from 0 to 1"),
        (lambda: stats.holm([math.nan]), "p[0] is nan"),
        (lambda: stats.corrected_t_test([], [], 0.1), "a is empty"),
        (lambda: stats.corrected_t_test([1.0, 2.0], [1.0, 3.0], 1.0), "test_share=1.0"),
        (lambda: stats.corrected_t_test([1.0, 2.0], [1.0, 3.0], (0, 10)), "(n_train, n_test)"),
        (lambda: stats.interval([1.0, 2.0], 0.1, 95), "level=95"),
        (lambda: stats.methods_not_worse({}, 0.1), "no method"),
        (lambda: stats.methods_not_worse({"x": [1.0], "y": [1.0, 2.0]}, 0.1), "'x' has 1 folds and 'y' 2"),
        (lambda: stats.methods_not_worse({"x": [1.0]}, 0.1, family="all"), "'best' or 'pairs'"),
        (lambda: stats.verdict_many_datasets([[1.0, 2.0]], ["x"]), "1 names for 2 methods"),
        (lambda: stats.verdict_one_dataset({"x": [math.inf]}, 0.1), "folds of 'x'[0] is inf"),
    ],
)
def test_a_mistake_is_one_line(call, message):
    with pytest.raises(wm.InputError, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_results_are_values():
    for value in (
        stats.friedman(DEMSAR),
        stats.wins(DEMSAR),
        stats.corrected_t_test([1, 2], [2, 2], 0.1),
        stats.wilcoxon(DEMSAR),
    ):
        assert pickle.loads(pickle.dumps(value)) == value
        hash(value)


def test_no_torch_is_needed():
    code = (
        "import sys; from widemargin import stats; stats.friedman([[1, 2, 3]] * 12); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- baselines as a reference


def around(mean, seed, count=10, noise=1.0):
    draws = np.random.default_rng(seed).normal(0, noise, count)
    return (mean + draws - draws.mean()).tolist()


def judged(test, train=None, baselines=None, majority=(), share=0.1):
    losses = {f"loss{k}": around(mean, k, 20) for k, mean in enumerate(test)}
    fitted = {f"loss{k}": around(mean, 50 + k, 20, 0.2) for k, mean in enumerate(train or [])}
    simple = {name: around(mean, 90 + k) for k, (name, mean) in enumerate((baselines or {}).items())}
    return verdict_if_not_comparable(FoldAccuracies(losses, fitted, simple, majority), share)


def test_losses_that_fit_worse_than_a_baseline_generalises_underfit():
    found = judged([38, 30], [40, 31], {"forest": 54, "line": 29})
    assert found.kind == "underfit"
    assert found.sentence.lower().startswith("these settings underfit; no statement about the losses.")
    assert found.p < 1e-5
    assert (found.best, found.worse) == ((), ())
    for word in ("forest has 54.0 %", "% there (loss0)", "% on the rows it has learnt from"):
        assert word in found.sentence
    assert "ahead of" not in found.sentence


def test_a_baseline_must_be_ahead_of_every_loss():
    assert judged([38, 54], [40, 56], {"forest": 54}) is None
    assert judged([38, 51], [40, 55], {"forest": 54}) is not None
    assert judged([90, 90.2], [99, 99], {"forest": 90.3, "line": 80}) is None  # no more than chance
    assert judged([90], [99]) is None
    assert judged([90], [99], {"forest": 60}) is None


def test_who_fits_the_training_rows_does_not_underfit():
    far = judged([80, 78], [99.8, 99], {"forest": 88})
    assert far.kind == "baseline_ahead"
    assert far.sentence.startswith("forest is ahead of every loss; no statement about the losses.")
    assert "these settings overfit" in far.sentence
    assert "underfit" not in far.sentence
    near = judged([80, 78], [89, 89], {"forest": 88})
    assert "do not suit this table" in near.sentence
    unknown = judged([80, 78], None, {"forest": 88})
    assert unknown.kind == "baseline_ahead"
    assert "learnt from" not in unknown.sentence
    half = judged([80, 78], [82], {"forest": 88})  # the other loss may fit better
    assert half.kind == "baseline_ahead"


def test_low_training_accuracy_is_enough_where_test_folds_are_too_uneven_for_a_test():
    uneven = {"a": [10.0, 70.0, 10.0, 70.0]}
    simple = {"forest": [54.0, 55.0, 54.0, 53.0]}
    assert verdict_if_not_comparable(FoldAccuracies(uneven, {}, simple), 0.25) is None
    assert (
        verdict_if_not_comparable(FoldAccuracies(uneven, {"a": [52.0] * 4}, simple), 0.25) is None
    )  # two points are little
    assert verdict_if_not_comparable(FoldAccuracies(uneven, {"a": [44.0] * 4}, simple), 0.25).kind == "underfit"


def test_a_noisy_table_is_no_underfitting():
    """Where nobody can do better than 70 %, a training accuracy of 71 % is right."""
    assert judged([70, 69.8], [71, 70.9], {"forest": 69.5, "line": 70.2}, around(60, 3, 20)) is None


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
        found = verdict_if_not_comparable(FoldAccuracies(losses, fitted, simple), 0.1)
        wrong += found is not None
    assert wrong <= 6


def test_no_better_than_the_majority_class():
    majority = around(73.5, 3, 20)
    found = judged([74, 73], [80, 79], {"forest": 70}, majority)
    assert found.kind == "chance"
    assert found.sentence.startswith(
        "No loss is significantly better than the majority class (73.5 %; the best has 74.0 %"
    )
    assert found.sentence.endswith("no statement about the losses.")
    assert judged([79, 73], [80, 79], {"forest": 70}, majority) is None
    assert judged([74, 73], [80, 79], {"forest": 85}, majority).kind == "underfit"  # something can be learnt
    # so few folds show nothing, but a lead of half the errors is no chance
    few = FoldAccuracies({"a": [90.0, 70.0]}, {}, {}, [50.0, 52.0])
    assert verdict_if_not_comparable(few, 0.5) is None


def test_tests_are_on_the_folds_in_common():
    losses = {"a": [50.0, 51.0, 50.0, 49.0] + [99.0] * 16}
    found = verdict_if_not_comparable(
        FoldAccuracies(losses, {"a": [52.0] * 20}, {"forest": [70.0, 71.0, 70.0, 69.0]}), 0.25
    )
    assert found.kind == "underfit"
    assert "no loss has more than 50.0 % there" in found.sentence
    assert (
        verdict_if_not_comparable(
            FoldAccuracies({"a": losses["a"][4:]}, {}, {"forest": [70.0, 71.0, 70.0, 69.0]}), 0.25
        )
        is None
    )


def test_verdicts_have_a_kind():
    assert stats.verdict_one_dataset({"a": [90, 91, 90, 92], "b": [10, 11, 10, 13]}, 0.2).kind == "ahead"
    assert stats.verdict_one_dataset({"a": [90, 91], "b": [91, 90]}, 0.2).kind == "no_evidence"
    assert stats.verdict_one_dataset({"a": [90, 91]}, 0.2).kind == "alone"
    assert stats.verdict_many_datasets(DEMSAR, NAMES).kind == "ahead"
    assert stats.verdict_many_datasets([[0.5, 0.6]], ["x", "y"]).kind == "no_evidence"
    assert stats.verdict_many_datasets([[0.5], [0.6]], ["x"]).kind == "alone"
