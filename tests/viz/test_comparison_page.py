"""What a report says and shows: ranks, wins and groups of hand-made results; a page that is one safe file."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from widemargin import stats
from widemargin.cli.main import build_parser, main
from widemargin.losses.registry import list_losses
from widemargin.tabular import arguments, comparison
from widemargin.tabular.compare import PAPER_LOSSES, ComparisonPlan
from widemargin.tabular.comparison import build_comparison, comparison_to_json
from widemargin.tabular.results import Result, parse_result_line
from widemargin.viz import charts, page
from widemargin.viz.charts import loss_colour
from widemargin.viz.comparison_page import comparison_page
from widemargin.viz.comparison_table import print_comparison

RECORDS = Path(__file__).parents[2] / "records" / "table1.jsonl"

ANGLES = {"wc_intra": 0.2, "w_inter": 2.0, "c_inter": 1.9}
EVIL = """<script>alert(1)</script>"&quot;'&amp;<b"""
VOID = {"meta", "br", "img", "link", "input", "hr"}
CLOSED = {"line", "circle", "rect", "polyline", "polygon", "path"}  # of SVG, which may close themselves


def result(loss, folds, name="made", parts=10, angles=ANGLES, train=None, **settings):
    folds = [float(fold) for fold in folds]
    std = float(np.std(folds, ddof=1))
    versions = {"widemargin": "0", "torch": EVIL}
    settings = {"runs": len(folds) // parts, "parts": parts, **settings}
    fitted = [] if train is None else [float(train)] * len(folds)
    return Result(name, loss, float(np.mean(folds)), std, folds, 0, 1.5, versions, settings, angles, fitted)


def noisy(mean, seed=0, count=20):
    return mean + np.random.default_rng(seed).normal(0, 1, count).round(2)


class Reader(HTMLParser):
    """Balanced tags, and all that is in the page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in CLOSED | VOID, tag
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


def checked(text):
    """A page that opens offline, runs nothing, and can be read without seeing its pictures."""
    read = Reader(text)
    assert text.startswith("<!doctype html>")
    assert not {"script", "link", "iframe", "img", "object", "embed", "base", "form"} & set(read.tags)
    assert not [name for _, name, _ in read.attributes if name.startswith("on") or name in ("src", "href", "action")]
    outside = re.sub(r'xmlns="http://www\.w3\.org/2000/svg"', "", text)
    assert not re.search(r"https?://|url\(|@import|javascript:", outside)
    assert len(text.encode()) < 1 << 20
    of_pictures = [(name, value) for tag, name, value in read.attributes if tag == "svg"]
    count = read.tags.count("svg")
    assert of_pictures.count(("role", "img")) == count
    assert sum(name == "aria-label" and bool(value) for name, value in of_pictures) == count
    assert not re.search(r'="[^"]*\b(nan|inf)\b[^"]*"', text)
    assert "lang" in {name for tag, name, _ in read.attributes if tag == "html"}
    return read


# What is compared


def test_one_set_by_hand():
    good, same, bad = noisy(90), noisy(90, 1), noisy(60, 2)
    found = build_comparison([result("bad", bad), result("good", good), result("same", same)])
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
    (one,) = build_comparison([result("a", a), result("b", b)]).sets
    assert one.not_worse == {"a", "b"}
    assert "no evidence" in one.verdict


def test_marks_groups_and_verdict_say_the_same():
    """One family of tests for all three: what a bar joins with the best is marked, and is not called worse."""
    for seed in range(40):
        draw = np.random.default_rng(seed)
        found = build_comparison([result(f"m{k}", draw.normal(90 - 0.3 * k, 1, 20)) for k in range(6)])
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
        noise = noisy(0, seed, 40)
        return mean + noise - noise.mean()

    found = build_comparison([result("c", around(89.4, 2)), result("a", around(91.0, 0)), result("b", around(90.2, 1))])
    (one,) = found.sets
    assert [tuple(found.methods[i] for i in group) for group in one.groups] == [("a", "b"), ("b", "c")]


def test_ties_share_ranks_and_wins():
    folds = [90.0, 80.0] * 5
    found = build_comparison([result("a", folds), result("b", folds), result("c", [50.0] * 10)])
    (one,) = found.sets
    assert one.ranks == (1.5, 1.5, 3.0)
    assert one.wins == (10, 10, 0)
    assert one.not_worse >= {"a", "b"}
    # 90.004 and 90.001 are the same number to anybody who reads the table
    (near,) = build_comparison([result("a", [90.004] * 10), result("b", [90.001] * 10)]).sets
    assert near.ranks == (1.5, 1.5)


def test_many_sets_by_hand():
    scores = {"s1": (90, 80, 70), "s2": (60, 60, 50), "s3": (70, 75, 72), "s4": (99, 98, 97)}
    rows = [
        result(loss, noisy(0, 9) - noisy(0, 9).mean() + mean, name)
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


def test_one_method_has_nothing_to_be_compared_with(capsys):
    for names in (["made"], ["made", "other"]):
        found = build_comparison([result("softmax", noisy(90), name) for name in names])
        assert found.across_datasets is None
        assert "nothing to compare" in found.verdict
        read = checked(comparison_page(found))
        text = " ".join(data for _, data in read.texts)
        print_comparison(found)
        out = capsys.readouterr().out
        for one in found.sets:
            assert one.set in text
            assert one.set in out
            assert one.groups == ()
            assert one.ranks == (1.0,)


# Baselines beside the losses


def with_baselines(losses, forest, name="made", majority=20.0, line=30.0, **settings):
    """Results of losses {name: (test, train)} on 20 folds with baselines, two of them on ten; no fold is special."""
    rows = [
        result(loss, noisy(test, 7 * k), name, train=train, protocol={"dropout": 0.2}, **settings)
        for k, (loss, (test, train)) in enumerate(losses.items())
    ]
    rows.append(result("majority", noisy(majority, 40), name, angles={}, train=majority))
    for loss, mean in {"logistic_regression": line, "random_forest": forest}.items():
        rows.append(result(loss, noisy(mean, 41, 10), name, angles={}, train=mean, first_folds=10))
    return rows


UNDERFIT = {"softmax": (30, 31), "arcgrad(s=30)": (38, 40)}
FITTED = {"softmax": (75, 90), "arcgrad(s=30)": (90, 97)}


def shown(found, capsys):
    """What is printed, and the page's words and cells."""
    print_comparison(found)
    text = comparison_page(found, [], "widemargin compare")
    return capsys.readouterr().out, checked(text), text


def test_settings_that_underfit_give_no_statement_anywhere(capsys):
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
        [], [], mlp_config=arguments.mlp_config_from_options(build_parser().parse_args(["compare", *options.split()]))
    )  # they exist
    out, read, text = shown(found, capsys)
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
    known = json.loads(comparison_to_json(found))
    assert (known["kind"], known["verdict"]) == ("underfit", found.verdict)
    assert known["sets"] == [{"set": "made", "kind": "underfit", "verdict": found.verdict}]


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
    out, read, text = shown(found, capsys)
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
    before = build_comparison([result("softmax", noisy(90))])
    print_comparison(before)
    assert re.search(r"softmax +│ +\d+\.\d\d±\d\.\d\d\* │ +– │", capsys.readouterr().out)  # lines of older versions


