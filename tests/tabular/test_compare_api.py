"""`wm.compare` from Python: every kind of data gives what its CSV gives, in memory as in a folder."""

import json
import math
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.utils import Bunch

import widemargin as wm
from bad_tables import good
from comparison_cases import FITTED, HOSTILE, UNDERFIT, PageReader, check_page, make_results, with_baselines
from widemargin.cli.main import main
from widemargin.data.tabular.load import load_table, load_tables
from widemargin.data.tabular.read import read_table
from widemargin.tabular.comparison import build_comparison
from widemargin.tabular.results import BASELINES

CONFIG = wm.MLPConfig(hidden=(8, 4), epochs=0, min_steps=20)
QUICK = {"cv_repeats": 1, "folds": 3, "mlp_config": CONFIG, "jobs": 1, "baselines": False, "quiet": True}
TWO = ["softmax", "arcgrad(s=5)"]


@pytest.fixture(autouse=True)
def _empty_working_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def compare(data, **options):
    return wm.compare(data, **{"losses": TWO, **QUICK, **options})


def fold_accuracies(report):
    return {result.key: (result.folds, result.train, result.angles) for result in report.results}


def mixed_frame(count=90, seed=0):
    """Numbers, words, truth values and gaps; the classes follow from two of the columns."""
    draw = np.random.default_rng(seed)
    code = np.arange(count) % 3
    number = (draw.normal(size=count) + code).round(3)
    number[draw.random(count) < 0.1] = np.nan
    colours = np.array(["red", "green", "blue"], dtype=object)[np.where(draw.random(count) < 0.7, code, 0)]
    colours[draw.random(count) < 0.1] = None
    return pd.DataFrame(
        {
            "size": number,
            "colour": colours,
            "is_old": draw.random(count) < 0.5,
            "count": draw.integers(0, 9, count),
            "kind": np.array(["p", "q", "r"], dtype=object)[code],
        }
    )


# Every kind of data


def test_a_data_frame_is_read_by_the_rules_of_its_csv():
    frame = mixed_frame()
    frame.to_csv("mine.csv", index=False)
    expected = read_table("mine.csv")
    found = load_table(frame)
    assert found.fingerprint == expected.fingerprint
    assert found.notes == expected.notes
    gaps, copies = found.notes
    assert "missing values in 'size', 'colour'" in gaps
    assert copies.startswith(f"{int(frame.duplicated(list(frame.columns[:-1])).sum())} rows are copies")
    by_file, by_frame = compare("mine.csv"), compare({"mine": frame})
    assert fold_accuracies(by_frame) == fold_accuracies(by_file)
    assert by_frame.notes == by_file.notes


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.astype({"colour": "category", "count": "category"}),
        lambda f: f.astype({"colour": "string", "count": "Int64", "is_old": "boolean", "size": "Float64"}),
        lambda f: f.astype({"count": "uint8"}),
        lambda f: f.set_index(np.arange(len(f))[::-1]),
        lambda f: f.astype(object),
        lambda f: f.assign(colour=f["colour"].where(f["colour"].notna(), "?")),
        lambda f: f.assign(colour=[f" {word}\n" if isinstance(word, str) else word for word in f["colour"]]),
    ],
    ids=["category", "nullable", "uint8", "index", "object", "question mark", "spaces"],
)
def test_types_and_index_of_a_frame_do_not_matter(change):
    assert load_table(change(mixed_frame())).fingerprint == load_table(mixed_frame()).fingerprint


def test_the_target_of_a_frame_is_the_last_column_or_a_named_one():
    frame = mixed_frame()
    assert load_table(frame).class_names == ("p", "q", "r")
    other = load_table(frame, target="colour")
    assert other.class_names == ("blue", "green", "red")
    assert any("without a label" in note for note in other.notes)
    numbered = frame.set_axis(range(5), axis=1)
    assert load_table(numbered, target=1).class_names == ("blue", "green", "red")


