"""Tests on ranks over many sets: against scipy, textbook numbers, references from the formulas and laws."""

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
from score_tables import DEMSAR, random_table, score_tables
from widemargin import stats


@given(score_tables())
def test_ranks_are_those_of_their_definition(scores):
    by_counting = 1 + (scores[:, None, :] > scores[:, :, None]).sum(2)
    by_counting = by_counting + ((scores[:, None, :] == scores[:, :, None]).sum(2) - 1) / 2
    assert np.array_equal(stats.ranks(scores), by_counting)
    k = scores.shape[1]
    assert np.allclose(stats.ranks(scores).sum(1), k * (k + 1) / 2)


@given(score_tables(), st.randoms(use_true_random=False))
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

    def rank_sum_spread(rows):
        return ((np.sum(rows, axis=0) - 6.0) ** 2).sum()

    every = [rank_sum_spread(rows) for rows in itertools.product(*(list(itertools.permutations(row)) for row in r))]
    assert stats.friedman(scores).p == pytest.approx(np.mean(np.array(every) >= rank_sum_spread(r) - 1e-9), abs=1e-12)


def test_random_permutations_agree_with_all_of_them(monkeypatch):
    from widemargin.stats import rank_tests

    for seed in range(4):
        scores = random_table(seed, n=5, k=4)
        exact = stats.friedman(scores)
        with monkeypatch.context() as patch:
            patch.setattr(rank_tests, "_exact_permutation_p", lambda *_: None)
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


@given(score_tables())
def test_p_values_of_friedman_are_p_values(scores):
    found = stats.friedman(scores)
    assert all(0 <= p <= 1 for p in (found.p, found.p_f, found.p_chi2))


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

    def is_clique(group):
        apart = max(mean[i] for i in group) - min(mean[i] for i in group)
        return apart < cd or apart == 0

    groups = [
        frozenset(group)
        for size in range(2, len(mean) + 1)
        for group in itertools.combinations(range(len(mean)), size)
        if is_clique(group)
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.ranks([[1.0, math.nan]]), "scores[0][1] is nan"),
        (lambda: stats.ranks([[1.0, 2.0], [1.0]]), "rows of the same length"),
        (lambda: stats.ranks([1.0, 2.0]), "must be [sets, methods]"),
        (lambda: stats.ranks(np.zeros((0, 3))), "are empty"),
        (lambda: stats.ranks([["a", "b"]]), "must be numbers"),
        (lambda: stats.ranks([[1e200, 1.0]]), "below 1e+150"),
        (lambda: stats.ranks([[1.0]], decimals=-1), "decimals=-1"),
        (lambda: stats.friedman([[1.0], [2.0]]), "at least two methods"),
        (lambda: stats.q_alpha(1), "num_methods=1"),
        (lambda: stats.q_alpha(3, 1.5), "alpha=1.5"),
        (lambda: stats.critical_difference(3, 0), "num_datasets=0"),
        (lambda: stats.nemenyi([1.0], 3), "num_methods=1"),
        (lambda: stats.cliques([1.0, 2.0], -1), "cd=-1"),
        (lambda: stats.cliques([1.0, 2.0], math.nan), "cd=nan"),
        (lambda: stats.signed_rank_test([1.0], [1.0, 2.0]), "a has 1 scores and b 2"),
        (lambda: stats.wilcoxon([[1.0, 2.0]], control=2), "from 0 to 1"),
    ],
)
def test_a_mistake_is_one_line(call, message):
    with pytest.raises(wm.InputError, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_results_are_values():
    for value in (stats.friedman(DEMSAR), stats.wins(DEMSAR), stats.wilcoxon(DEMSAR)):
        assert pickle.loads(pickle.dumps(value)) == value
        hash(value)


def test_no_torch_is_needed():
    code = (
        "import sys; from widemargin import stats; stats.friedman([[1, 2, 3]] * 12); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