def test_a_baseline_far_below_does_not_squeeze_the_picture():
    names, spans = ["a", "b", "majority", "forest"], [(94.0, 97.0), (95.0, 98.0), (20.0, 30.0), (90.0, 94.0)]
    means = [95.5, 96.5, 25.0, 92.0]
    drawn = charts.draw_intervals(names, means, spans, ["#111111"] * 4, "percent", "title", num_references=2)
    ticks = [float(data) for tag, data in Reader(drawn).texts if re.fullmatch(r"\d+", data)]
    assert min(ticks) >= 89
    assert drawn.count("<polygon") == 1  # an arrow for the majority class
    assert drawn.count("<circle") == 3
    assert "25.00" in drawn
    everything = charts.draw_intervals(names, means, spans, ["#111111"] * 4, "percent", "title")
    assert "<polygon" not in everything


def test_other_reasons_for_no_statement(capsys):
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
        result(row.loss, row.folds, angles={} if row.loss in FITTED else ANGLES) for row in with_baselines(FITTED, 54)
    ]
    nowhere = build_comparison(lost)
    assert nowhere.kind == "diverged"
    assert "--lr" in nowhere.verdict
    for found in (overfit, chance, nowhere):
        out, _, text = shown(found, capsys)
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
    caution = r"No loss has more than \d+\.\d % even on the rows it has learnt from, and no baseline was run"
    assert re.search(caution, build_comparison(low).verdict)
    assert not re.search(caution, build_comparison(high).verdict)
    assert not re.search(caution, build_comparison(low, check_fit=False).verdict)