def test_every_kind_of_iris_gives_the_folds_of_its_csv():
    iris = load_iris()
    names = [str(name) for name in iris.feature_names]
    frame = pd.DataFrame(iris.data, columns=names).assign(species=iris.target_names[iris.target])
    frame.to_csv("iris_rows.csv", index=False)
    x, words = iris.data, iris.target_names[iris.target]
    expected = compare({"set": "iris_rows.csv"})
    given = {
        "frame": frame,
        "target first": frame[["species", *names]],
        "arrays": (x, words),
        "lists": (x.tolist(), words.tolist()),
        "frame and series": (frame[names], frame["species"]),
        "bunch": iris,
        "bunch of frames": load_iris(as_frame=True),
        "table": load_table("iris_rows.csv"),
        "path": Path("iris_rows.csv"),
        "set": "iris",
    }
    for kind, data in given.items():
        target = {"target": "species"} if kind == "target first" else {}
        found = compare({"set": data}, **target)
        assert fold_accuracies(found) == fold_accuracies(expected), kind
    frame.to_parquet("iris_rows.parquet")
    assert fold_accuracies(compare({"set": "iris_rows.parquet"})) == fold_accuracies(expected)


def test_names_of_tables():
    x, y = load_iris(return_X_y=True)
    assert [table.name for table in load_tables([(x, y), (x[:, :2], y), "iris"])] == ["table_1", "table_2", "iris"]
    assert load_tables((x, y))[0].name == "table"
    assert load_tables(load_breast_cancer())[0].name == "breast_cancer"
    assert load_tables(load_breast_cancer())[0].class_names == ("benign", "malignant")
    assert [table.name for table in load_tables({"a": "iris", "b": load_iris()})] == ["a", "b"]
    assert load_tables({"x": Bunch(data=x, target=y)})[0].class_names == ("0", "1", "2")


def test_losses_as_text_values_or_both():
    expected = compare("iris", losses="softmax, arcgrad(s=5), softmax + 0.02*center")
    listed = compare("iris", losses=["softmax", wm.ArcGrad(s=5), wm.parse("softmax + 0.02*center")])
    assert fold_accuracies(listed) == fold_accuracies(expected)
    assert compare("iris", losses=wm.ArcGrad(s=5)).methods == ("arcgrad(s=5)",)
    assert compare("iris", losses=None).methods[0] == "softmax"
    assert len(compare("iris", losses=None).methods) == 7
    two_classes = compare((np.arange(60).reshape(30, 2) % 7, np.arange(30) % 2), losses=None)
    assert len(two_classes.methods) == 6
    assert any("adacos is left out" in note for note in two_classes.notes)


