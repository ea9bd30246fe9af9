"""What a comparison says: ranks, wins and groups of hand-made results, and when it makes no statement."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from comparison_cases import ANGLES, FITTED, UNDERFIT, make_result, noisy_folds, print_and_render, with_baselines
from widemargin import stats
from widemargin.cli.main import build_parser
from widemargin.io.errors import option_style
from widemargin.tabular import config, suggestions
from widemargin.tabular.comparison import build_comparison
from widemargin.tabular.plan import ComparisonPlan
from widemargin.tabular.results import parse_result_line
from widemargin.viz.comparison_terminal import print_comparison

RECORDS = Path(__file__).parents[2] / "records" / "table1.jsonl"


@pytest.fixture
def command_line_names():
    """Messages name options by their flags, as where a command runs."""
    with option_style(command_line=True):
        yield


def test_one_set_by_hand():
    good, same, bad = noisy_folds(90), noisy_folds(90, 1), noisy_folds(60, 2)
    found = build_comparison([make_result("bad", bad), make_result("good", good), make_result("same", same)])
    assert found.across_datasets is None
    assert found.methods == ("bad", "good", "same")
    (one,) = found.sets
    means = [r.mean for r in one.results]
    assert one.ranks == tuple(1.0 + sum(other > mean for other in means) for mean in means)
    assert one.ranks[0] == 3
    assert one.wins[0] == 0
    assert sum(one.wins) == 20
    assert one.wins[1] == int((good > same).sum())
    assert one.not_worse == {"good", "same"}
    assert [set(group) for group in one.groups] == [{1, 2}]
    for (low, high), r in zip(one.intervals, one.results, strict=True):
        assert low < r.mean < high
        assert high - low > 2 * 2.09 * r.std / math.sqrt(20)  # wider than if folds did not overlap
    assert found.verdict == one.verdict
    assert "ahead of bad" in one.verdict


def test_folds_that_overlap_need_more_than_the_plain_t_test():
    """A difference that the usual t-test calls significant and the corrected one does not."""
    from scipy.stats import ttest_rel

    draw = np.random.default_rng(3)
    a = draw.normal(90, 2, 100)
    b = a - draw.normal(0.5, 2, 100)
    assert ttest_rel(a, b).pvalue < 0.05
    (one,) = build_comparison([make_result("a", a), make_result("b", b)]).sets
    assert one.not_worse == {"a", "b"}
    assert "no evidence" in one.verdict


def test_marks_groups_and_verdict_say_the_same():
    """One family of tests for all three: what a bar joins with the best is marked, and is not called worse."""
    for seed in range(40):
        draw = np.random.default_rng(seed)
        found = build_comparison([make_result(f"m{k}", draw.normal(90 - 0.3 * k, 1, 20)) for k in range(6)])
        (one,) = found.sets
        best = max(range(6), key=lambda i: one.results[i].mean)
        joined = {found.methods[i] for group in one.groups if best in group for i in group}
        assert joined <= one.not_worse
        assert found.methods[best] in one.not_worse
        ahead = re.search(r"is ahead of (.*?) \(", one.verdict)
        worse = set(re.findall(r"m\d", ahead[1])) if ahead else set()
        assert worse == set(found.methods) - one.not_worse


def test_groups_may_overlap():
    def around(mean, seed):
        noise = noisy_folds(0, seed, 40)
        return mean + noise - noise.mean()

    found = build_comparison(
        [make_result("c", around(89.4, 2)), make_result("a", around(91.0, 0)), make_result("b", around(90.2, 1))]
    )
    (one,) = found.sets
    assert [tuple(found.methods[i] for i in group) for group in one.groups] == [("a", "b"), ("b", "c")]


def test_ties_share_ranks_and_wins():
    folds = [90.0, 80.0] * 5
    found = build_comparison([make_result("a", folds), make_result("b", folds), make_result("c", [50.0] * 10)])
    (one,) = found.sets
    assert one.ranks == (1.5, 1.5, 3.0)
    assert one.wins == (10, 10, 0)
    assert one.not_worse >= {"a", "b"}
    # 90.004 and 90.001 are the same number to anybody who reads the table
    (near,) = build_comparison([make_result("a", [90.004] * 10), make_result("b", [90.001] * 10)]).sets
    assert near.ranks == (1.5, 1.5)


def test_many_sets_by_hand():
    scores = {"s1": (90, 80, 70), "s2": (60, 60, 50), "s3": (70, 75, 72), "s4": (99, 98, 97)}
    rows = [
        make_result(loss, noisy_folds(0, 9) - noisy_folds(0, 9).mean() + mean, name)
        for name, means in scores.items()
        for loss, mean in zip("abc", means, strict=True)
    ]
    found = build_comparison(rows)
    together = found.across_datasets
    assert [one.set for one in found.sets] == list(scores)
    np.testing.assert_allclose(together.scores, list(scores.values()), atol=1e-9)
    assert together.averages == pytest.approx((79.75, 78.25, 72.25))
    assert together.mean_ranks == pytest.approx(((1 + 1.5 + 3 + 1) / 4, (2 + 1.5 + 1 + 2) / 4, (3 + 3 + 2 + 3) / 4))
    assert together.wins == (3, 2, 0)
    assert together.tied_wins == (1, 1, 0)
    assert together.critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 4)), rel=1e-3)
    assert together.p_friedman == stats.friedman(list(scores.values())).p
    assert [set(group) for group in together.groups] == [{0, 1, 2}]
    assert found.verdict == together.verdict


def test_settings_that_underfit_give_no_statement_anywhere(capsys, command_line_names):
    without = build_comparison([row for row in with_baselines(UNDERFIT, 54) if not row.is_baseline])
    assert "arcgrad(s=30) has the highest mean on this set and is ahead of softmax" in without.verdict
    found = build_comparison(with_baselines(UNDERFIT, 54))
    (one,) = found.sets
    assert found.kind == one.kind == "underfit"
    assert not one.has_statement
    assert (one.not_worse, one.groups, one.best_mean) == (frozenset(), (), None)
    assert found.verdict.startswith("These settings underfit; no statement about the losses.")
    options = "--hidden 256 64 --batch 64 --lr 0.005 --weight-decay 0.01 --dropout 0 --epochs 20"
    assert f"Try, with another --out: {options}." in found.verdict
    ComparisonPlan(
        [], [], mlp_config=config.mlp_values_from_options(build_parser().parse_args(["compare", *options.split()]))
    )  # they exist
    out, read, text = print_and_render(found, capsys)
    words = " ".join(data for tag, data in read.texts if tag != "style")
    for place in (" ".join(out.split()), words):
        assert "These settings underfit; no statement about the losses." in place
        assert "ahead of" not in place
        assert "best" not in place
        assert "38." in place  # the numbers are there
    assert "*" not in out
    assert "≈" not in out
    assert "rank" not in out
    assert 'class="best"' not in text
    assert 'class="alike"' not in text
    assert "Who differs from whom" not in words
    known = json.loads(found.to_json())
    assert (known["kind"], known["verdict"]) == ("underfit", found.verdict)
    assert known["sets"] == [{"set": "made", "kind": "underfit", "verdict": found.verdict, "adjusted_p": {}}]
    assert known["metric"] == found.metric == "accuracy"


def test_baselines_stand_below_and_take_no_part_in_ranks_and_marks(capsys):
    rows = with_baselines(FITTED, 89.9, line=85)
    found = build_comparison(rows)
    alone = build_comparison([row for row in rows if not row.is_baseline])
    assert found.methods == alone.methods == tuple(FITTED)
    assert found.baselines == ("majority", "logistic_regression", "random_forest")
    (one,), (same,) = found.sets, alone.sets
    assert (one.ranks, one.wins, one.not_worse, one.groups) == (same.ranks, same.wins, same.not_worse, same.groups)
    assert found.verdict == alone.verdict
    assert found.kind == "ahead"
    out, read, text = print_and_render(found, capsys)
    lines = out.splitlines()
    names = (*FITTED, *found.baselines)
    places = {name: next(k for k, line in enumerate(lines) if f" {name} " in line) for name in names}
    assert places["arcgrad(s=30)"] < places["softmax"] < places["majority"]
    assert "├" in lines[places["majority"] - 1]
    assert "logistic_regression and random_forest: the first 10 of these folds" in out
    assert re.search(r"arcgrad\(s=30\) +│ +\d+\.\d\d±\d\.\d\d\* │ +97\.00 │", out)
    assert re.search(r"random_forest +│ +\d+\.\d\d±\d\.\d\d +│ +89\.90 │", out)
    cells = [data for tag, data in read.texts if tag == "td"]
    assert "97.00" in cells
    assert text.index("<tfoot>") < text.index(">random_forest</td>")
    for name in found.baselines:  # in the picture too
        assert any(tag == "text" and data == name for tag, data in read.texts)
    before = build_comparison([make_result("softmax", noisy_folds(90))])
    print_comparison(before)
    assert re.search(r"softmax +│ +\d+\.\d\d±\d\.\d\d\* │ +– │", capsys.readouterr().out)  # lines of older versions


def test_other_reasons_for_no_statement(capsys, command_line_names):
    overfit = build_comparison(with_baselines({"softmax": (70, 99.5), "adacos": (60, 99)}, 85))
    assert overfit.kind == "baseline_ahead"
    assert "random_forest is ahead of every loss; no statement about the losses." in overfit.verdict
    assert "Try" not in overfit.verdict
    assert "More rows or fewer columns may help; else try, with another --out: --dropout 0.5" in overfit.verdict
    chance = build_comparison(with_baselines({"softmax": (50.2, 99), "adacos": (44, 99)}, 49, majority=50))
    assert chance.kind == "chance"
    assert "No loss is significantly better than the majority class" in chance.verdict
    assert chance.verdict.endswith("Nor is a baseline: other columns or more rows are needed.")
    hidden = build_comparison(with_baselines({"softmax": (50.2, 51), "adacos": (44, 49)}, 50.1, majority=20, line=49))
    assert hidden.kind in ("ahead", "no_evidence")  # a lead over the majority class
    lost = [
        make_result(row.loss, row.folds, angles={} if row.loss in FITTED else ANGLES)
        for row in with_baselines(FITTED, 54)
    ]
    nowhere = build_comparison(lost)
    assert nowhere.kind == "diverged"
    assert "--lr" in nowhere.verdict
    for found in (overfit, chance, nowhere):
        out, _, text = print_and_render(found, capsys)
        assert "no statement about the losses" in out
        assert 'class="best"' not in text
    published = build_comparison(with_baselines(UNDERFIT, 54), check_fit=False)
    assert published.kind == "ahead"


def test_a_baseline_that_is_higher_by_chance_is_a_caution():
    found = build_comparison(with_baselines(FITTED, 90.4))
    assert found.kind == "ahead"
    assert "ahead of softmax" in found.verdict
    assert re.search(
        r"random_forest has a higher mean than every loss \(90\.\d % in 10 folds\): with other", found.verdict
    )
    assert "higher mean than" not in build_comparison(with_baselines(FITTED, 85)).verdict
    assert "higher mean than" not in build_comparison(with_baselines(FITTED, 90.4), check_fit=False).verdict


def test_a_statement_without_baselines_is_cautious_where_training_accuracy_is_low():
    low, high = ([row for row in with_baselines(kind, 54) if not row.is_baseline] for kind in (UNDERFIT, FITTED))
    caution = r"No loss has more than \d+\.\d % even on .*rows.*, and no baseline was run"
    assert re.search(caution, build_comparison(low).verdict)
    assert not re.search(caution, build_comparison(high).verdict)
    assert not re.search(caution, build_comparison(low, check_fit=False).verdict)


def test_settings_that_were_tried_already_are_not_proposed_again(command_line_names):
    tried = {"hidden": [256, 64], "batch": 64, "lr": 0.005, "weight_decay": 0.01, "dropout": 0.0, "epochs": 20.0}
    more = suggestions.suggest_options_against_underfitting({"mlp_config": tried})
    assert more == "--hidden 512 128 --batch 64 --lr 0.005 --weight-decay 0.01 --dropout 0 --epochs 40"
    assert suggestions.suggest_options_against_underfitting({"mlp_config": {"hidden": [8]}}).startswith(
        "--hidden 256 64 --batch"
    )
    assert suggestions.suggest_options_against_underfitting({"mlp_config": {"hidden": [300, 300, 30]}}).startswith(
        "--hidden 300 300 64 --batch"
    )
    assert suggestions.suggest_options_against_overfitting({"mlp_config": {"weight_decay": 2}}).startswith(
        "--dropout 0.5 --weight-decay 6"
    )
    for odd in ({}, {"mlp_config": {"hidden": 5}}, {"mlp_config": {"lr": "x"}}, {"mlp_config": {"what": 1}}):
        assert suggestions.suggest_options_against_underfitting(
            odd
        ) == suggestions.suggest_options_against_underfitting({})


def test_sets_without_a_statement_are_left_out_of_the_ranks(capsys, command_line_names):
    good = [row for k in range(3) for row in with_baselines(FITTED, 80, f"good{k}")]
    bad = [
        *with_baselines(UNDERFIT, 54, "big"),
        *with_baselines({"softmax": (50, 99), "arcgrad(s=30)": (45, 99)}, 49, "noise", 50),
    ]
    found, alone = build_comparison([*good, *bad]), build_comparison(good)
    assert found.across_datasets.sets == ("good0", "good1", "good2")
    assert found.across_datasets.mean_ranks == alone.across_datasets.mean_ranks
    assert found.across_datasets.wins == alone.across_datasets.wins
    assert found.verdict.startswith(alone.verdict)
    why = "big (these settings underfit); noise (no loss is significantly better than the majority class)."
    assert found.verdict.endswith(f"Left out, because no statement about the losses can be made there: {why}")
    out, read, _ = print_and_render(found, capsys)
    words, out = " ".join(data for _, data in read.texts), " ".join(out.split())
    for place in (words, out):
        for word in ("big", "noise", "train", "random_forest", "Left out", "--hidden 256 64"):
            assert word in place
    assert "40.0" in out  # the span of the training accuracies
    one_left = build_comparison([*good[:5], *bad])
    assert one_left.across_datasets is None
    assert one_left.verdict.startswith("On good0: arcgrad(s=30) has the highest mean")
    assert one_left.kind == "ahead"
    none_left = build_comparison(bad)
    assert none_left.verdict.startswith("No statement about the losses: big (these settings underfit); noise")
    assert none_left.kind == "underfit"
    print_and_render(one_left, capsys)
    print_and_render(none_left, capsys)


def test_no_false_alarm_on_the_uci_sets_of_the_records():
    """Full runs of Table I: by the folds that run by default no baseline is ahead of every loss."""
    rows = [parse_result_line(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row.loss not in ("adacos(floor=2)", "svm", "mlp")]
    quick = build_comparison([replace(row, folds=row.folds[:10]) if row.is_baseline else row for row in rows])
    assert len(quick.sets) == 15
    assert quick.baselines == ("logistic_regression", "random_forest")
    assert {one.kind for one in quick.sets} <= {"ahead", "no_evidence"}
    # by all hundred a forest is ahead on one set, and so it is: 66 % against 55 %
    every = {one.set: one.verdict for one in build_comparison(rows).sets if not one.has_statement}
    assert list(every) == ["teaching_assistant_evaluation"]
    assert "random_forest is ahead of every loss" in every["teaching_assistant_evaluation"]