def test_settings_that_were_tried_already_are_not_proposed_again():
    tried = {"hidden": [256, 64], "batch": 64, "lr": 0.005, "weight_decay": 0.01, "dropout": 0.0, "epochs": 20.0}
    more = comparison.suggest_options_against_underfitting({"protocol": tried})
    assert more == "--hidden 512 128 --batch 64 --lr 0.005 --weight-decay 0.01 --dropout 0 --epochs 40"
    assert comparison.suggest_options_against_underfitting({"protocol": {"hidden": [8]}}).startswith(
        "--hidden 256 64 --batch"
    )
    assert comparison.suggest_options_against_underfitting({"protocol": {"hidden": [300, 300, 30]}}).startswith(
        "--hidden 300 300 64 --batch"
    )
    assert comparison.suggest_options_against_overfitting({"protocol": {"weight_decay": 2}}).startswith(
        "--dropout 0.5 --weight-decay 6"
    )
    for odd in ({}, {"protocol": {"hidden": 5}}, {"protocol": {"lr": "x"}}, {"protocol": {"what": 1}}):
        assert comparison.suggest_options_against_underfitting(odd) == comparison.suggest_options_against_underfitting(
            {}
        )


def test_sets_without_a_statement_are_left_out_of_the_ranks(capsys):
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
    out, read, _ = shown(found, capsys)
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
    shown(one_left, capsys)
    shown(none_left, capsys)


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


# The page


def results(methods, sets, parts=10):
    return [
        result(method, np.clip(noisy(80 + 2 * m + s, 31 * m + s), 0, 100), name, parts)
        for s, name in enumerate(sets)
        for m, method in enumerate(methods)
    ]


@pytest.mark.parametrize("sets", [1, 2, 15, 60])
@pytest.mark.parametrize("methods", [1, 2, 7, 14])
def test_a_page_of_any_size_is_one_file_in_order(sets, methods):
    names = list(dict.fromkeys([*PAPER_LOSSES, *list_losses("margins")]))[:methods]
    found = build_comparison(results(names, [f"set{k}" for k in range(sets)]))
    read = checked(comparison_page(found, ["A sentence on the data."], "widemargin compare"))
    text = " ".join(data for _, data in read.texts)
    for word in (*names, f"set{sets - 1}", "A sentence on the data.", "widemargin compare", "95 % interval"):
        assert word in text
    assert ("Critical-difference diagram" in text) == (sets > 1 and methods > 1)
    assert f"{methods} method{'s' * (methods > 1)}, 20 folds each" in text
    assert found.verdict in text


def test_everything_that_comes_from_outside_is_escaped():
    evil = [f"a{EVIL}", f"b{EVIL}", f"c{EVIL}"]
    for sets in (1, 3):
        found = build_comparison(results(evil, [f"{EVIL}{k}" for k in range(sets)]))
        text = comparison_page(found, [f"about {EVIL}"], f"widemargin {EVIL}", title=f"title {EVIL}")
        read = checked(text)
        assert "script" not in read.tags
        assert "b" not in read.tags
        assert "<script" not in text
        assert f"about {EVIL}" in [data for _, data in read.texts]
        assert any(EVIL in data for tag, data in read.texts if tag == "title")
        assert any(name == "aria-label" and EVIL in value for _, name, value in read.attributes)
        assert any(EVIL in data for tag, data in read.texts if tag == "td")
        assert any(tag == "pre" and EVIL.replace('"', '\\"') in data for tag, data in read.texts)  # settings as JSON