# Mistakes


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ("nowhere.csv", {}, "nowhere.csv: no such file"),
        ("iris", {"target": "species"}, "target is for files and DataFrames; the classes of iris are known"),
        (load_iris(), {"target": "species"}, "target is for files and DataFrames; this has its classes already"),
        (mixed_frame(), {"target": "knd"}, "table: no column 'knd'; did you mean 'kind'?"),
        (mixed_frame()[["kind"]], {}, "table: 1 column; at least a feature and a column of classes are needed"),
        (mixed_frame()[:0], {}, "table: columns but no rows"),
        (pd.DataFrame(), {}, "table: 0 columns"),
        (mixed_frame().set_axis(list("aabcd"), axis=1), {}, "columns 1 and 2 are both named 'a'"),
        (mixed_frame().assign(size=np.inf), {}, "row 0, column 'size': an infinite number"),
        (load_diabetes(), {}, "table: column 'y' looks like a number to be predicted"),
        ((np.zeros((4, 2)), [0, 1]), {}, "table: X has 4 rows, y has 2 labels; they must be equally many"),
        ((np.zeros(4), [0, 1, 0, 1]), {}, "column 'y' has only|no column to learn from"),
        ((np.zeros((4, 2, 2)), [0, 1, 0, 1]), {}, "table: X must have rows and columns"),
        ((np.zeros((4, 2)), [0, 1, 0, 1]), {}, "no column to learn from"),
        ((np.zeros((4, 2)), [0, 0, 0, 0]), {}, "at least two classes are needed"),
        (np.zeros((4, 2)), {}, "data must be a path, the name of a set, a DataFrame"),
        (None, {}, "data must be a path"),
        (17, {}, "data must be a path"),
        ([], {}, "data is empty"),
        ({}, {}, "data is empty"),
        (["iris", "iris"], {}, "two tables are named iris; rename one of them"),
        ("iris", {"losses": []}, "losses is empty"),
        ("iris", {"losses": [3]}, "losses must be strings such as 'arcgrad(s=5)' or losses, got 3"),
        ("iris", {"losses": "softmx"}, "unknown loss 'softmx'; did you mean 'softmax'?"),
        ("iris", {"losses": "triplet"}, "has no class weights"),
        ("iris", {"losses": "arcface(m=[0.1, 0.2])"}, "m has 2 numbers for 3 classes"),
        ("iris", {"cv_repeats": "3"}, "cv_repeats must be a whole number, got '3'"),
        ("iris", {"folds": 2.5}, "folds must be a whole number, got 2.5"),
        ("iris", {"folds": 1}, "folds must be between 2 and the number of rows (150), got 1"),
        ("iris", {"seed": -1}, "seed must be between 0 and"),
        ("iris", {"jobs": 0}, "jobs must be at least 1, got 0"),
        ("iris", {"jobs": True}, "jobs must be a whole number, got True"),
        ("iris", {"baselines": "svm"}, "baselines must be True, False or None, got 'svm'"),
        ("iris", {"data_dir": 3}, "data_dir must be the path of a folder, got 3"),
        ("iris", {"mlp_config": [1]}, "mlp_config must be an MLPConfig or a dict of its fields, got [1]"),
        ("iris", {"mlp_config": {3: 1}}, "mlp_config must be an MLPConfig or a dict of its fields, got {3: 1}"),
        ("iris", {"mlp_config": {"lrr": 1}}, "unknown field of MLPConfig 'lrr'; did you mean 'lr'?"),
        ("iris", {"mlp_config": {"val_fraction": 1.0}}, "val_fraction must be a number of at least 0 and below 1"),
        ("iris", {"mlp_config": {"hidden": (10**5, 10**5)}}, "iris: a model has"),
        ("iris", {"tune": "long"}, "tune must be a number of seconds, got 'long'"),
        ("iris", {"tune": 0}, "tune must be above 0 seconds, got 0"),
        ("iris", {"tune": math.nan}, "tune must be above 0 seconds, got nan"),
        ("iris", {"tune_trials": 2.5}, "tune_trials must be a whole number, got 2.5"),
        ("iris", {"tune_trials": 0}, "tune_trials must be from 1 to 1024, got 0"),
        ("iris", {"tune_trials": 1025}, "tune_trials must be from 1 to 1024, got 1025"),
        ("iris", {"calibrate": "no"}, "calibrate must be True or False, got 'no'"),
        ("haberman", {"data_dir": "nowhere"}, "data_dir: nowhere is not a folder"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(data, options, words):
    with pytest.raises(wm.InputError) as caught:
        compare(data, out="out", **options)
    said = str(caught.value)
    assert any(one in said for one in words.split("|")), said
    assert "\n" not in said
    assert "--" not in said.replace("widemargin compare --list", "")
    assert not Path("out").exists()


def test_columns_that_are_neither_numbers_nor_words_are_left_out():
    frame = mixed_frame()
    frame.insert(0, "parts", [[1, 2]] * len(frame))
    assert "left out 'parts' (it holds 'list', neither numbers nor words)" in load_table(frame).notes
    assert load_table(frame).fingerprint == load_table(mixed_frame()).fingerprint


# In memory and in a folder


def test_in_memory_nothing_is_written_and_the_folder_holds_the_same(tmp_path, capsys):
    in_memory = compare("iris", quiet=False)
    assert list(tmp_path.iterdir()) == []
    in_folder = compare("iris", out="out", quiet=False)
    assert fold_accuracies(in_memory) == fold_accuracies(in_folder)
    assert capsys.readouterr() == ("", "")
    assert sorted(path.name for path in Path("out").iterdir()) == ["report.html", "results.jsonl", "verdict.json"]
    assert Path("out/verdict.json").read_text() == in_folder.to_json() == in_memory.to_json()
    lines = [json.loads(line) for line in Path("out/results.jsonl").read_text().splitlines()]
    assert [line["folds"] for line in lines] == [result.folds for result in in_folder.results]
    page = Path("out/report.html").read_text()
    assert page == in_folder.to_html()
    assert "wm.compare(&#x27;iris&#x27;, losses=[&#x27;softmax&#x27;, &#x27;arcgrad(s=5)&#x27;]" in page


def test_the_command_and_the_function_give_the_same_folder(capsys):
    Path("mine.csv").write_text(good())
    words = ["--losses", ", ".join(TWO), "--cv-repeats", "1", "--folds", "3", "--hidden", "8", "4", "--epochs", "0"]
    words += ["--min-steps", "20", "--jobs", "1", "--no-baselines", "--out", "command"]
    assert main(["compare", "mine.csv", *words]) == 0
    report = compare("mine.csv", out="function")
    lines = [
        [{**json.loads(line), "seconds": 0} for line in Path(out, "results.jsonl").read_text().splitlines()]
        for out in ("command", "function")
    ]
    assert lines[0] == lines[1]
    assert Path("command/verdict.json").read_text() == Path("function/verdict.json").read_text()
    assert report.verdict in " ".join(capsys.readouterr().out.split())


def test_a_comparison_goes_on_with_what_is_in_its_folder(capsys):
    compare("iris", losses="softmax", out="out")
    before = Path("out/results.jsonl").read_bytes()
    both = compare("iris", out="out", quiet=False)
    assert Path("out/results.jsonl").read_bytes().startswith(before)
    assert capsys.readouterr().err.startswith("1 of 2 ")
    assert fold_accuracies(both) == fold_accuracies(compare("iris"))
    one = compare("iris", losses="softmax", out="out")
    assert one.methods == ("softmax", "arcgrad(s=5)")  # what is there is compared too
    assert fold_accuracies(one) == fold_accuracies(both)
    assert (one.verdict, one.kind) == (both.verdict, both.kind)
    (note,) = one.notes
    assert str(Path("out/results.jsonl")) in note
    assert "arcgrad(s=5)" in note
    assert "arcgrad(s=5)" in Path("out/report.html").read_text()
    with pytest.raises(wm.InputError, match=r"seed \(0, now 1\).*overwrite"):
        compare("iris", seed=1, out="out")
    anew = compare("iris", seed=1, out="out", overwrite=True)
    assert {result.seed for result in anew.results} == {1}
    assert Path("out/results.jsonl").read_text().count("\n") == 2


def test_numpy_numbers_are_as_good_as_pythons():
    found = compare("iris", folds=np.int64(3), seed=np.int32(0), stratify=np.False_, out="out")
    assert fold_accuracies(found) == fold_accuracies(compare("iris"))


def rare_class_frame():
    """Sixty rows of two classes, and four of a third."""
    draw = np.random.default_rng(0)
    y = np.r_[np.arange(60) % 2, [2] * 4]
    return pd.DataFrame({"a": y + draw.normal(0, 0.5, 64), "b": draw.normal(0, 1, 64), "y": np.array(list("pqr"))[y]})


def test_folds_are_stratified_where_a_class_has_fewer_rows_than_folds(capsys):
    auto, never, always = (
        compare(rare_class_frame(), folds=8, stratify=stratify, quiet=False) for stratify in (None, False, True)
    )
    used = [{result.settings["stratify"] for result in report.results} for report in (auto, never, always)]
    assert used == [{True}, {False}, {True}]
    assert fold_accuracies(auto) == fold_accuracies(always) != fold_accuracies(never)
    (note,) = auto.notes
    assert all(word in note for word in ("stratified", "'r' has 4 rows", "8 folds"))
    assert never.notes == always.notes == ()
    assert capsys.readouterr().err == f"note: {note}\n"
    enough = compare(rare_class_frame(), folds=4)
    assert ({result.settings["stratify"] for result in enough.results}, enough.notes) == ({False}, ())
    both = compare({"rare": rare_class_frame(), "iris": "iris"}, folds=8)  # each table for itself
    assert {(result.set, result.settings["stratify"]) for result in both.results} == {("rare", True), ("iris", False)}


def test_the_command_stratifies_as_it_is_told():
    for words, used in (([], True), (["--stratify"], True), (["--no-stratify"], False)):
        rare_class_frame().to_csv("rare.csv", index=False)
        given = ["--folds", "8", "--cv-repeats", "1", "--epochs", "0", "--min-steps", "5", "--no-baselines"]
        assert main(["compare", "rare.csv", "--losses", "softmax", "--jobs", "1", *given, *words, "--overwrite"]) == 0
        (line,) = map(json.loads, Path("compare-rare/results.jsonl").read_text().splitlines())
        assert line["settings"]["stratify"] is used


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stratify": "yes"}, "stratify must be True, False or None"),
        ({"baseline_seconds": "60"}, "baseline_seconds must be a number of seconds"),
        ({"baseline_seconds": True}, "baseline_seconds must be a number of seconds"),
        ({"baseline_seconds": -1}, "baseline_seconds must be above 0, got -1"),
        ({"baseline_seconds": float("nan")}, "baseline_seconds must be above 0, got nan"),
    ],
)
def test_wrong_words_on_folds_and_baselines_are_one_line(options, words):
    with pytest.raises(wm.InputError, match=words) as caught:
        compare("iris", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_short_budget_gives_three_folds_and_says_so(capsys):
    few = compare("iris", baselines=True, baseline_seconds=1e-3, folds=5, out="out")
    counts = {result.loss: len(result.folds) for result in few.results}
    assert counts == {**dict.fromkeys((*TWO, "majority"), 5), **dict.fromkeys(BASELINES[1:], 3)}
    every = compare("iris", baselines=True, baseline_seconds=np.float64(1e3), folds=5)
    for short, long in zip(few.results, every.results, strict=True):
        assert long.folds[: len(short.folds)] == short.folds
        assert short.settings.get("first_folds") == (3 if len(short.folds) == 3 else None)
        assert "first_folds" not in long.settings
    again = compare("iris", baselines=True, baseline_seconds=1e-3, folds=5, out="out", quiet=False)
    assert fold_accuracies(again) == fold_accuracies(few)
    assert capsys.readouterr().err.startswith("8 of 8 results were already stored")
    assert "the first 3 of these folds" in Path("out/report.html").read_text()
    longer = compare("iris", baselines=True, baseline_seconds=1e3, folds=5, out="out")
    assert fold_accuracies(longer) == fold_accuracies(every)


def test_notes_are_printed_once_and_kept(capsys):
    lopsided = pd.DataFrame({"a": np.arange(60) % 7, "b": np.arange(60) % 5, "y": np.arange(60) % 10 == 0})
    report = compare(lopsided, losses="softmax, adacos", quiet=False)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"note: {note}" for note in report.notes]
    assert "25 rows are copies of an earlier row" in said[0]
    assert "always predicting it would be right in 90.0 %" in said[1]
    assert "adacos with 2 classes has a scale of 0" in said[2]
    assert compare(lopsided, losses="softmax, adacos").notes == report.notes
    assert capsys.readouterr() == ("", "")
    assert "a scale of 0" in report.to_html()
    lost = compare("iris", losses="softmax", mlp_config=wm.MLPConfig(hidden=(4,), lr=1e30, epochs=0, min_steps=20))
    (note,) = lost.notes
    assert note.startswith("iris: softmax diverged")
    assert "smaller lr" in note


