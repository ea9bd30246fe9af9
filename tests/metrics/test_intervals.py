"""Open sets: every pair once, intervals over identities, folds that share none, ten events or no rate."""

import json
import re

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from widemargin.io.errors import InputError
from widemargin.metrics import pair_counts
from widemargin.metrics.fewshot import few_shot_metrics
from widemargin.metrics.intervals import (
    VarianceEstimate,
    difference_p_value,
    jackknife_interval,
    jackknife_variance,
    mean_interval,
    sum_variances,
)
from widemargin.metrics.openset import open_set_metrics
from widemargin.metrics.retrieval import retrieval_metrics
from widemargin.metrics.roc import (
    fold_accuracies,
    fold_accuracies_from_counts,
    identity_folds,
    linked_folds,
    pair_folds,
)
from widemargin.metrics.verification import roc_curve, tar_at, verification_metrics, verification_metrics_of_embeddings
from widemargin.recognition.evaluation import evaluate_embeddings
from widemargin.recognition.protocols import PROTOCOLS, calibrated_threshold, select_pairs
from widemargin.recognition.settings import ProtocolSettings
from widemargin.viz import pair_charts as pictures


def random_identities(identities=24, images=6, spread_of=1.2, seed=0, dim=16):
    """Embeddings of identities whose spreads differ, and their labels, which do not begin at 0."""
    draw = np.random.default_rng(seed)
    y = np.repeat(np.arange(identities), images)
    centres = draw.standard_normal((identities, dim))
    spreads = spread_of * np.exp(0.4 * draw.standard_normal(identities))
    x = centres[y] + spreads[y, None] * draw.standard_normal((len(y), dim))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(3 + 2 * y)


def all_scores(x, y):
    unit = torch.nn.functional.normalize(x.double()).numpy()
    i, j = np.triu_indices(len(y), 1)
    return (unit @ unit.T)[i, j], y.numpy()[i], y.numpy()[j]


# ---------------------------------------------------------------- all pairs


def test_every_distinct_pair_counts_once():
    x, y = random_identities()
    scores, a, b = all_scores(x, y)
    found = verification_metrics_of_embeddings(x, y)
    assert (found.num_same, found.num_different, found.num_identities) == (24 * 15, 276 * 36, 24)
    roc = roc_curve(scores, a == b)
    assert found.auc.value == pytest.approx(np.trapezoid(roc.tar, roc.far), abs=1e-6)
    for far in (0.1, 0.01):
        assert found.tar[far].value == pytest.approx(tar_at(roc, far), abs=0.004)


def test_streamed_counts_are_exact_and_give_the_same_figures(monkeypatch):
    x, y = random_identities(40, 5)
    kept = verification_metrics_of_embeddings(x, y)
    monkeypatch.setattr(pair_counts, "MAX_IN_MEMORY_PAIRS", 0)
    monkeypatch.setattr(pair_counts, "_PAIRS_PER_BLOCK", 700)  # several blocks
    streamed = verification_metrics_of_embeddings(x, y)
    assert (streamed.num_same, streamed.num_different, streamed.num_folds) == (
        kept.num_same,
        kept.num_different,
        kept.num_folds,
    )
    assert streamed.resolution == pytest.approx(2**-19)
    assert streamed.auc.value == pytest.approx(kept.auc.value, abs=1e-5)
    assert streamed.accuracy == pytest.approx(kept.accuracy, abs=0.5)  # thresholds lie between other scores
    for one, other in ((streamed.eer, kept.eer), (streamed.tar[0.01], kept.tar[0.01])):
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), abs=2e-3)
    unit = torch.nn.functional.normalize(x).numpy()
    labels = np.unique(y.numpy(), return_inverse=True)[1]
    same, different = pair_counts.streamed_counts(unit, labels)
    scores, a, b = all_scores(x, y)
    for threshold in (0.0, 0.25, 0.5):
        accepted = pair_counts.bin_edges() >= threshold
        assert same[accepted].sum() == ((a == b) & (scores >= threshold)).sum()
        assert different[accepted].sum() == ((a != b) & (scores >= threshold)).sum()


def test_many_identities_are_left_out_in_groups(monkeypatch):
    x, y = random_identities(60, 4)
    one_by_one = verification_metrics_of_embeddings(x, y)
    monkeypatch.setattr(pair_counts, "MAX_GROUPS", 30)
    grouped = verification_metrics_of_embeddings(x, y)
    assert len(grouped.leave_one_out["auc"]) <= 30 < len(one_by_one.leave_one_out["auc"])
    widths = [found.auc.high - found.auc.low for found in (one_by_one, grouped)]
    assert 0.6 < widths[1] / widths[0] < 1.7


