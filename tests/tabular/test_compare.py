"""`widemargin compare` as a person meets it: any file works or gets its one line."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, make_classification

from bad_tables import CASES, good, with_column
from widemargin.cli.main import main
from widemargin.data.tabular.uci import load_uci_set
from widemargin.io.errors import InputError
from widemargin.losses.grammar import parse
from widemargin.reproduce.paper import TABLE1_LOSSES
from widemargin.tabular.plan import ComparisonPlan, canonical_methods
from widemargin.tabular.results import BASELINES

SHORT = ["--cv-repeats", "1", "--folds", "2", "--epochs", "0", "--min-steps", "5", "--hidden", "4", "4", "--jobs", "1"]
QUICK = [*SHORT, "--no-baselines"]
TWO = ["--losses", "softmax, arcgrad(s=5)"]
BY_DEFAULT = ["majority", "logistic_regression", "random_forest", "hist_gradient_boosting", "mlp"]


@pytest.fixture(autouse=True)
def _empty_working_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def read_lines(folder):
    return [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]


def compare(*arguments):
    return main(["compare", *QUICK, *arguments])


# Every file


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "10,000 columns" else name for name in CASES]
)
def test_every_odd_table_works_or_gets_one_line_and_code_2(name, tmp_path, capsys):
    case = CASES[name]
    folder = tmp_path / "given"
    folder.mkdir()
    path, options = case.write(folder)
    code = compare(path, *options, *TWO, "--out", "out")
    said = capsys.readouterr()
    noted = said.err.splitlines()
    if case.error is None:
        assert code == 0, said.err
        assert all(line.startswith("note: ") for line in noted)
        assert any(case.note in line for line in noted) if case.note else not noted
        assert [line["loss"] for line in read_lines("out")] == ["softmax", "arcgrad(s=5)"]
        page = Path("out/report.html").read_text()
        assert page.rstrip().endswith("</html>")
        assert len(page) < 1 << 20
        assert "wrote out" in said.out
    else:
        assert code == 2
        assert len(noted) == 1, said.err
        assert noted[0].startswith(f"widemargin: {path}")
        assert case.error in noted[0]
        assert said.out == ""
        assert not Path("out").exists()


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["habermann"], ["habermann", "did you mean 'haberman'?"]),
        (["nowhere.csv"], ["nowhere.csv", "no such file"]),
        (["haberman", "--data-dir", "nowhere"], ["data_dir", "nowhere", "is not a folder"]),
        (["iris", "--target", "species"], ["target is for files", "iris"]),
        (["data.csv", "other/data.csv"], ["two tables are named data"]),
        (["iris", "iris"], ["two tables are named iris"]),
        (["--losses", "softmx"], ["unknown loss 'softmx'", "did you mean 'softmax'?"]),
        (["--losses", "svm"], ["unknown loss 'svm'"]),
        (["--losses", ""], ["an empty loss"]),
        (["--losses", "softmax,, adacos"], ["cannot read"]),
        (["--losses", "arcface(m=9)"], ["arcface: m=9 is outside its domain"]),
        (["--losses", "softmax, triplet"], ["triplet", "has no class weights", "add a margin"]),
        (["--losses", "l1"], ["l1 does not choose between classes"]),
        (["--losses", "cross_entropy", "--label-smoothing", "0.1"], ["cross_entropy", "label_smoothing"]),
        (["--layers", "5"], ["--layers 5 does not fit 2 widths in --hidden"]),
        (["--hidden", "0"], ["hidden must be whole numbers of at least 1"]),
        (["--hidden", "many"], ["--hidden", "many"]),
        (["--hidden", "100000", "100000"], ["iris: a model has", "weights"]),
        (["--epochs", "nan"], ["epochs must be a number of at least 0"]),
        (["--epochs", "1e300"], ["epochs must be below 1e+300"]),
        (["--epochs", "1e12"], ["iris: a model draws more than"]),
        (["--lr", "-1"], ["lr must be a number above 0"]),
        (["--batch", "0"], ["batch must be a whole number of at least 1"]),
        (["--dropout", "1"], ["dropout must be a number of at least 0 and below 1"]),
        (["--cv-repeats", "0"], ["--cv-repeats must be at least 1"]),
        (["--folds", "1"], ["folds must be between 2 and the number of rows (150), got 1"]),
        (["--folds", "151"], ["folds must be between 2 and the number of rows (150), got 151"]),
        (["data.csv", "iris", "--folds", "41"], ["the number of rows (40), got 41"]),
        (["--seed", "-1"], ["seed must be between 0 and"]),
        (["--seed", "99999999999", "--baselines"], ["seed must be between 0 and"]),
        (["--jobs", "0"], ["--jobs must be at least 1, got 0"]),
        (["--baseline-seconds", "0"], ["--baseline-seconds must be above 0, got 0"]),
        (["--baseline-seconds", "nan"], ["--baseline-seconds must be above 0, got nan"]),
        (["--baseline-seconds", "soon"], ["--baseline-seconds", "soon"]),
        (["--out", "data.csv"], ["data.csv: cannot be written", "choose another folder"]),
        (["--stratified"], ["unknown option --stratified", "did you mean --stratify?"]),
    ],
)
def test_a_mistake_is_one_line_and_code_2_and_leaves_nothing_behind(arguments, words, capsys):
    Path("other").mkdir()
    Path("data.csv").write_text(good())
    Path("other/data.csv").write_text(good())
    before = sorted(Path().rglob("*"))
    quick = ["compare", *QUICK, *arguments]
    try:
        code = main(quick)
    except SystemExit as left:  # what argparse itself refuses
        code = left.code
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert len(said.err.splitlines()) == 1, said.err
    for word in words:
        assert word in said.err
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("change", [{"folds": 1000}, {"cv_repeats": 0}, {"seed": -1}, {"jobs": 0}])
def test_a_wrong_plan_is_refused_before_work(change):
    with pytest.raises(InputError, match=next(iter(change))):
        ComparisonPlan([load_uci_set("iris")], ["softmax"], **{"cv_repeats": 1, "folds": 2, **change})


def test_layers_alone(capsys):
    quick = [word for word in QUICK if word not in ("--hidden", "4")]
    assert main(["compare", *TWO, *quick, "--layers", "4"]) == 0
    assert read_lines("compare-iris")[0]["settings"]["mlp_config"]["hidden"] == [64, 64, 24]
    assert main(["compare", *TWO, *quick, "--layers", "1", "--out", "o"]) == 2
    assert "layers counts the class weights too" in capsys.readouterr().err


# What is done


def test_without_anything_given_iris_and_the_papers_seven(capsys):
    assert compare() == 0
    found = read_lines("compare-iris")
    assert [line["loss"] for line in found] == list(TABLE1_LOSSES.values()) == canonical_methods(None)
    assert {line["set"] for line in found} == {"iris"}
    assert all(len(line["folds"]) == 2 for line in found)
    out = capsys.readouterr().out
    assert all(method in out for method in TABLE1_LOSSES.values())
    assert "not significantly worse" in out
    assert "wrote compare-iris/report.html and compare-iris/results.jsonl" in out
    page = Path("compare-iris/report.html").read_text()
    assert "widemargin compare --cv-repeats 1 --folds 2" in page  # the command that makes it again


def test_losses_are_spelled_once_and_in_full():
    assert canonical_methods("softmax, sphereface, softmax, arcface(m=0.5)") == [
        "softmax",
        repr(parse("a_softmax")),
        "arcface(s=64, m=0.5)",
    ]
    assert canonical_methods("softmax", baselines=True) == ["softmax", *BASELINES]
    assert canonical_methods("softmax", baselines=None) == ["softmax", *BY_DEFAULT]


def test_two_classes_leave_adacos_out_of_the_default_list_and_say_so(capsys):
    Path("two.csv").write_text(good())
    assert compare("two.csv") == 0
    others = [method for method in TABLE1_LOSSES.values() if method != "adacos"]
    assert [line["loss"] for line in read_lines("compare-two")] == others
    said = capsys.readouterr()
    assert said.err.startswith("note: adacos is left out, because two has two classes and it learns nothing from two; ")
    assert 'losses="softmax, arcgrad(s=5), adacos(floor=2)" includes it' in said.err
    assert said.err.count("\n") == 1
    assert "adacos" not in said.out
    assert "adacos is left out" in Path("compare-two/report.html").read_text()
    assert compare("two.csv", "--losses", "softmax, adacos", "--out", "asked") == 0  # a list of one's own is obeyed
    assert [line["loss"] for line in read_lines("asked")] == ["softmax", "adacos"]
    assert "left out" not in capsys.readouterr().err


def test_one_table_of_two_classes_leaves_adacos_out_of_all(capsys):
    Path("two.csv").write_text(good())
    assert compare("iris", "two.csv") == 0  # ranks need the same losses on every set
    assert {line["set"] for line in read_lines("compare-iris-two")} == {"iris", "two"}
    assert "adacos" not in {line["loss"] for line in read_lines("compare-iris-two")}
    assert "because two has two classes" in capsys.readouterr().err


def test_a_number_as_target_is_refused_or_said_to_be_a_class(capsys):
    rows, target = load_diabetes(return_X_y=True)
    body = "".join(f"{row[0]:.4f},{row[2]:.4f},{value:.0f}\n" for row, value in zip(rows, target, strict=True))
    Path("diabetes.csv").write_text("age,bmi,target\n" + body)
    assert compare("diabetes.csv", *TWO) == 2
    said = capsys.readouterr().err
    assert said == (
        "widemargin: diabetes.csv: column 'target' looks like a number to be predicted (214 different values in 442 "
        "rows); widemargin classifies: choose another --target, or bin it first (if these are classes, use "
        "--target-is-class)\n"
    )
    assert not Path("compare-diabetes").exists()
    assert compare("diabetes.csv", *TWO, "--target-is-class") == 0
    assert "left out the 84 classes with a single row" in capsys.readouterr().err


def test_two_classes_and_adacos_are_noted_before_the_work(capsys):
    Path("two.csv").write_text(good())
    assert compare("two.csv", "--losses", "softmax, adacos") == 0
    noted = capsys.readouterr().err.splitlines()
    assert len(noted) == 1
    assert noted[0].startswith("note: two: ")
    assert "adacos" in noted[0]
    assert compare("two.csv", "--losses", "softmax, adacos(floor=2)", "--out", "floored") == 0
    assert capsys.readouterr().err == ""


def test_a_training_that_diverged_is_not_passed_off_as_a_result(capsys):
    assert compare("iris", "--losses", "softmax", "--lr", "1e30", "--min-steps", "20") == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("note: iris: softmax diverged on some folds")
    assert "diverged" in Path("compare-iris/report.html").read_text()
    (line,) = read_lines("compare-iris")
    assert line["angles"] == {}


@pytest.mark.slow
def test_several_tables_and_baselines_on_the_same_folds(capsys):
    Path("one.csv").write_text(good())
    Path("two.csv").write_text(with_column("colour", lambda k: ("red", "green", "?")[k % 3]))
    assert compare("one.csv", "two.csv", "iris", *TWO, "--baselines", "--folds", "3", "--min-steps", "150") == 0
    found = read_lines("compare-one-two-iris")
    methods = ["softmax", "arcgrad(s=5)", *BASELINES]
    assert [(line["set"], line["loss"]) for line in found] == [(s, m) for s in ("one", "two", "iris") for m in methods]
    for line in found:
        assert len(line["folds"]) == 3
        assert (line["angles"] == {}) == (line["loss"] in BASELINES)
        assert ("mlp_config" in line["settings"]) == (line["loss"] not in BASELINES)
    said = capsys.readouterr()
    assert "mean rank" in said.out
    assert said.err.startswith("note: two: 13 missing values in 'colour'")
    assert said.err.count("\n") == 1
    page = Path("compare-one-two-iris/report.html").read_text()
    assert "3 sets: which loss serves them?" in page
    assert "Critical-difference diagram" in page


def compare_with_baselines(*arguments):
    """Without a word on baselines."""
    return main(["compare", *SHORT, *arguments])


@pytest.mark.slow
def test_quick_baselines_run_by_default_on_the_first_folds(capsys):
    assert compare_with_baselines("iris", *TWO, "--cv-repeats", "2", "--folds", "3", "--out", "quick") == 0
    found = {line["loss"]: line for line in read_lines("quick")}
    assert list(found) == ["softmax", "arcgrad(s=5)", *BY_DEFAULT]
    assert [len(line["folds"]) for line in found.values()] == [6, 6, 6, 3, 3, 3, 3]
    assert all(len(line["train"]) == len(line["folds"]) for line in found.values())
    assert found["random_forest"]["train"] == [100.0] * 3
    assert found["random_forest"]["settings"]["first_folds"] == 3
    out = capsys.readouterr().out
    for word in (*found, "train", "hist_gradient_boosting", "the first 3 of these folds"):
        assert word in out
    assert compare("iris", *TWO, "--cv-repeats", "2", "--folds", "3", "--out", "without") == 0
    assert [line["loss"] for line in read_lines("without")] == ["softmax", "arcgrad(s=5)"]
    assert "random_forest" not in capsys.readouterr().out
    # all of them on all folds: what is there is kept, but for those on too few folds
    assert (
        compare_with_baselines("iris", *TWO, "--cv-repeats", "2", "--folds", "3", "--out", "quick", "--baselines") == 0
    )
    every = {line["loss"]: line for line in read_lines("quick")}
    assert capsys.readouterr().err.startswith("3 of 8 results were already stored")
    assert set(every) == {"softmax", "arcgrad(s=5)", *BASELINES}
    assert all(len(line["folds"]) == 6 for line in every.values())
    assert every["random_forest"]["folds"][:3] == found["random_forest"]["folds"]
    assert compare_with_baselines("iris", *TWO, "--cv-repeats", "2", "--folds", "3", "--out", "quick") == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("note: compared with results that")
    assert said[0].endswith("results.jsonl holds already: svm")
    assert said[1].startswith("7 of 7 results were already stored")
    assert "svm" in Path("quick/report.html").read_text()  # what is there is shown
    assert compare("iris", *TWO, "--cv-repeats", "2", "--folds", "3", "--out", "quick") == 0
    assert "random_forest" not in Path("quick/report.html").read_text()  # unless none is wanted


def test_an_interrupted_comparison_of_an_older_version_goes_on(capsys):
    """Lines without training accuracies, and baselines on all folds."""
    assert compare("iris", *TWO, "--baselines") == 0
    path = Path("compare-iris/results.jsonl")
    old = [{name: value for name, value in line.items() if name != "train"} for line in read_lines("compare-iris")]
    old = [line for line in old if line["loss"] in ("softmax", "svm", "random_forest")]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    before = path.read_bytes()
    capsys.readouterr()
    assert compare_with_baselines("iris", *TWO) == 0
    assert path.read_bytes().startswith(before)
    said = capsys.readouterr()
    assert "2 of 7 results were already stored" in said.err
    assert re.search(r"softmax +│ +\d+\.\d\d±\d+\.\d\d. │ +– │", said.out)
    assert re.search(r"arcgrad\(s=5\) +│ +\d+\.\d\d±\d+\.\d\d. │ +\d+\.\d\d │", said.out)


def test_the_verdict_is_there_for_programs_too():
    assert compare("iris", *TWO, "--out", "out") == 0
    known = json.loads(Path("out/verdict.json").read_text())
    assert known["kind"] in ("ahead", "no_evidence")
    assert html.unescape(Path("out/report.html").read_text()).count(known["verdict"]) == 1
    assert [one["set"] for one in known["sets"]] == ["iris"]


def table_of_many_classes(rows=1600, classes=20):
    x, y = make_classification(rows, 30, n_informative=20, n_classes=classes, n_clusters_per_class=1, random_state=0)
    lines = [",".join([*(f"{value:.3f}" for value in row), f"k{label}"]) for row, label in zip(x, y, strict=True)]
    return ",".join([*(f"x{k}" for k in range(30)), "label"]) + "\n" + "\n".join(lines)


@pytest.mark.slow
def test_settings_that_underfit_give_no_verdict_about_the_losses(capsys):
    """Held back too much, both losses are far below a forest, and their difference is one of the settings."""
    Path("many.csv").write_text(table_of_many_classes())
    arguments = ["compare", "many.csv", "--losses", "softmax, arcgrad(s=30)", "--cv-repeats", "1", "--folds", "6"]
    arguments += ["--jobs", "1", "--baseline-seconds", "inf"]  # a budget would depend on the load of the machine
    held_back = [*arguments, "--weight-decay", "3"]
    assert main([*held_back, "--no-baselines", "--out", "unaware"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "arcgrad(s=30) has the highest mean on this set and is ahead of softmax" in said
    assert "no baseline was run that would show whether these settings underfit" in said
    assert main([*held_back, "--out", "under"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"These settings underfit; no statement about the losses\. (random_forest|mlp) has", out)
    tried = re.search(r"Try, with another --out: (--hidden .*? --epochs \d+)\.", out)[1]
    page = html.unescape(Path("under/report.html").read_text())
    for place in (out, page):
        assert "ahead of" not in place
        assert "highest mean" not in place
    assert json.loads(Path("under/verdict.json").read_text())["kind"] == "underfit"
    assert len(read_lines("under")) == 7  # the numbers are kept
    assert main([*arguments, "--no-baselines", *tried.split(), "--out", "fitted"]) == 0
    means = {line["loss"]: line["mean"] for line in read_lines("fitted")}
    forest = next(line["mean"] for line in read_lines("under") if line["loss"] == "random_forest")
    assert min(means.values()) > forest
    under = {line["loss"]: line["mean"] for line in read_lines("under")}
    gap, gap_of_settings = (abs(lines["softmax"] - lines["arcgrad(s=30)"]) for lines in (means, under))
    assert gap < gap_of_settings / 3


def test_no_better_than_the_majority_class_is_said(capsys):
    draw = np.random.default_rng(1)
    names = [f"x{k}" for k in range(400)]
    values = draw.normal(size=(80, 400)).round(2)
    rows = [",".join([*map(str, row), "ab"[k % 2]]) for k, row in enumerate(values)]
    Path("noise.csv").write_text("\n".join([",".join([*names, "label"]), *rows]))
    assert compare_with_baselines("noise.csv", *TWO, "--folds", "5", "--min-steps", "60") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "No loss is significantly better than the majority class" in out
    assert "no statement about the losses" in out
    assert json.loads(Path("compare-noise/verdict.json").read_text())["kind"] == "chance"


@pytest.mark.slow
def test_the_command_with_two_jobs_gives_the_same_folds_as_one_process():
    Path("mine.csv").write_text(good())
    arguments = ["compare", "mine.csv", "--losses", "softmax, adacos(floor=2), arcgrad(s=5)", *QUICK]
    command = [Path(sys.executable).with_name("widemargin"), *arguments, "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("cross-validation: ")] == []
    assert "mine: accuracy in percent over 2 folds" in done.stdout
    assert main([*arguments, "--out", "one"]) == 0
    two, one = (
        {r["loss"]: (r["folds"], r["angles"]) for r in read_lines(folder)} for folder in ("compare-mine", "one")
    )
    assert len(one) == 3
    assert one == two


def test_stratify_and_seed_reach_the_folds():
    for out, more in {"a": [], "b": ["--stratify"], "c": ["--seed", "5"], "d": []}.items():
        assert compare("iris", *TWO, "--out", out, *more) == 0
    a, b, c, d = ([line["folds"] for line in read_lines(out)] for out in "abcd")
    assert a == d
    assert a != b
    assert a != c
    assert read_lines("b")[0]["settings"]["stratify"] is True
    assert read_lines("c")[0]["seed"] == 5


def test_what_is_there_is_not_done_again(capsys):
    assert compare("iris", *TWO) == 0
    before = Path("compare-iris/results.jsonl").read_bytes()
    capsys.readouterr()
    assert compare("iris", *TWO) == 0
    assert Path("compare-iris/results.jsonl").read_bytes() == before
    said = capsys.readouterr().err
    assert said.startswith("2 of 2 ")
    assert "overwrite" in said
    assert compare("iris", "--losses", "adacos, softmax") == 0  # one of two, though the file holds two
    assert Path("compare-iris/results.jsonl").read_bytes().startswith(before)
    assert len(read_lines("compare-iris")) == 3
    said = capsys.readouterr()
    assert said.err.splitlines()[1].startswith("1 of 2 results were already stored")


def test_other_settings_are_named_and_nothing_is_lost(capsys):
    assert compare("iris", *TWO) == 0
    before = Path("compare-iris/results.jsonl").read_bytes()
    capsys.readouterr()
    assert compare("iris", *TWO, "--lr", "0.5") == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "holds softmax on iris with another lr (0.03, now 0.5)" in said
    assert compare("iris", *TWO, "--overwrite", "--folds", "1000") == 2  # a mistake must not cost the results
    assert compare("iris", "--losses", "triplet", "--overwrite") == 2
    assert Path("compare-iris/results.jsonl").read_bytes() == before
    assert compare("iris", *TWO, "--lr", "0.5", "--overwrite") == 0
    assert {line["settings"]["mlp_config"]["lr"] for line in read_lines("compare-iris")} == {0.5}


def test_results_may_go_to_a_folder_named_like_the_set():
    assert compare("iris", *TWO, "--out", "iris") == 0
    assert compare("iris", *TWO, "--out", "iris") == 0
    assert len(read_lines("iris")) == 2


def test_a_file_goes_before_a_set_of_its_name():
    Path("iris").write_text(good())
    assert compare("iris", *TWO, "--out", "out") == 0
    assert len(read_lines("out")) == 2
    assert "40 rows" in Path("out/report.html").read_text()


def test_names_that_look_like_markup_are_shown_as_they_are(capsys):
    name = "data [bold] :car: [link]"
    Path(f"{name}.csv").write_text(good())
    assert compare(f"{name}.csv", *TWO, "--out", "out") == 0
    assert f"{name}: accuracy in percent" in capsys.readouterr().out
    assert compare(f"{name}.csv", "iris", *TWO, "--out", "both") == 0
    assert name in capsys.readouterr().out


def test_a_lopsided_table_and_a_loss_that_cannot_learn_are_said_on_the_page_too(capsys):
    rows = "".join(f"{k % 7},{k % 5},{'rare' if k % 10 == 0 else 'common'}\n" for k in range(60))
    Path("lopsided.csv").write_text("a,b,label\n" + rows)
    assert compare("lopsided.csv", "--losses", "softmax, adacos", "--folds", "3") == 0
    said, text = capsys.readouterr().err, Path("compare-lopsided/report.html").read_text()
    for place in (said, text):
        assert "always predicting it would be right in 90.0 %" in place
        assert "adacos(floor=2)" in place


def test_an_added_loss_is_compared_with_what_the_folder_holds(capsys):
    common = ("iris", "--folds", "3", "--min-steps", "40")
    assert compare(*common, *TWO) == 0
    before = Path("compare-iris/results.jsonl").read_bytes()
    capsys.readouterr()
    assert compare(*common, "--losses", "arcface(s=8, m=0.1)") == 0
    assert Path("compare-iris/results.jsonl").read_bytes().startswith(before)
    assert len(read_lines("compare-iris")) == 3
    said = capsys.readouterr()
    path = Path("compare-iris/results.jsonl")
    assert said.err.count("\n") == 1
    assert str(path) in said.err
    assert "softmax, arcgrad(s=5)" in said.err
    page = Path("compare-iris/report.html").read_text()
    verdict = json.loads(Path("compare-iris/verdict.json").read_text())["verdict"]
    assert verdict in " ".join(said.out.split())
    assert verdict in html.unescape(page)
    for place in (said.out, page):
        assert all(loss in place for loss in ("softmax", "arcgrad(s=5)", "arcface(s=8, m=0.1)"))
    assert compare(*common, *TWO, "--losses", "arcface(s=8, m=0.1)", "--out", "fresh") == 0  # nothing to compare with
    assert "softmax" not in capsys.readouterr().out
    assert compare(*common, "--losses", "arcface(s=8, m=0.1)", "--overwrite") == 0
    assert [line["loss"] for line in read_lines("compare-iris")] == ["arcface(s=8, m=0.1)"]
    said = capsys.readouterr()
    assert "softmax" not in said.out + Path("compare-iris/report.html").read_text()
    assert said.err == ""


def test_results_of_other_settings_are_not_compared():
    common = ("iris", "--folds", "3", "--out", "out")
    assert compare(*common, "--losses", "softmax", "--lr", "0.01") == 0
    assert compare(*common, "--losses", "arcgrad(s=5)") == 0
    assert "softmax" not in Path("out/report.html").read_text()
    assert len(read_lines("out")) == 2