# The comparison itself


def test_the_table_has_the_numbers_of_the_results():
    report = compare({"one": "iris", "two": mixed_frame()}, baselines=True)
    table = report.table()
    assert len(table) == len(report.results) == 2 * (2 + len(BASELINES))
    for result in report.results:
        (row,) = table[(table["set"] == result.set) & (table["method"] == result.loss)].to_dict("records")
        assert (row["mean"], row["std"], row["seconds"]) == (result.mean, result.std, result.seconds)
        assert row["mean"] == pytest.approx(np.mean(result.folds))
        assert row["folds"] == 3
        assert row["train_accuracy"] == result.train_mean
        assert row["ci_low"] <= row["mean"] <= row["ci_high"]
        assert row["is_baseline"] == (result.loss in BASELINES)
        for key in ("wc_intra", "w_inter", "c_inter"):
            angle = result.angles.get(key)
            assert np.isnan(row[key]) if angle is None else row[key] == pytest.approx(np.degrees(angle))
    for one in report.sets:
        rows = table[(table["set"] == one.set) & ~table["is_baseline"]]
        assert rows["mean"].is_monotonic_decreasing
        if one.has_statement:
            assert dict(zip(rows["method"], rows["rank"], strict=True)) == dict(zip(TWO, one.ranks, strict=True))
            assert dict(zip(rows["method"], rows["wins"], strict=True)) == dict(zip(TWO, one.wins, strict=True))
            assert set(rows["method"][rows["not_worse"]]) == set(one.not_worse)
    assert table[table["is_baseline"]][["rank", "wins", "not_worse"]].isna().all(axis=None)