def test_figures_without_each_identity_are_those_of_the_others():
    x, y = random_identities(30, 6)
    found = verification_metrics_of_embeddings(x, y)
    for k, name in enumerate(torch.unique(y)[:5]):
        rest = verification_metrics_of_embeddings(x[y != name], y[y != name], intervals=False)
        assert found.leave_one_out["auc"][k] == pytest.approx(rest.auc.value, abs=1e-3)
        assert found.leave_one_out["eer"][k] == pytest.approx(rest.eer.value, abs=4e-3)
        assert found.leave_one_out["tar 0.1"][k] == pytest.approx(rest.tar[0.1].value, abs=6e-3)
    assert np.std(found.leave_one_out["auc"]) > 1e-4


# ---------------------------------------------------------------- intervals


def test_the_spread_of_a_mean_is_the_usual_one():
    values = np.random.default_rng(0).normal(5, 2, 40)
    without = (values.sum() - values) / 39
    found = jackknife_variance(without)
    assert found.variance == pytest.approx(values.var(ddof=1) / 40)
    heavy = np.append(values[:-1], 60.0)  # one identity makes most of the difference
    assert jackknife_variance((heavy.sum() - heavy) / 39).degrees_of_freedom < 5 < found.degrees_of_freedom <= 39
    welch = sum_variances([VarianceEstimate(4.0, 9.0), VarianceEstimate(1.0, 3.0)])
    assert (welch.variance, welch.degrees_of_freedom) == (5.0, pytest.approx(25 / (16 / 9 + 1 / 3)))


def test_the_p_value_is_students():
    draw = np.random.default_rng(1)
    gaps = draw.normal(0.5, 1, 30)
    without = (gaps.sum() - gaps) / 29
    found = jackknife_variance(without)
    wanted = scipy_stats.t.sf(gaps.mean() / np.sqrt(found.variance), found.degrees_of_freedom) * 2
    assert difference_p_value(float(gaps.mean()), found) == pytest.approx(wanted)
    assert difference_p_value(1.0, VarianceEstimate(0.0, 9.0)) == 1.0


def test_pairs_that_share_identities_say_less_than_pairs_that_do_not():
    """A hundred images of each of twelve identities are not thousands of independent pairs."""
    x, y = random_identities(12, 30)
    scores, a, b = all_scores(x, y)
    over = verification_metrics(scores, a == b, identities=(a, b))
    alone = 2 * np.arange(len(scores))
    independent = verification_metrics(scores, a == b, identities=(alone, alone + (a != b)))
    assert over.auc.value == independent.auc.value
    assert over.auc.high - over.auc.low > 5 * (independent.auc.high - independent.auc.low)


def test_a_handful_of_identities_has_no_interval():
    for count in (3, 9):
        found = verification_metrics_of_embeddings(*random_identities(count, 20))
        assert found.auc.low is found.auc.high is None
        assert found.auc.reason == f"{count} identities, 10 are needed"
        assert found.eer.low is None
    assert verification_metrics_of_embeddings(*random_identities(10, 20)).auc.low is not None


def test_without_identities_there_are_no_intervals():
    draw = np.random.default_rng(0)
    same = draw.random(500) < 0.5
    found = verification_metrics(draw.normal(size=500) + same, same)
    assert found.auc.low is None
    assert found.num_identities is None
    assert "which pairs share an identity is not known" in found.auc.percent_text
    json.dumps(found.auc.__dict__, allow_nan=False)


def test_no_interval_from_a_handful_of_errors():
    x, y = random_identities(20, 6, spread_of=0.05)
    found = verification_metrics_of_embeddings(x, y)
    assert found.auc.value == 1.0
    assert found.auc.low is None
    assert found.eer is None
    assert "fewer same pairs are missed; it is below 3.3 %" in found.missing_reasons["eer"]
    assert jackknife_interval(1.0, np.ones(30)) is None
    assert mean_interval(np.append(np.full(19, 10.0), 1.0), np.full(20, 10)) is None  # nine misses
    assert mean_interval(np.append(np.full(19, 10.0), 0.0), np.full(20, 10)) is None  # ten, all of one identity
    assert mean_interval(np.append(np.full(15, 10.0), np.full(5, 8.0)), np.full(20, 10)) is not None


