"""Results on disk: a line is complete or absent, runs that were stopped go on, nothing is mixed up or lost."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from small_tables import number_column, table_of
from widemargin import __version__
from widemargin.cli.main import main
from widemargin.data.tabular.table import Column, Table
from widemargin.data.tabular.uci import load_uci_set
from widemargin.io.errors import InputError
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.plan import ComparisonPlan
from widemargin.tabular.results import BASELINES, MAJORITY, Result, ResultStore, make_result, parse_result_line

ANGLES = {"wc_intra": 0.1, "w_inter": 2.0, "c_inter": 2.1}
SCHEMA = ["set", "loss", "mean", "std", "folds", "seed", "seconds", "versions", "settings", "angles", "train"]
SCHEMA += ["metrics", "details"]


def make_table(name="made"):
    values = np.array([1.0, 2.0, np.nan, 4.0])
    columns = (Column("x", values), Column("c", np.array([0, 1, -1, 0]), ("p", "q")))
    return Table(name, columns, np.arange(4) % 2, ("a", "b"))


def make_line(loss="softmax", name="made", seed=0, **settings):
    settings = {"cv_repeats": 1, "folds": 3, **settings}
    return make_result(
        make_table(name), loss, [90.0, 80.0, 100.0], 1.23456, seed, settings, ANGLES, [99.0, 98.0, 100.0]
    )


def read_lines(folder):
    return [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]


# A line


def test_a_line_has_the_agreed_fields(tmp_path):
    ResultStore(tmp_path).add(make_line())
    (line,) = read_lines(tmp_path)
    assert list(line) == SCHEMA
    assert (line["set"], line["loss"], line["seed"]) == ("made", "softmax", 0)
    assert line["folds"] == [90.0, 80.0, 100.0]
    assert line["mean"] == pytest.approx(90.0)
    assert line["std"] == pytest.approx(10.0)  # n − 1
    assert line["seconds"] == 1.235
    assert line["versions"]["widemargin"] == __version__
    assert {"python", "torch", "numpy", "scikit-learn"} <= set(line["versions"])
    assert line["settings"] == {"cv_repeats": 1, "folds": 3}
    assert line["angles"] == ANGLES
    assert line["train"] == [99.0, 98.0, 100.0]
    assert ResultStore(tmp_path).results["made", "softmax"].train_mean == pytest.approx(99.0)


def test_what_is_written_is_read(tmp_path):
    store = ResultStore(tmp_path / "deep" / "folder")
    one, two = make_line(), make_line("arcgrad(s=5)", name="größer, \"'<b>\n")
    store.add(one)
    store.add(two)
    again = ResultStore(store.folder)
    assert again.results == {one.key: one, two.key: two}
    assert list(again.results) == [one.key, two.key]


def test_an_angle_that_is_unknown_is_left_out_for_json_has_no_nan(tmp_path):
    angles = {"wc_intra": 0.5, "w_inter": math.inf, "c_inter": math.nan}
    ResultStore(tmp_path).add(make_result(make_table(), "softmax", [1.0, 2.0], 0.0, 0, {}, angles))
    (line,) = read_lines(tmp_path)
    assert line["angles"] == {"wc_intra": 0.5}
    assert "NaN" not in (tmp_path / "results.jsonl").read_text()


def test_one_fold_has_no_deviation():
    assert make_result(make_table(), "softmax", [50.0], 0.0, 0, {}, {}).std == 0.0


@pytest.mark.parametrize(
    "change",
    [
        lambda t: replace(t, class_names=("a", "c")),
        lambda t: replace(t, y=1 - t.y),
        lambda t: replace(t, columns=t.columns[::-1]),
        lambda t: replace(t, columns=(replace(t.columns[0], name="z"), t.columns[1])),
        lambda t: replace(t, columns=(Column("x", np.array([1.0, 2.0, np.nan, 4.5])), t.columns[1])),
        lambda t: replace(t, columns=(t.columns[0], replace(t.columns[1], levels=("p", "r")))),
    ],
)
def test_the_fingerprint_knows_everything_a_model_sees(change):
    assert make_table().fingerprint == make_table("other name").fingerprint
    assert change(make_table()).fingerprint != make_table().fingerprint


# A file


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_last_line_that_was_cut_off_is_forgotten(tmp_path, cut):
    store = ResultStore(tmp_path)
    store.add(make_line())
    store.add(make_line("adacos", name="größer"))
    path = tmp_path / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = ResultStore(tmp_path)
    assert list(again.results) == [("made", "softmax")]
    assert path.read_bytes() == whole[: whole.index(b"\n") + 1]  # what is there is left as it was
    again.add(make_line("adacos", name="größer"))
    assert path.read_bytes() == whole


def test_a_first_line_that_was_cut_off_leaves_an_empty_file(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"set": "made", "lo')
    assert ResultStore(tmp_path).results == {}
    assert (tmp_path / "results.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "hello",
        "[1, 2]",
        "null",
        "{}",
        '{"set": "a"}',
        b"\xff\xfe junk",
        json.dumps({**asdict(make_line()), "extra": 1}),
        json.dumps({**asdict(make_line()), "folds": ["90"]}),
        json.dumps({**asdict(make_line()), "folds": []}),
        json.dumps({**asdict(make_line()), "folds": 90}),
        json.dumps({**asdict(make_line()), "settings": [1]}),
        json.dumps({**asdict(make_line()), "set": 5}),
        json.dumps({**asdict(make_line()), "mean": "high"}),
        json.dumps({**asdict(make_line()), "train": [90.0]}),  # of three folds
        json.dumps({**asdict(make_line()), "train": ["90"] * 3}),
    ],
)
def test_a_foreign_line_is_named_by_its_number(tmp_path, foreign):
    store = ResultStore(tmp_path)
    store.add(make_line())
    path = tmp_path / "results.jsonl"
    line = foreign if isinstance(foreign, bytes) else foreign.encode()
    path.write_bytes(path.read_bytes() + line + b"\n")
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        ResultStore(tmp_path)
    assert str(caught.value).startswith(f"{path}: line 2 ")
    assert "overwrite" in str(caught.value)
    assert path.read_bytes() == before
    assert ResultStore(tmp_path, overwrite=True).results == {}


def test_the_line_of_an_older_version_without_our_own_fields_is_read():
    own = ("settings", "angles", "train")
    line = {name: value for name, value in asdict(make_line()).items() if name not in own}
    old = parse_result_line(json.dumps(line))
    assert old.settings == {}
    assert old.train == []
    assert old.train_mean is None


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "results.jsonl").mkdir(parents=True)
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper", tmp_path / "taken"):
        with pytest.raises(InputError, match=r"cannot be written.*choose another folder"):
            ResultStore(folder)


# Other settings


def make_plan(**change):
    known = {"tables": [load_uci_set("iris")], "methods": ["softmax", "svm"], "cv_repeats": 2, "folds": 5}
    return ComparisonPlan(**{**known, **change})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 3}, r"another seed \(0, now 3\)"),
        ({"cv_repeats": 3}, r"another cv_repeats \(2, now 3\)"),
        ({"folds": 4}, r"another folds \(5, now 4\)"),
        ({"stratify": True}, r"another stratify \(False, now True\)"),
        ({"mlp_config": MLPConfig(lr=0.5)}, r"another lr \(0\.03, now 0\.5\)"),
        ({"mlp_config": MLPConfig(hidden=(8, 4))}, r"another hidden \(\[64, 24\], now \[8, 4\]\)"),
        ({"tables": [replace(load_uci_set("iris"), class_names=("x", "y", "z"))]}, "or its target changed"),
    ],
)
def test_results_of_other_settings_are_not_mixed_in(tmp_path, change, named):
    old, new = make_plan(), replace(make_plan(), **change)
    iris = old.tables[0]
    store = ResultStore(tmp_path)
    store.add(make_result(iris, "softmax", [90.0] * 10, 1.0, old.seed, old.settings(iris, "softmax"), ANGLES))
    again = ResultStore(tmp_path)
    kept = again.find_matching(("iris", "softmax"), old.seed, old.settings(iris, "softmax"))
    assert kept is not None
    with pytest.raises(InputError, match=named) as caught:
        again.find_matching(("iris", "softmax"), new.seed, new.settings(new.tables[0], "softmax"))
    assert "holds softmax on iris" in str(caught.value)
    assert str(caught.value).endswith("choose another out, or use overwrite=True")
    assert "\n" not in str(caught.value)
    assert again.find_matching(("iris", "adacos"), new.seed, {}) is None


def test_a_baseline_does_not_depend_on_the_mlp_config(tmp_path):
    old, new = make_plan(), make_plan(mlp_config=MLPConfig(lr=0.5))
    iris = old.tables[0]
    store = ResultStore(tmp_path)
    store.add(make_result(iris, "svm", [90.0] * 10, 1.0, 0, old.settings(iris, "svm"), {}))
    assert store.find_matching(("iris", "svm"), 0, new.settings(iris, "svm")) is not None


def baseline_line(plan, count, seconds=1.0, **settings):
    iris = plan.tables[0]
    return make_result(iris, "svm", [90.0] * count, seconds, 0, {**plan.settings(iris, "svm"), **settings}, {})


def test_a_baseline_on_more_folds_serves_and_one_on_fewer_is_run_again(tmp_path):
    every, few = make_plan(), make_plan(quick_baselines=True)  # 2 repeats of 5 folds, or the 5 of the first one
    iris = every.tables[0]
    assert (every.max_folds(iris, "svm"), few.max_folds(iris, "svm")) == (10, 5)
    assert few.max_folds(iris, "softmax") == few.max_folds(iris, MAJORITY) == 10
    store = ResultStore(tmp_path)
    store.add(baseline_line(few, 5, first_folds=5))
    assert few.find_stored_result(store, iris, "svm") is not None
    assert every.find_stored_result(store, iris, "svm") is None
    assert (iris, "svm") in every.missing_results(store)
    store.add(baseline_line(every, 10))
    assert len(few.find_stored_result(ResultStore(tmp_path), iris, "svm").folds) == 10  # the later line holds
    with pytest.raises(InputError, match=r"another folds \(5, now 4\)"):
        make_plan(folds=4, quick_baselines=True).find_stored_result(store, iris, "svm")


def test_a_baseline_that_had_no_time_for_more_folds_is_taken_as_it_is():
    store = ResultStore()
    store.add(baseline_line(make_plan(), 4, seconds=50.0, first_folds=4))
    for budget, is_taken in ((1.0, True), (60.0, True), (63.0, False), (math.inf, False)):  # a fifth: 62.5 s in all
        plan = make_plan(baseline_seconds=budget)
        assert (plan.find_stored_result(store, plan.tables[0], "svm") is not None) == is_taken, budget


def large_table(num_rows, num_columns=54, num_classes=7):
    y = np.arange(num_rows) % num_classes
    return table_of([number_column(y, f"x{k}") for k in range(num_columns)], y)


def test_the_rows_a_baseline_is_fitted_to_are_settings_where_they_are_not_all():
    few, large = make_plan(quick_baselines=True, baseline_seconds=60.0), large_table(500_000)
    assert "fit_rows" not in few.settings(few.tables[0], "svm")
    rows = {name: few.settings(large, name).get("fit_rows") for name in BASELINES}
    assert rows[MAJORITY] is None
    assert all(rows[name] is None or 10_000 < rows[name] < 400_000 for name in rows)
    assert rows["svm"] < rows["random_forest"] < rows["hist_gradient_boosting"] < 400_000
    assert "fit_rows" not in few.settings(large, "softmax")
    more = make_plan(baseline_seconds=120.0).settings(large, "random_forest")["fit_rows"]
    assert rows["random_forest"] < more < 2 * rows["random_forest"]
    assert "fit_rows" not in make_plan().settings(large, "random_forest")  # all the time there is


def test_a_baseline_fitted_to_more_rows_serves_and_one_fitted_to_fewer_is_run_again():
    large = large_table(60_000)
    plan = make_plan(tables=[large], baseline_seconds=60.0)
    wanted = plan.settings(large, "svm")
    for rows, is_taken in ((20_000, False), (wanted["fit_rows"], True), (45_000, True), (None, True)):
        there = {name: value for name, value in {**wanted, "fit_rows": rows}.items() if value is not None}
        store = ResultStore()
        store.add(make_result(large, "svm", [90.0] * 10, 100.0, 0, there, {}))
        assert (plan.find_stored_result(store, large, "svm") is not None) == is_taken, rows
    network = {name: value for name, value in plan.settings(large, "mlp").items() if name != "hidden"}
    store = ResultStore()
    store.add(make_result(large, "mlp", [90.0] * 10, 100.0, 0, network, {}))
    assert plan.find_stored_result(store, large, "mlp") is None  # that of an older version, with fewer units


# Stopped and gone on

LOSSES = "softmax, softmax + 0.02*center, m_softmax, arcface, adacos, arcgrad(s=30), arcgrad(s=5), normface"
WORK = ["compare", "iris", "--losses", LOSSES, "--cv-repeats", "2", "--folds", "10", "--no-baselines"]


def start_process(out):
    command = [sys.executable, "-m", "widemargin", *WORK, "--jobs", "2", "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(condition, process, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.005)


def count_lines(out):
    path = out / "results.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else -1


def live_processes(group):
    """Processes of a group that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(of) == group and state not in "ZX":
            found.append(stat.parent.name)
    return found