def test_best_and_not_worse_are_honest():
    ahead = build_comparison(with_baselines(FITTED, 80, line=70))
    assert (ahead.kind, ahead.best, ahead.not_worse) == ("ahead", "arcgrad(s=30)", {"arcgrad(s=30)"})
    assert ahead.suggested_config is None
    silent = build_comparison(with_baselines(UNDERFIT, 54))
    assert (silent.kind, silent.best, silent.not_worse) == ("underfit", None, frozenset())
    assert silent.table()[["rank", "wins", "not_worse"]].isna().all(axis=None)
    assert silent.suggested_config == wm.MLPConfig(
        hidden=(256, 64), batch=64, lr=0.005, weight_decay=0.01, dropout=0.0, epochs=20
    )
    assert "mlp_config to try: MLPConfig(hidden=(256, 64)" in repr(silent)
    names = ["softmax", "adacos", "normface"]
    many = build_comparison(make_results(names, [f"set{k}" for k in range(12)]))
    assert many.across_datasets.mean_ranks.index(min(many.across_datasets.mean_ranks)) == names.index(many.best)
    assert many.best == "normface"
    assert many.best in many.not_worse
    assert "softmax" not in many.not_worse
    rows = [row for k in range(2) for row in with_baselines(UNDERFIT, 54, f"bad{k}")]
    assert build_comparison(rows).best is None
    one_left = build_comparison([*with_baselines(FITTED, 80, "good", line=70), *rows])
    assert (one_left.best, one_left.not_worse) == ("arcgrad(s=30)", {"arcgrad(s=30)"})