def test_a_table_full_of_markup_from_file_to_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "<img src=x onerror=alert(1)> & &quot;q"
    header = '"<script>alert(1)</script>","b""&quot;","kind<i>"'
    rows = [f"{k % 7},{(k * 5) % 11},{'<b>no' if k % 2 else '&amp; yes'}" for k in range(30)]
    Path(f"{name}.csv").write_text("\n".join([header, *rows]))
    quick = ["--runs", "1", "--folds", "2", "--epochs", "0", "--min-steps", "5", "--hidden", "4", "4", "--jobs", "1"]
    assert main(["compare", f"{name}.csv", "--losses", "softmax, arcgrad", *quick, "--out", "out"]) == 0
    text = Path("out/report.html").read_text()
    read = checked(text)
    assert any(name in data for tag, data in read.texts if tag == "h1")
    assert "<img" not in text
    assert name in capsys.readouterr().out


def test_angles_that_are_unknown_are_a_dash():
    unknown = {"wc_intra": math.nan, "w_inter": 1.5}
    rows = [result("softmax", noisy(90), angles=unknown), result("svm", noisy(80, 1), angles={})]
    read = checked(comparison_page(build_comparison(rows)))
    assert "–" in [data for tag, data in read.texts if tag == "text"]
    assert "1.50" in [data for tag, data in read.texts if tag == "text"]
    without = comparison_page(
        build_comparison([result("svm", noisy(80), angles={}), result("mlp", noisy(81, 1), angles={})])
    )
    assert "Compact within" not in without
    nowhere = {"wc_intra": math.nan, "w_inter": math.nan, "c_inter": math.nan}
    checked(comparison_page(build_comparison([result("softmax", noisy(90), angles=nowhere)])))


@pytest.mark.parametrize("folds", [[100.0] * 10, [0.0] * 10, [96.67] * 10])
def test_methods_that_all_agree_are_drawn_on_an_axis_one_can_read(folds):
    found = build_comparison([result("softmax", folds), result("arcgrad(s=5)", folds)])
    read = checked(comparison_page(found))
    drawn = [data for tag, data in read.texts if tag == "text" and re.fullmatch(r"-?\d+(\.\d+)?", data)]
    assert found.sets[0].groups == ((0, 1),)
    steps = [float(data) for data in drawn if data != f"{folds[0]:.2f}"]
    assert len(set(steps)) > 2  # not the same number again and again
    assert "no evidence" in found.verdict


def test_numbers_in_the_page_are_those_of_the_results(capsys):
    found = build_comparison(results(["softmax", "arcgrad(s=5)"], ["one"]))
    read = checked(comparison_page(found))
    print_comparison(found)
    out = capsys.readouterr().out
    cells = [data for tag, data in read.texts if tag == "td"]
    for r, (low, high) in zip(found.sets[0].results, found.sets[0].intervals, strict=True):
        assert f"{r.mean:.2f} ± {r.std:.2f}" in cells
        assert f"{low:.2f} – {high:.2f}" in cells
        assert f"{r.mean:.2f}±{r.std:.2f}" in out
    best = max(found.sets[0].results, key=lambda r: r.mean)
    assert f'<td class="best">{best.mean:.2f} ± {best.std:.2f}</td>' in comparison_page(found)


def test_the_terminal_shows_sets_averages_and_marks(capsys):
    found = build_comparison(results(["softmax", "adacos"], ["one", "two", "three"]))
    print_comparison(found)
    out = capsys.readouterr().out
    for word in ("one", "two", "three", "average", "mean rank", "wins", "softmax", "adacos", "≈: not significantly"):
        assert word in out
    for average in found.across_datasets.averages:
        assert f"{average:.2f}" in out


def test_parts_of_a_page():
    assert page.paragraph("a < b") == "<p>a &lt; b</p>"
    assert page.table(("x",), [[("1 & 2", "best")]]).count("<td") == 1
    body = [page.details("more", page.code("<&>")), page.figure("<svg></svg>", "c"), page.heading("h")]
    Reader(page.html_page("t", "s", body))