def test_intervals_of_retrieval_and_shots_are_over_classes():
    x, y = random_identities(20, 10)
    found = retrieval_metrics(x, y, ks=(1, 5))
    low, high = found.intervals["recall@1"]
    assert low < found.recall[1] < high
    naive = 1.96 * 100 * np.sqrt(found.recall[1] / 100 * (1 - found.recall[1] / 100) / 200)
    assert high - low > 2 * naive
    without = found.leave_one_out["recall@1"]
    for k, name in enumerate(torch.unique(y)[:4]):
        others = (y != name).nonzero().squeeze(1).tolist()
        assert without[k] == pytest.approx(100 * np.mean([_is_hit(x, y, row) for row in others]))
    few, many = (few_shot_metrics(x, y, episodes=count) for count in (200, 1000))
    assert many.error > 0.5 * few.error  # more episodes of the same classes make it no surer for others
    assert few_shot_metrics(*random_identities(8, 10), episodes=50).error is None


def _is_hit(x, y, row):
    unit = torch.nn.functional.normalize(x)
    near = unit @ unit[row]
    near[row] = -2
    return bool(y[near.argmax()] == y[row])


# ---------------------------------------------------------------- ten events


@pytest.mark.parametrize(("different", "given"), [(999, False), (1000, True)])
def test_a_far_rests_on_ten_false_accepts(different, given):
    draw = np.random.default_rng(0)
    same = np.arange(different + 50) >= different
    found = verification_metrics(draw.normal(size=len(same)) + 2 * same, same)
    assert (found.tar[0.01] is not None) == given
    assert found.tar[1e-4] is None
    wanted = f"FAR 0.0001 needs at least 10 false accepts: 100,000 different pairs; there are {different:,}"
    assert found.missing_reasons["tar 0.0001"] == wanted


def test_ties_do_not_make_ten_events():
    scores = np.concatenate((np.full(9, 2.0), np.zeros(991), np.full(100, 3.0)))
    found = verification_metrics(scores, np.arange(1100) >= 1000)
    assert found.tar[0.01] is None
    assert "scores are tied, so that there are 9" in found.missing_reasons["tar 0.01"]
    assert found.tar[0.1] is None


def test_false_accepts_of_two_identities_have_no_interval():
    x, y = random_identities(40, 6, spread_of=0.6)
    x[y == 3 + 2 * 7] = x[y == 3 + 2 * 4] + 0.01  # twins
    found = verification_metrics_of_embeddings(x, y, fars=(0.001,))
    assert found.tar[0.001].low is None
    assert re.search(r"the false accepts are of \d identities", found.tar[0.001].reason)


def test_a_curve_that_no_ten_pairs_support_is_not_drawn():
    draw = np.random.default_rng(0)
    same = np.arange(300) >= 9
    roc = roc_curve(draw.normal(size=300) + same, same)
    assert pictures.draw_roc_curve(roc, 291, 9, "t") is None
    assert pictures.draw_det_curve(roc, 291, 9, "t") is None
    perfect = roc_curve((np.arange(300) >= 100).astype(float), np.arange(300) >= 100)
    assert pictures.draw_det_curve(perfect, 200, 100, "t") is None
    few = np.arange(300) >= 291
    assert pictures.draw_roc_curve(roc_curve(draw.normal(size=300) + few, few), 9, 291, "t") is None


