"""Benchmarks `table_verdicts` and `table_settings`: contradictions are found, runs go on, protocols are not mixed."""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import t as student

from benchmarks import table_settings, table_verdicts
from benchmarks.__main__ import main
from benchmarks.table_shapes import SHAPES
from benchmarks.table_verdicts import ALPHA, FOLDS, NAMES, compare_findings, differences, draw_table, trial_count


def reference_p_values(accuracies):
    """Nadeau and Bengio's t-test of every pair and Holm's correction, written from the formulas."""
    pairs, plain = list(combinations(accuracies, 2)), []
    for a, b in pairs:
        gaps = np.subtract(accuracies[a], accuracies[b])
        variance = (1 / len(gaps) + (1 / FOLDS) / (1 - 1 / FOLDS)) * gaps.var(ddof=1)
        plain.append(2 * student.sf(abs(gaps.mean()) / math.sqrt(variance), len(gaps) - 1))
    adjusted, so_far = dict.fromkeys(pairs, 0.0), 0.0
    for place, k in enumerate(np.argsort(plain)):
        so_far = max(so_far, (len(pairs) - place) * plain[k])
        adjusted[pairs[k]] = min(1.0, so_far)
    return adjusted


def draw_accuracies(means, noise, seed):
    rng = np.random.default_rng(seed)
    return {name: (mean + rng.normal(0, noise, 2 * FOLDS)).tolist() for name, mean in means.items()}


def test_differences_and_their_adjusted_p_are_those_of_the_formulas():
    accuracies = draw_accuracies({"a": 80, "b": 79, "c": 76, "d": 80.2}, 1.0, 0)
    expected, found = reference_p_values(accuracies), differences(accuracies)
    assert found.keys() == expected.keys()
    assert {p < ALPHA for p in expected.values()} == {True, False}
    for (a, b), (points, p) in found.items():
        assert points == pytest.approx(np.mean(accuracies[a]) - np.mean(accuracies[b]))
        assert p == pytest.approx(expected[a, b], rel=1e-9)


def test_a_contradiction_needs_two_significant_runs_of_opposite_sign():
    pair, other = ("a", "b"), ("a", "c")
    runs = [{pair: (2.0, 0.01), other: (1.0, 0.01)}, {pair: (-1.0, 0.2), other: (1.5, 0.04)}]
    found = compare_findings(runs)
    assert found["pairs"] == 2
    assert found["significant"] == [2, 1]
    assert found["confirmed"] == 1  # a and c, by both
    assert found["opposite"] == []
    assert found["reversed"] == [["a", "b"]]
    found = compare_findings([*runs, {pair: (-1.0, 0.04), other: (0.5, 0.9)}])
    assert found["opposite"] == [["a", "b"]]  # the first and the third
    assert found["significant"] == [2, 1, 1]


def test_runs_whose_folds_turn_the_order_round_contradict_each_other():
    runs = [draw_accuracies(means, 0.3, seed) for seed, means in enumerate(({"a": 90, "b": 85}, {"a": 85, "b": 90}))]
    assert compare_findings([differences(run) for run in runs])["opposite"] == [["a", "b"]]
    assert compare_findings([differences(runs[0])] * 2)["opposite"] == []


def test_all_sixteen_tables_have_trials_that_fall_with_their_size():
    assert len(NAMES) == 16
    sizes = sorted((shape.rows * shape.columns, shape) for shape in SHAPES.values() if shape.rows < 5_000)
    trials = [trial_count(shape.rows, shape.columns) for _, shape in sizes]
    assert trials == sorted(trials, reverse=True)
    assert (trials[0], trial_count(10**6, 10**3)) == (32, 2)
    assert all(math.log2(trial).is_integer() for trial in trials)


@pytest.mark.parametrize(("name", "rows"), [("small", 2_000), ("rules", 6_500), ("digits", 1_797)])
def test_large_tables_are_cut_and_keep_the_shares_of_their_classes(name, rows):
    table = draw_table(name, 100)
    assert len(table) == rows
    if name == "rules":
        whole = table_verdicts.draw_splits(name, 100)[0]
        shares = [np.bincount(y) / len(y) for y in (table.y, whole.table.y[whole.training])]
        np.testing.assert_allclose(*shares, atol=2e-4)


@pytest.fixture
def small_tables(monkeypatch):
    monkeypatch.setitem(SHAPES, "tiny", replace(SHAPES["tiny"], rows=60))
    monkeypatch.setattr(type(SHAPES["tiny"]), "test_rows", 300)
    monkeypatch.setattr(table_verdicts, "MIN_TRIALS", 1)
    monkeypatch.setattr(table_verdicts, "MAX_TRIALS", 1)
    few_steps = {"epochs": 0.1, "min_steps": 20}
    quick = partial(table_verdicts.compare, losses="softmax, arcface(s=8, m=0.1), arcgrad(s=5)", mlp_config=few_steps)
    monkeypatch.setattr(table_verdicts, "compare", quick)