def no_process_left(group, seconds=20):
    end = time.monotonic() + seconds
    while live_processes(group) and time.monotonic() < end:
        time.sleep(0.05)
    return live_processes(group) == []


@pytest.fixture(scope="module")
def uninterrupted_lines(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert main([*WORK, "--jobs", "1", "--out", str(out)]) == 0
    return sorted((_without_seconds(line) for line in read_lines(out)), key=lambda line: line["loss"])


def _without_seconds(line):
    return {name: value for name, value in line.items() if name != "seconds"}


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")


@pytest.mark.slow
@needs_proc
def test_a_killed_run_goes_on_where_it_stopped(tmp_path, uninterrupted_lines, capsys):
    with start_process(tmp_path) as process:
        wait_for(lambda: count_lines(tmp_path) >= 2, process)
        process.kill()
        process.wait()
        assert no_process_left(process.pid)
    done = count_lines(tmp_path)
    assert 2 <= done < 8
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"set": "iris", "loss": "ada')  # as a crash of the machine may leave it
    before = (tmp_path / "results.jsonl").read_bytes()
    assert main([*WORK, "--jobs", "1", "--out", str(tmp_path)]) == 0
    assert f"{done} of 8 results were already stored" in capsys.readouterr().err
    after = (tmp_path / "results.jsonl").read_bytes()
    assert after.startswith(before[: before.rindex(b"\n") + 1])
    found = sorted((_without_seconds(line) for line in read_lines(tmp_path)), key=lambda line: line["loss"])
    assert found == uninterrupted_lines
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(("done", "pause"), [(0, 0.2), (1, 0.0)], ids=["starting", "working"])
def test_an_interrupt_is_one_line_and_leaves_nobody_behind(tmp_path, done, pause):
    with start_process(tmp_path) as process:
        wait_for(lambda: count_lines(tmp_path) >= done, process)
        time.sleep(pause)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group hears it
        out, said = process.communicate(timeout=60)
        assert process.returncode == 130
        (line,) = (line for line in said.splitlines() if not line.startswith("cross-validation: "))  # on a slow machine
        assert line.startswith("widemargin: interrupted")
        assert out == ""
        assert no_process_left(process.pid)
    assert done <= count_lines(tmp_path) < 8
    store = ResultStore(tmp_path)
    assert len(store.results) == count_lines(tmp_path)
    assert all(isinstance(kept, Result) and len(kept.folds) == 20 for kept in store.results.values())
    assert not (tmp_path / "report.html").exists()
