"""`widemargin reproduce table1`: our accuracies next to the paper's, resumed and on the page."""

import html
import json
import math
from pathlib import Path

import pytest

from widemargin.cli.main import main
from widemargin.data.tabular.uci import TABLE1_SET_NAMES
from widemargin.reproduce import table1
from widemargin.reproduce.paper import ADACOS_WITH_FLOOR, paper_table1


@pytest.fixture(autouse=True)
def _empty_working_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def test_table1_next_to_the_papers(data_dir, capsys):
    quick = [
        "--cv-repeats",
        "1",
        "--folds",
        "3",
        "--min-steps",
        "20",
        "--epochs",
        "0",
        "--hidden",
        "8",
        "4",
        "--jobs",
        "1",
    ]
    arguments = ["reproduce", "table1", "--data-dir", str(data_dir), *quick, "--out", "out"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    found = [json.loads(line) for line in Path("out/results.jsonl").read_text().splitlines()]
    binary = {line["set"] for line in found if line["loss"] == ADACOS_WITH_FLOOR}
    assert len(found) == 15 * 7 + len(binary)
    assert "haberman" in binary
    assert "iris_uci" not in binary
    assert {line["set"] for line in found} == set(TABLE1_SET_NAMES)
    ours = next(line for line in found if (line["set"], line["loss"]) == ("haberman", "arcgrad(s=5)"))
    theirs = paper_table1()["haberman", "arcgrad5"][0]
    assert f"{round(ours['mean'], 2) - theirs:+.2f}" in out
    assert "arcgrad(s=5): at least the paper's value on" in out
    assert "AdaCos on two classes" in out
    page = html.unescape(Path("out/report.html").read_text())
    for heading in ("Our results next to the paper", "Why AdaCos is at chance", "Critical-difference diagram"):
        assert heading in page
    assert "reproduce table1" in page
    assert "--min-steps 20" in page
    assert len(page) < 1 << 20
    assert "random_forest" not in page  # the paper's methods alone, and its ranks over all fifteen sets
    assert "Mean ranks over 15 sets" in page
    before = Path("out/results.jsonl").read_bytes()
    assert main(arguments) == 0
    assert Path("out/results.jsonl").read_bytes() == before
    assert f"{len(found)} results existed already" in capsys.readouterr().out


def test_the_papers_folds_are_plain_even_where_a_class_is_rare(data_dir, monkeypatch):
    plans = []
    monkeypatch.setattr(table1, "_run_comparison", lambda plan, *given: plans.append(plan))
    for words in ([], ["--stratify"]):
        assert main(["reproduce", "table1", "--data-dir", str(data_dir), "--folds", "20", *words]) == 0
    plain, stratified = plans
    assert min(table.smallest_class[1] for table in plain.tables) < plain.folds
    assert not any(plain.is_stratified(table) for table in plain.tables)
    assert all(stratified.is_stratified(table) for table in stratified.tables)
    assert plain.baseline_seconds == math.inf  # every fold, on every row


def test_an_unknown_recipe_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "tabel1"])
    assert "did you mean 'table1'?" in capsys.readouterr().err