def test_three_runs_of_a_table_go_on_where_they_were_stopped(small_tables, tmp_path, capsys):
    path = tmp_path / "verdicts.jsonl"
    words = ["table_verdicts", "--sets", "tiny", "--out", str(path), "--jobs", "1"]
    assert main(words) == 0
    assert "tables: 1; pairs of losses: 3" in capsys.readouterr().out
    lines = path.read_text().splitlines(keepends=True)
    runs = [json.loads(line) for line in lines]
    assert [run["trials"] for run in runs] == [0, 2, 1]  # those that differ most first
    assert all(len(folds) == run["cv_repeats"] * FOLDS for run in runs for folds in run["accuracies"].values())
    (row,) = table_verdicts.summarise(runs[::-1])
    assert row["best"][0] == pytest.approx(max(np.mean(folds) for folds in runs[0]["accuracies"].values()))
    assert row["trials"] == [0, 1, 2]
    assert not table_verdicts.summarise(runs[:1])
    path.write_text("".join(lines[:2]))
    assert main(words) == 0
    again = [json.loads(line) for line in path.read_text().splitlines()]
    assert again[:2] == runs[:2]
    assert again[2]["accuracies"] == runs[2]["accuracies"]


def test_lines_of_another_protocol_or_seed_are_refused(tmp_path, capsys):
    path = tmp_path / "verdicts.jsonl"
    path.write_text('{"set": "tiny", "rows": 200, "trials": 16, "opposite": []}\n')
    assert main(["table_verdicts", "--sets", "tiny", "--out", str(path)]) == 2
    assert "line 1: protocol None and seed None, now 2 and 100; give --out another file" in capsys.readouterr().err
    path.write_text('{"protocol": 2, "seed": 100, "set": "tiny"}\n')
    assert main(["table_verdicts", "--sets", "tiny", "--out", str(path), "--seed", "101"]) == 2
    assert "give --out another file" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_settings_are_compared_row_by_row(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(type(SHAPES["tiny"]), "test_rows", 300)
    monkeypatch.setattr(table_settings, "WIDEST_SHAPE", replace(table_settings.WIDEST_SHAPE, rows=80, columns=150))
    monkeypatch.setattr(table_settings, "BASELINES", {"widest": ("majority",)})
    path = tmp_path / "settings.jsonl"
    words = ["table_settings", "--sets", "widest", "--seeds", "1", "--out", str(path)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "widest, seed 1: opposite winners, both significant: " in said
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["setting"] for line in lines] == list(table_settings.settings())
    assert [line["config"]["batch"] for line in lines] == [16, 256, 16, 256]
    rule, _, table1, _ = (line["config"] for line in lines)
    assert rule["screening"] > 0 == table1["screening"]
    assert table1["lr"] == rule["lr"]  # a small table: the rule differs by its screening alone
    for line in lines:
        assert line["test_rows"] == 300
        for a, b, only_a, only_b in line["only_right"]:
            gap = line["losses"][a]["accuracy"] - line["losses"][b]["accuracy"]
            assert 300 * gap / 100 == pytest.approx(only_a - only_b)
            assert table_settings.findings(line)[a, b][0] == pytest.approx(gap)
    assert 30 < lines[0]["baselines"]["majority"] < 70
    before = path.read_text()
    assert main(words) == 0
    assert path.read_text() == before  # finished lines are not done again


def test_settings_that_contradict_each_other_are_named():
    runs = {"one": {("a", "b"): (1.0, 0.01)}, "two": {("a", "b"): (-1.0, 0.6)}, "three": {("a", "b"): (-2.0, 0.001)}}
    assert table_settings._contradictions(runs) == "a and b (one against three)"
    assert table_settings._contradictions({"one": runs["one"], "two": runs["two"]}) == "none"


def test_p_of_a_pair_is_the_chance_of_a_fair_coin():
    line = {"test_rows": 500, "only_right": [["a", "b", 9, 1], ["a", "c", 0, 0]]}
    two_sided = 2 * sum(math.comb(10, k) for k in (9, 10)) / 2**10
    assert table_settings.findings(line) == {
        ("a", "b"): (1.6, pytest.approx(2 * two_sided)),  # Holm over two pairs
        ("a", "c"): (0.0, 1.0),
    }


def test_mnist_is_a_table_of_its_own_training_and_test_part(data_dir, monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_DATA", str(data_dir))
    split = table_settings.load_split("mnist", 0)
    assert (len(split.training), len(split.test), len(split.table.columns)) == (60_000, 10_000, 784)
    assert not np.intersect1d(split.training, split.test).size
    assert 0 < split.features().mean() < 255