def verify_with_counts(hits, misses):
    """Scores of 600 same pairs of 30 identities, at a threshold that 10 of 1,000 different pairs pass."""
    draw = np.random.default_rng(0)
    high = np.arange(600) % 30 * 20 + np.arange(600) // 30  # one identity after the other
    accepted = high < hits if misses is None else high >= misses
    same = np.where(accepted, 3.0, -1.0) + 0.1 * draw.random(600)
    different = np.where(np.arange(1000) < 10, 2.0, 0.0) + 0.1 * draw.random(1000)
    first = np.concatenate((np.arange(600) % 30, np.arange(1000) % 30))
    second = np.concatenate((np.arange(600) % 30, (np.arange(1000) % 30 + 1 + np.arange(1000) // 30 % 29) % 30))
    scores = np.concatenate((same, different))
    return verification_metrics(scores, np.arange(1600) < 600, fars=(0.01,), identities=(first, second))


def test_a_tar_rests_on_ten_accepted_same_pairs():
    found = verify_with_counts(9, None)
    assert found.tar[0.01] is None
    assert found.missing_reasons["tar 0.01"] == "FAR 0.01 needs at least 10 same pairs accepted; there are 9"
    assert verify_with_counts(10, None).tar[0.01].value == pytest.approx(10 / 600)


def test_few_misses_or_those_of_one_identity_have_no_interval():
    few = verify_with_counts(None, 9).tar[0.01]
    assert few.value == pytest.approx(591 / 600)
    assert few.low is None
    assert few.reason == "fewer than 10 same pairs are missed"
    single = verify_with_counts(None, 20).tar[0.01]  # all of one identity: "96.67 % (0.00 to 100.00)" says nothing
    assert single.low is None
    assert single.reason == "hardly more than one identity makes a difference"
    assert verify_with_counts(None, 300).tar[0.01].low is not None


def test_a_handful_of_errors_gives_no_interval_in_any_protocol():
    x, y = random_identities(24, 6, spread_of=0.05)
    x[0] = -x[0]  # an image that matches no image of its class
    assert verification_metrics_of_embeddings(x, y).accuracy_interval is None
    shots = few_shot_metrics(x, y, episodes=300)
    assert shots.accuracy < 100.0
    assert shots.error is shots.low is None
    x[6:48:6] = -x[6:48:6]
    facts = PROTOCOLS["openset"](x, torch.unique(y, return_inverse=True)[1], ProtocolSettings(), 0).metrics
    assert facts["auroc"] < 1.0
    assert facts["intervals"]["auroc"] is None


def test_identification_rests_on_ten_known_images_that_are_found():
    draw = torch.Generator().manual_seed(0)
    gallery = torch.nn.functional.normalize(torch.randn(30, 8, generator=draw))
    known = gallery[:20].repeat(3, 1) + 0.01 * torch.randn(60, 8, generator=draw)
    known[9:] += 20 * torch.randn(51, 8, generator=draw)  # nine are found
    unknown = gallery.repeat(10, 1) + 0.2 * torch.randn(300, 8, generator=draw)
    labels = torch.cat((torch.arange(20).repeat(3), 30 + torch.arange(300) // 10))
    found = open_set_metrics(torch.cat((known, unknown)), labels, gallery, torch.arange(30), fars=(0.1, 0.01))
    assert found.dir[0.1] is found.dir[0.01] is None
    assert found.missing_reasons["dir 0.1"] == "at least 10 known images must be identified; there are 9"
    assert (
        found.missing_reasons["dir 0.01"] == "1 % needs at least 10 false alarms: 1,000 unknown images; there are 300"
    )


@pytest.mark.parametrize(("unknown", "given"), [(100, False), (1000, True)])
def test_one_false_alarm_of_a_hundred_is_no_rate(unknown, given):
    draw = torch.Generator().manual_seed(0)
    gallery = torch.randn(30, 8, generator=draw)
    known = gallery.repeat(4, 1) + 0.6 * torch.randn(120, 8, generator=draw)
    probes = torch.cat((known, torch.randn(unknown, 8, generator=draw)))
    labels = torch.cat((torch.arange(30).repeat(4), 30 + torch.arange(unknown) // 10))
    found = open_set_metrics(probes, labels, gallery, torch.arange(30))
    assert (found.dir[0.01] is not None) == given
    assert (found.intervals["dir 0.01"] is not None) == given
    low, high = found.intervals["rank1"]
    assert low < found.rank1 < high
    assert found.intervals["auroc"][0] < 100 * found.auroc < found.intervals["auroc"][1]


def test_protocols_refuse_what_too_few_support():
    x = random_identities(6, 3)[0]
    y = torch.arange(6).repeat_interleave(3)
    said = {name: PROTOCOLS[name](x, y, ProtocolSettings(ways=3, neighbours=2), 0).lines for name in PROTOCOLS}
    assert any(line.startswith("EER –: EER needs at least 10 errors of each kind") for line in said["verification"])
    assert any(re.search(r"TAR at FAR 0.01: –: .* there are 135$", line) for line in said["verification"])
    assert said["openset"] == ["–: 10 known and unknown images each are needed; there are 6"]
    tiny = PROTOCOLS["retrieval"](x[:8], y[:8], ProtocolSettings(), 0)
    assert tiny.lines == ["–: 10 queries are needed; there are 8"]
    assert (
        PROTOCOLS["knn"](x[:8], y[:8], ProtocolSettings(neighbours=1), 0).lines[0].startswith("–: 10 images are needed")
    )
    with pytest.raises(InputError, match=r"FAR 0\.01 needs at least 10 false accepts: 1,000 .*; there are 135"):
        calibrated_threshold(x, y, 0.01)


def test_a_record_has_dashes_for_what_is_refused():
    found = evaluate_embeddings(*random_identities(20, 6, spread_of=0.05))
    assert found["eer"] is None
    assert found["tar"]["0.001"] is None
    assert found["intervals"]["auc"] is None
    assert found["intervals"]["eer"] is None
    json.dumps(found, allow_nan=False)


# ---------------------------------------------------------------- folds


def test_no_identity_is_in_two_folds():
    x, y = random_identities(30, 5)
    labels = np.unique(y.numpy(), return_inverse=True)[1]
    fold = identity_folds(labels)
    i, j = np.triu_indices(len(labels), 1)
    folds = pair_folds(labels[i], labels[j], fold)
    assert sorted(np.unique(folds)) == [-1, *range(10)]
    for k in range(10):
        inside = {*labels[i][folds == k], *labels[j][folds == k]}
        outside = {*labels[i][(folds != k) & (folds >= 0)], *labels[j][(folds != k) & (folds >= 0)]}
        assert not inside & outside
    found = verification_metrics_of_embeddings(x, y)
    assert found.num_folds == 10
    low, high = found.accuracy_interval
    assert low < found.accuracy < high
    assert (
        verification_metrics_of_embeddings(*random_identities(3, 9)).accuracy is None
    )  # a fold of one identity has no different pair
    assert verification_metrics_of_embeddings(*random_identities(8, 9)).num_folds == 4


def test_repeated_pairs_stay_in_one_fold():
    """Listed pairs that share an image are in one fold, unless all pairs are connected."""
    draw = np.random.default_rng(0)
    group = np.repeat(np.arange(60), 4)  # sixty groups of four pairs among three identities
    first = 3 * group + draw.integers(3, size=len(group))
    second = 3 * group + draw.integers(3, size=len(group))
    fold = linked_folds(first, second)
    assert (fold[first] == fold[second]).all()
    same = first == second
    for kind in (same, ~same):
        counts = np.bincount(fold[first[kind]], minlength=10)
        assert counts.max() <= 2 * counts.mean()
    chain = np.arange(50)
    joined = linked_folds(np.append(chain, chain), np.append(chain, (chain + 1) % 50))
    assert sorted(np.unique(joined)) == list(range(10))  # all hang together: dealt out one by one


def test_accuracy_of_folds_from_counts_is_that_of_scores():
    draw = np.random.default_rng(0)
    folds, same = np.arange(900) % 3, draw.random(900) < 0.3
    scores = (draw.integers(0, 40, 900) + 12 * same).astype(float)
    counts = [
        np.array([np.bincount((51 - scores[kind & (folds == k)]).astype(int), minlength=52) for k in range(3)], float)
        for kind in (same, ~same)
    ]
    with pytest.raises(InputError, match=r"same and different.*fold"):
        fold_accuracies(scores, same, same.astype(int), balanced=True)
    for balanced in (False, True):
        wanted = fold_accuracies(scores, same, folds, balanced=balanced)
        np.testing.assert_allclose(fold_accuracies_from_counts(*counts, balanced=balanced), wanted, atol=1e-12)


def test_identities_of_listed_pairs():
    first, second = np.array([0, 1, 0, 3, 3, 4]), np.array([1, 2, 2, 4, 3, 3])
    same = np.array([True, True, True, True, True, True])
    more_first, more_second = np.append(first, [0, 2]), np.append(second, [3, 4])
    kinds = np.append(same, [False, False])
    found = select_pairs(more_first, more_second, kinds)
    assert found.rows.tolist() == [0, 1, 2, 3, 6, 7]  # without an image paired with itself, and a reversed pair
    assert (found.identities[[0, 1, 2]] == found.identities[0]).all()
    assert found.identities[3] == found.identities[4] != found.identities[0]
    by_folder = select_pairs(more_first, more_second, kinds, ["a", "a", "a", "b", "b"])
    assert "folders" in by_folder.notes[-1]
    assert by_folder.identities.tolist() == [0, 0, 0, 1, 1]
    assert "folders" not in select_pairs(more_first, more_second, kinds, ["x"] * 5).notes[-1]
    against = select_pairs(np.array([0, 1, 0]), np.array([1, 2, 2]), np.array([True, True, False]))
    assert against.identities is None


@pytest.mark.parametrize(
    ("identities", "words"),
    [
        (([1, 2], [1, 2]), "two lists of 4"),
        (([1.5, 2, 3, 4], [1.5, 2, 5, 6]), "two lists of 4"),
        (([1, 2, 3, 4], [1, 2, 3, 6]), "contradict"),
    ],
)
def test_bad_identities_are_one_line(identities, words):
    with pytest.raises(InputError, match=words):
        verification_metrics([0.9, 0.8, 0.2, 0.1], [True, True, False, False], identities=identities)