# The pictures


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (92.3, 97.8), (-3, 3), (0, 100), (1e-7, 3e-7), (33.3, 33.4), (99.99, 100.01), (1, 1e6)]
)
def test_ticks_are_round_even_and_inside(low, high):
    found = charts.tick_values(low, high)
    assert 3 <= len(found) <= 9
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    steps = np.diff(found)
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)
    leading = steps[0] / 10 ** math.floor(math.log10(steps[0] * (1 + 1e-9)))
    assert min(abs(leading - nice) for nice in (1, 2, 5)) < 1e-6


def test_the_reach_of_an_axis():
    low, high = charts.axis_limits([90.0, 100.0, 95.0], 0.1)
    assert (low, high) == (89.0, 101.0)
    for same in ([5.0], [5.0, 5.0], [5.0, 5.0 + 1e-9]):
        low, high = charts.axis_limits(same, 0.1)
        assert low < 4.5
        assert high > 5.5


def test_a_bar_joins_the_members_of_a_group_and_nobody_else():
    picture = charts.draw_critical_difference_diagram(
        ["a", "b", "c", "d"], [1.0, 1.5, 3.0, 4.0], [(0, 1), (2, 3)], "rank", "t", (1.2, "cd")
    )
    places = {}
    for x, label in re.findall(r'points="([\d.]+),[^"]*"/><text[^>]*>([^<]*)</text>', picture):
        places[label.split()[0] if label[0] in "abcd" else label.split()[-1]] = float(x)
    bars = [tuple(map(float, ends)) for ends in re.findall(r'class="bar" x1="([\d.]+)" x2="([\d.]+)"', picture)]
    covered = [{name for name, x in places.items() if low <= x <= high} for low, high in bars]
    assert covered == [{"a", "b"}, {"c", "d"}]
    assert places["a"] < places["b"] < places["c"] < places["d"]
    turned = charts.draw_critical_difference_diagram(["a", "b"], [80.0, 90.0], [], "accuracy", "t", best_left=False)
    places = [float(x) for x in re.findall(r'points="([\d.]+),', turned)]
    assert places == sorted(places)  # the best, which is b, is drawn first and to the left


def test_dots_stand_where_their_values_are():
    picture = charts.draw_intervals(
        ["a", "b", "c"], [90, 95, 92], [(88, 92), (94, 96), (91, 93)], ["#111"] * 3, "percent", "t"
    )
    spots = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', picture)]
    ends = [(float(a), float(b)) for a, b in re.findall(r'<line x1="([\d.]+)" x2="([\d.]+)" y1="[\d.]+" y2', picture)]
    assert spots[0] < spots[2] < spots[1]
    for spot, (low, high) in zip(spots, ends, strict=True):
        assert spot == pytest.approx((low + high) / 2, abs=0.1)
    assert (spots[1] - spots[0]) / (spots[2] - spots[0]) == pytest.approx(5 / 2, abs=0.02)


def test_long_names_are_cut_in_pictures_only():
    name = "arcface(s=64, m=0.5) + 0.123456*center(alpha=0.25) + triplet"
    found = build_comparison([result(name, noisy(90)), result("softmax", noisy(91, 1))])
    read = checked(comparison_page(found))
    assert name in [data for tag, data in read.texts if tag == "td"]
    assert all(len(data) < 45 for tag, data in read.texts if tag == "text" and "arcface" in data)


def test_a_loss_has_one_colour_whatever_its_options():
    for name in list_losses("margins"):
        assert loss_colour(name) == loss_colour(f"{name}(s=5)") == loss_colour(f"{name}(s=30, m=[0.1, 0.2])")
        assert re.fullmatch("#[0-9A-F]{6}", loss_colour(name), re.IGNORECASE)
        assert loss_colour(f"{name}(s=5) + 0.1*center(alpha=0.5)") == loss_colour("softmax + 0.02*center(alpha=0.5)")
    margins = [loss_colour(name) for name in list_losses("margins")]
    assert len(set(margins)) == len(margins)
    assert loss_colour("random_forest") == loss_colour("random_forest")
    assert all(a != b for a, b in pairwise(map(loss_colour, ("softmax", "m_softmax", "l_softmax", "a_softmax"))))
