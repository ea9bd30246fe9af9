"""`widemargin compare` and `reproduce` as a person meets them: any file works or gets its one line."""

import html
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bad_tables import CASES, good, with_column
from widemargin.baselines import BASELINES
from widemargin.catalogue import parse
from widemargin.cli import main
from widemargin.compare import Plan, spelled
from widemargin.compare import compare as run_plan
from widemargin.data.paper import table1
from widemargin.data.uci import TABLE1, load_set
from widemargin.errors import InputError
from widemargin.recipes.table1 import FLOORED, METHODS
from widemargin.results import Store

QUICK = ["--runs", "1", "--folds", "2", "--epochs", "0", "--min-steps", "5", "--hidden", "4", "4", "--jobs", "1"]
TWO = ["--losses", "softmax, arcgrad(s=5)"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def lines(folder):
    return [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]


def compare(*arguments):
    return main(["compare", *QUICK, *arguments])


# Every file


@pytest.mark.parametrize("name", CASES)
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
        assert [line["loss"] for line in lines("out")] == ["softmax", "arcgrad(s=5)"]
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
        (["haberman", "--data-dir", "nowhere"], ["--data-dir", "nowhere", "is no folder"]),
        (["iris", "--target", "species"], ["--target is for files", "iris"]),
        (["data.csv", "other/data.csv"], ["two tables are named data"]),
        (["iris", "iris"], ["two tables are named iris"]),
        (["--losses", "softmx"], ["unknown loss 'softmx'", "did you mean 'softmax'?"]),
        (["--losses", "svm"], ["unknown loss 'svm'"]),
        (["--losses", ""], ["an empty loss"]),
        (["--losses", "softmax,, adacos"], ["cannot read"]),
        (["--losses", "arcface(m=9)"], ["arcface(m)=9 is outside its domain"]),
        (["--losses", "softmax, triplet"], ["triplet", "has no class weights", "add a margin"]),
        (["--losses", "l1"], ["l1 does not choose between classes"]),
        (["--losses", "cross_entropy", "--smoothing", "0.1"], ["cross_entropy", "smoothing"]),
        (["--layers", "5"], ["--layers 5 does not fit --hidden with 2 widths"]),
        (["--hidden", "0"], ["hidden must be whole numbers of at least 1"]),
        (["--hidden", "many"], ["--hidden", "many"]),
        (["--hidden", "100000", "100000"], ["iris: a model has", "weights"]),
        (["--epochs", "nan"], ["epochs must be a number from 0 to"]),
        (["--epochs", "1e300"], ["epochs must be a number from 0 to"]),
        (["--epochs", "1e12"], ["iris: a model draws more than"]),
        (["--lr", "-1"], ["lr must be a number above 0"]),
        (["--batch", "0"], ["batch must be a whole number of at least 1"]),
        (["--dropout", "1"], ["dropout must be below 1"]),
        (["--runs", "0"], ["runs must be at least 1"]),
        (["--folds", "1"], ["folds must be between 2 and the number of rows (150), got 1"]),
        (["--folds", "151"], ["folds must be between 2 and the number of rows (150), got 151"]),
        (["data.csv", "iris", "--folds", "41"], ["the number of rows (40), got 41"]),
        (["--seed", "-1"], ["seed must be between 0 and"]),
        (["--seed", "99999999999", "--baselines"], ["seed must be between 0 and"]),
        (["--jobs", "0"], ["jobs must be at least 1, got 0"]),
        (["--out", "data.csv"], ["data.csv: cannot be written", "choose another --out"]),
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


@pytest.mark.parametrize("change", [{"folds": 1000}, {"runs": 0}, {"seed": -1}, {"jobs": 0}])
def test_a_wrong_plan_is_refused_before_work(change):
    plan = Plan([load_set("iris")], ["softmax"], **{"runs": 1, "folds": 2, **change})
    with pytest.raises(InputError, match=next(iter(change))):
        run_plan(plan, Store("out"))
    assert lines("out") == []


def test_layers_alone(capsys):
    quick = [word for word in QUICK if word not in ("--hidden", "4")]
    assert main(["compare", *TWO, *quick, "--layers", "4"]) == 0
    assert lines("compare-iris")[0]["settings"]["protocol"]["hidden"] == [64, 64, 24]
    assert main(["compare", *TWO, *quick, "--layers", "1", "--out", "o"]) == 2
    assert "layers counts the class weights too" in capsys.readouterr().err


# What is done


def test_without_anything_given_iris_and_the_papers_seven(capsys):
    assert compare() == 0
    found = lines("compare-iris")
    assert [line["loss"] for line in found] == list(METHODS.values()) == spelled(None)
    assert {line["set"] for line in found} == {"iris"}
    assert all(len(line["folds"]) == 2 for line in found)
    out = capsys.readouterr().out
    assert all(method in out for method in METHODS.values())
    assert "not significantly worse" in out
    assert "wrote compare-iris/report.html and compare-iris/results.jsonl" in out
    page = Path("compare-iris/report.html").read_text()
    assert "widemargin compare --runs 1 --folds 2" in page  # the command that makes it again


def test_losses_are_spelled_once_and_in_full():
    assert spelled("softmax, sphereface, softmax, arcface(m=0.5)") == [
        "softmax",
        repr(parse("a_softmax")),
        "arcface(s=64, m=0.5)",
    ]
    assert spelled("softmax", baselines=True) == ["softmax", *BASELINES]


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
    (line,) = lines("compare-iris")
    assert line["angles"] == {}


def test_several_tables_and_baselines_on_the_same_folds(capsys):
    Path("one.csv").write_text(good())
    Path("two.csv").write_text(with_column("colour", lambda k: ("red", "green", "?")[k % 3]))
    assert compare("one.csv", "two.csv", "iris", *TWO, "--baselines", "--folds", "3") == 0
    found = lines("compare-one-two-iris")
    methods = ["softmax", "arcgrad(s=5)", *BASELINES]
    assert [(line["set"], line["loss"]) for line in found] == [(s, m) for s in ("one", "two", "iris") for m in methods]
    for line in found:
        assert len(line["folds"]) == 3
        assert (line["angles"] == {}) == (line["loss"] in BASELINES)
        assert ("protocol" in line["settings"]) == (line["loss"] not in BASELINES)
    said = capsys.readouterr()
    assert "mean rank" in said.out
    assert said.err.startswith("note: two: 13 missing values in 'colour'")
    assert said.err.count("\n") == 1
    page = Path("compare-one-two-iris/report.html").read_text()
    assert "3 sets: which loss serves them?" in page
    assert "Critical-difference diagram" in page


def test_the_command_with_two_jobs_gives_the_same_folds_as_one_process():
    Path("mine.csv").write_text(good())
    arguments = ["compare", "mine.csv", "--losses", "softmax, adacos(floor=2), arcgrad(s=5)", *QUICK[:-2]]
    command = [Path(sys.executable).with_name("widemargin"), *arguments, "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "mine: accuracy in percent over 2 folds" in done.stdout
    assert main([*arguments, "--jobs", "1", "--out", "one"]) == 0
    two, one = ({r["loss"]: (r["folds"], r["angles"]) for r in lines(folder)} for folder in ("compare-mine", "one"))
    assert len(one) == 3
    assert one == two


def test_stratify_and_seed_reach_the_folds():
    for out, more in {"a": [], "b": ["--stratify"], "c": ["--seed", "5"], "d": []}.items():
        assert compare("iris", *TWO, "--out", out, *more) == 0
    a, b, c, d = ([line["folds"] for line in lines(out)] for out in "abcd")
    assert a == d
    assert a != b
    assert a != c
    assert lines("b")[0]["settings"]["stratify"] is True
    assert lines("c")[0]["seed"] == 5


def test_what_is_there_is_not_done_again(capsys):
    assert compare("iris", *TWO) == 0
    before = Path("compare-iris/results.jsonl").read_bytes()
    capsys.readouterr()
    assert compare("iris", *TWO) == 0
    assert Path("compare-iris/results.jsonl").read_bytes() == before
    assert capsys.readouterr().err == "2 of 2 results were there already; --overwrite makes them anew\n"
    assert compare("iris", "--losses", "adacos, softmax") == 0  # one of two, though the file holds two
    assert Path("compare-iris/results.jsonl").read_bytes().startswith(before)
    assert len(lines("compare-iris")) == 3
    assert capsys.readouterr().err.startswith("1 of 2 results were there already")


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
    assert {line["settings"]["protocol"]["lr"] for line in lines("compare-iris")} == {0.5}


def test_results_may_go_to_a_folder_named_like_the_set():
    assert compare("iris", *TWO, "--out", "iris") == 0
    assert compare("iris", *TWO, "--out", "iris") == 0
    assert len(lines("iris")) == 2


def test_a_file_goes_before_a_set_of_its_name():
    Path("iris").write_text(good())
    assert compare("iris", *TWO, "--out", "out") == 0
    assert len(lines("out")) == 2
    assert "40 rows" in Path("out/report.html").read_text()


def test_names_that_look_like_markup_are_shown_as_they_are(capsys):
    name = "data [bold] :car: [link]"
    Path(f"{name}.csv").write_text(good())
    assert compare(f"{name}.csv", *TWO, "--out", "out") == 0
    assert f"{name}: accuracy in percent" in capsys.readouterr().out
    assert compare(f"{name}.csv", "iris", *TWO, "--out", "both") == 0
    assert name in capsys.readouterr().out


# The paper


def test_table2_agrees_with_the_paper(data_dir, capsys):
    assert main(["reproduce", "table2", "--data-dir", str(data_dir)]) == 0
    out = capsys.readouterr().out
    for name in TABLE1:
        assert name in out
    assert out.count(" yes ") == len(TABLE1) == 15
    assert "NO" not in out


def test_table1_beside_the_papers(data_dir, capsys):
    quick = ["--runs", "1", "--folds", "3", "--min-steps", "20", "--epochs", "0", "--hidden", "8", "4", "--jobs", "1"]
    arguments = ["reproduce", "table1", "--data-dir", str(data_dir), *quick, "--out", "out"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    found = lines("out")
    binary = {line["set"] for line in found if line["loss"] == FLOORED}
    assert len(found) == 15 * 7 + len(binary)
    assert "haberman" in binary
    assert "iris_uci" not in binary
    assert {line["set"] for line in found} == set(TABLE1)
    ours = next(line for line in found if (line["set"], line["loss"]) == ("haberman", "arcgrad(s=5)"))
    theirs = table1()["haberman", "arcgrad5"][0]
    assert f"{round(ours['mean'], 2) - theirs:+.2f}" in out
    assert "arcgrad(s=5): at least the paper's value on" in out
    assert "AdaCos on two classes" in out
    page = html.unescape(Path("out/report.html").read_text())
    for heading in ("Ours beside the paper's", "Why AdaCos is at chance", "Critical-difference diagram"):
        assert heading in page
    assert "reproduce table1" in page
    assert "--min-steps 20" in page
    assert len(page) < 1 << 20
    before = Path("out/results.jsonl").read_bytes()
    assert main(arguments) == 0
    assert Path("out/results.jsonl").read_bytes() == before
    assert f"{len(found)} results were there already" in capsys.readouterr().out


def test_an_unknown_recipe_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "tabel1"])
    assert "did you mean 'table1'?" in capsys.readouterr().err


def test_a_lopsided_table_and_a_loss_that_cannot_learn_are_said_on_the_page_too(capsys):
    rows = "".join(f"{k % 7},{k % 5},{'rare' if k % 10 == 0 else 'common'}\n" for k in range(60))
    Path("lopsided.csv").write_text("a,b,label\n" + rows)
    assert compare("lopsided.csv", "--losses", "softmax, adacos", "--folds", "3") == 0
    said, text = capsys.readouterr().err, Path("compare-lopsided/report.html").read_text()
    for place in (said, text):
        assert "always answering it would be right in 90.0 %" in place
        assert "give it a floor" in place


def test_a_smaller_run_does_not_shrink_the_page(capsys):
    common = ("iris", "--folds", "3")
    assert compare(*common, "--losses", "softmax, arcgrad(s=5)") == 0
    assert compare(*common, "--losses", "softmax") == 0
    assert "arcgrad(s=5)" in Path("compare-iris/report.html").read_text()
    assert "arcgrad" not in capsys.readouterr().out.split("wrote")[1]