def test_it_prints_itself_in_a_few_lines():
    report = compare("iris")
    lines = repr(report).splitlines()
    assert lines[0] == "Comparison of 2 losses on iris, 3 folds, accuracy in percent"
    assert len(lines) < 10
    best = max(report.results, key=lambda result: result.mean)
    assert any(best.loss in line and f"{best.mean:.2f} ± {best.std:.2f}*" in line for line in lines)
    assert report.verdict in " ".join(" ".join(lines).split())
    many = build_comparison(make_results(TWO, [f"set{k}" for k in range(12)]))
    assert "2 losses on 12 sets" in repr(many)
    assert "mean rank" in repr(many)
    silent = build_comparison([row for k in range(20) for row in with_baselines(UNDERFIT, 54, f"bad{k}")])
    assert len(repr(silent).splitlines()) < 60
    assert str(pickle.loads(pickle.dumps(report))) == repr(report)


def test_html_of_a_notebook_is_balanced_escaped_and_has_no_colours_of_its_own():
    hostile = [f"a{HOSTILE}", f"b{HOSTILE}"]
    for sets in (1, 4):
        report = build_comparison(make_results(hostile, [f"{HOSTILE}{k}" for k in range(sets)]))
        fragment = report._repr_html_()
        read = PageReader(fragment)
        assert set(read.tags) <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
        assert any(tag == "td" and HOSTILE in data for tag, data in read.texts)
        assert "#" not in fragment.replace("&#x27;", "")
        assert "\x1b" not in repr(report)
    frame = mixed_frame().rename(columns={"colour": HOSTILE}).replace({"kind": {"p": HOSTILE}})
    report = compare({HOSTILE: frame.assign(rest=1)[[HOSTILE, "size", "rest", "kind"]]})
    assert any(HOSTILE[:20] in note for note in report.notes)
    check_page(report.to_html())
    assert "<script" not in report.to_html() + report._repr_html_()


