"""Tables of the benchmark `tables`: drawn as documented, and a run on the smallest of them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import table_shapes, tables
from benchmarks.__main__ import main
from benchmarks.table_shapes import REAL_SETS, SHAPES, draw_splits, take_rows

MAX_CELLS = 2 * 10**7
SMALL = [name for name, shape in SHAPES.items() if shape.rows * shape.columns <= 200_000 and shape.columns < 500]
every_draw = pytest.mark.parametrize("name", ["tiny", "rules", "categories", "unbalanced"])


def test_thirteen_shapes_of_at_most_twenty_million_cells():
    assert len(SHAPES) == 13
    for shape in SHAPES.values():
        assert shape.rows * shape.columns <= MAX_CELLS
        assert shape.informative <= shape.columns or shape.draw is table_shapes._categories
        assert shape.test_rows >= 4_000
    assert max(shape.rows for shape in SHAPES.values()) == 200_000
    assert {shape.columns for shape in SHAPES.values()} >= {5, 2_000}
    assert max(shape.classes for shape in SHAPES.values()) == 100
    assert not set(table_shapes.TUNING_SEEDS) & set(table_shapes.REPORT_SEEDS)


@pytest.mark.parametrize("name", SMALL)
def test_a_table_is_as_large_as_its_shape_says(name):
    shape, (split,) = SHAPES[name], draw_splits(name, 100)
    assert len(split.training) == shape.rows
    assert len(split.test) == shape.test_rows
    assert not np.intersect1d(split.training, split.test).size
    assert len(split.table) == shape.rows + shape.test_rows
    assert len(split.table.columns) == shape.columns
    assert len(split.table.class_names) == shape.classes
    assert set(split.table.y[split.training]) == set(range(shape.classes))


def column_values(table):
    return [column.values for column in table.columns]


@every_draw
def test_a_seed_draws_the_same_table_again_and_another_one_another(name):
    (first,), (again,), (other,) = (draw_splits(name, seed) for seed in (3, 3, 4))
    for one, two in zip(column_values(first.table), column_values(again.table), strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(first.table.y, again.table.y)
    np.testing.assert_array_equal(first.training, again.training)
    assert (first.training != other.training).any()
    pairs = zip(column_values(first.table), column_values(other.table), strict=True)
    assert all((one != two).any() for one, two in pairs)


def test_shares_noise_and_gaps_are_as_documented():
    (unbalanced,) = draw_splits("unbalanced", 0)
    shares = np.sort(np.bincount(unbalanced.table.y) / len(unbalanced.table))[::-1]
    np.testing.assert_allclose(shares, SHAPES["unbalanced"].weights, atol=0.02)
    (categories,) = draw_splits("categories", 0)
    levels = [column for column in categories.table.columns if column.levels is not None]
    assert len(levels) == 6
    assert all(3 <= len(column.levels) <= 12 for column in levels)
    assert all(0.01 < (column.values < 0).mean() < 0.03 for column in levels)
    noisy = replace(SHAPES["rules"], label_noise=0.4)
    quiet = replace(SHAPES["rules"], label_noise=0.0)
    drawn = [shape.draw(shape, 5_000, np.random.default_rng(1))[1] for shape in (quiet, noisy)]
    changed = (drawn[0] != drawn[1]).mean()
    assert changed == pytest.approx(0.4 * 5 / 6, abs=0.03)  # one of six draws is the class itself


def test_rows_can_be_taken():
    (split,) = draw_splits("tiny", 0)
    rows = np.array([5, 2, 7])
    taken = take_rows(split.table, rows)
    np.testing.assert_array_equal(taken.y, split.table.y[rows])
    np.testing.assert_array_equal(taken.columns[1].values, split.table.columns[1].values[rows])
    assert taken.class_names == split.table.class_names


@pytest.mark.parametrize("name", REAL_SETS)
def test_real_tables_are_tested_on_every_row_once(name):
    splits = draw_splits(name, 0)
    assert len(splits) == 5
    tested = np.sort(np.concatenate([split.test for split in splits]))
    np.testing.assert_array_equal(tested, np.arange(len(splits[0].table)))


def test_a_run_on_the_smallest_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(SHAPES, "tiny", replace(SHAPES["tiny"], rows=60))
    monkeypatch.setattr(type(SHAPES["tiny"]), "test_rows", 200)
    monkeypatch.setattr(tables, "PAPER_LOSSES", ("softmax", "arcgrad(s=5)"))
    path = tmp_path / "tables.jsonl"
    words = ["tables", "--sets", "tiny", "--seeds", "1", "--out", str(path), "--jobs", "1", "--methods"]
    assert main([*words, "logistic_regression"]) == 0
    before = path.read_text()
    assert main([*words, "chosen loss", "logistic_regression"]) == 0
    assert path.read_text().startswith(before)  # finished lines are not done again
    baseline, ours = [json.loads(line) for line in path.read_text().splitlines()]
    assert (baseline["method"], ours["method"]) == ("logistic_regression", "chosen loss")
    (chosen,) = ours["chosen"]
    assert chosen["inner"].keys() == {"softmax", "arcgrad(s=5)"}
    assert chosen["loss"] == max(chosen["inner"], key=chosen["inner"].get)
    assert ours["accuracy"] == chosen["accuracy"]
    assert 50 < ours["accuracy"] <= 100
    said = capsys.readouterr().out
    assert "tiny" in said
    assert "of 1 tables" in said
    (row,) = tables.summarise([baseline, ours], ["tiny"])
    assert row["ahead"] == pytest.approx(ours["accuracy"] - baseline["accuracy"])


def test_reading_is_timed_beside_other_readers(tmp_path, capsys):
    path = tmp_path / "reading.json"
    assert main(["table_reading", "--rows", "60", "--columns", "6", "--rounds", "1", "--json", str(path)]) == 0
    assert "60 rows × 6 features" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert set(found["seconds"]) >= {"read_table", "csv", "pandas", "pandas, words"}
    assert min(found["seconds"].values()) > 0
    assert main(["table_reading", "--rows", "0"]) == 2