def test_a_page_is_text_or_a_file(tmp_path):
    report = compare("iris")
    page = report.to_html()
    check_page(page)
    path = report.to_html(tmp_path / "deep" / "page.html")
    assert path == tmp_path / "deep" / "page.html"
    assert path.read_text() == page
    with pytest.raises(wm.InputError, match="cannot be written"):
        report.to_html(tmp_path / "deep" / "page.html" / "below.html")


# Processes, from wherever Python is used

CALL = """
import widemargin as wm
config = wm.MLPConfig(hidden=(8, 4), epochs=0, min_steps=20)
report = wm.compare("iris", losses="softmax, arcgrad(s=5)", cv_repeats=1, folds=3, mlp_config=config, baselines=False,
                    jobs=2)
print([result.folds for result in report.results])
"""


@pytest.mark.parametrize(
    "how",
    [
        *(pytest.param(how, marks=pytest.mark.slow) for how in ("script", "stdin")),
        *(pytest.param(how, marks=pytest.mark.exhaustive) for how in ("exec", "thread")),
    ],
)
def test_two_processes_need_no_main_guard(how):
    """A script without one, code from standard input, a cell of a notebook, a thread."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    threaded = f"import threading\ndef work():\n{textwrap.indent(CALL, '    ')}\n"
    threaded += "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\n"
    Path("script.py").write_text(threaded if how == "thread" else CALL)
    words = {"stdin": ["-"], "exec": ["-c", "exec(compile(open('script.py').read(), '<cell 1>', 'exec'))"]}
    done = subprocess.run(
        [sys.executable, *words.get(how, ["script.py"])],
        input=CALL if how == "stdin" else None,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("cross-validation: ")] == []
    assert done.stdout == f"{[result.folds for result in compare('iris').results]}\n"


def test_neither_import_nor_help_wait_for_pandas():
    code = "import sys, widemargin; from widemargin.cli.main import build_parser; build_parser(['compare']); "
    code += "assert not {'torch', 'sklearn', 'pandas'} & set(sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


def test_epochs_without_effect_are_said():
    given = {"losses": "softmax", "baselines": False, "cv_repeats": 1, "folds": 3, "jobs": 1, "quiet": True}
    report = wm.compare("iris", mlp_config=wm.MLPConfig(epochs=1), **given)
    assert report.notes == (
        "iris: epochs=1 has no effect, min_steps=300 asks for more (48 passes over the training rows); "
        "a smaller min_steps lets epochs decide",
    )
    assert wm.compare("iris", mlp_config=wm.MLPConfig(epochs=1, min_steps=3), **given).notes == ()
