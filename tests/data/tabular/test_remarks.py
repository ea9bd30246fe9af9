"""Remarks: columns that predict the class by themselves, and rows that are copies of others."""

import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.datasets import load_breast_cancer, load_iris, load_wine

from widemargin.data.tabular.load import load_table
from widemargin.data.tabular.remarks import find_duplicates, find_leaks, find_remarks
from widemargin.data.tabular.table import Column

RNG = np.random.default_rng


def category(values):
    levels, codes = np.unique(values, return_inverse=True)
    return Column("c", codes.astype(np.int64), tuple(map(str, levels)))


def noisy(values, errors, seed=1):
    """The values with so many of them exchanged for the next class."""
    found = values.copy()
    places = RNG(seed).choice(len(values), errors, replace=False)
    found[places] = (found[places] + 1) % (values.max() + 1)
    return found


@pytest.mark.parametrize("num_classes", [2, 5])
def test_a_column_that_follows_from_the_class_is_found(num_classes):
    y = RNG(0).integers(0, num_classes, 3000)
    spread = y + RNG(1).uniform(-0.4, 0.4, 3000)
    columns = [
        Column("codes", 7.0 * y),
        Column("outcome", y, tuple(map(str, range(num_classes)))),
        Column("score", spread),
        Column("two codes", np.where(RNG(2).random(3000) < 0.5, y, y + 100.0)),
        Column("noise", RNG(3).normal(size=3000)),
        Column("weak", y + RNG(4).normal(size=3000)),
    ]
    assert find_leaks(columns, y) == ["codes", "outcome", "score", "two codes"]


@pytest.mark.parametrize(("errors", "found"), [(0, True), (5, True), (60, False)])
def test_a_few_errors_in_a_thousand_are_allowed(errors, found):
    y = RNG(0).integers(0, 2, 20_000)
    assert bool(find_leaks([category(noisy(y, errors))], y)) == found


def test_large_tables_are_sampled_and_give_the_same():
    y = RNG(0).integers(0, 3, 100_000)
    columns = [Column("leak", y * 2.0), Column("noise", RNG(1).normal(size=len(y))), category(noisy(y, 3000))]
    assert find_leaks(columns, y) == ["leak"]


def test_a_class_that_nearly_all_rows_have_is_no_leak():
    y = (np.arange(10_000) % 2000 == 0).astype(np.int64)
    assert find_leaks([Column("x", RNG(0).normal(size=10_000)), category(np.arange(10_000) % 3)], y) == []
    assert find_leaks([Column("same", y * 1.0)], y) == ["same"]


def test_small_tables_have_only_exact_codes_of_the_class():
    y = np.arange(60) % 3
    separable = Column("x", y + RNG(0).uniform(-0.3, 0.3, 60))
    assert find_leaks([separable, Column("code", 10.0 - y)], y) == ["code"]
    assert find_leaks([Column("code", 10.0 - y[:12])], y[:12]) == []


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_real_tables_have_no_such_column(load):
    assert not any("by itself" in note for note in load_table(load()).notes)


def test_copies_of_rows_are_no_leak():
    x, y = RNG(0).normal(size=(400, 2)), RNG(1).integers(0, 2, 400)
    table = load_table((np.tile(x, (10, 1)), np.tile(y, 10)))
    assert not any("by itself" in note for note in table.notes)
    assert any("3,600 rows are copies" in note for note in table.notes)


def test_the_note_asks_a_question_and_changes_nothing():
    y = RNG(0).integers(0, 2, 500)
    x = RNG(1).normal(size=(500, 2))
    table = load_table(pd.DataFrame({"a": x[:, 0], "paid_out": y * 100, "y": y}))
    assert [column.name for column in table.columns] == ["a", "paid_out"]
    assert any("'paid_out' predicts the class by itself" in note and note.endswith("?") for note in table.notes)


@given(
    hnp.arrays(np.int64, st.tuples(st.integers(1, 30), st.integers(1, 3)), elements=st.integers(-1, 1)),
    st.data(),
)
def test_duplicates_are_those_of_pandas(codes, data):
    y = data.draw(hnp.arrays(np.int64, len(codes), elements=st.integers(0, 2)))
    numbers = np.where(codes < 0, np.nan, codes * 0.5)
    columns = [Column("n", numbers[:, 0]), *(Column(f"c{k}", codes[:, k], ("a", "b")) for k in range(codes.shape[1]))]
    found = find_duplicates(columns, y)
    frame = pd.DataFrame(codes)
    np.testing.assert_array_equal(found.is_copy, frame.duplicated())
    classes = frame.assign(y=y).groupby(list(frame.columns))["y"].transform("nunique")
    np.testing.assert_array_equal(found.is_contradicted, classes > 1)


def test_zeros_of_either_sign_and_gaps_are_equal():
    x = np.array([0.0, -0.0, np.nan, -np.nan, 1.0])
    assert find_duplicates([Column("x", x)], np.zeros(5, np.int64)).is_copy.tolist() == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_large_tables_take_little_time():
    rows, y = 200_000, RNG(0).integers(0, 3, 200_000)
    columns = [Column(f"x{k}", RNG(k).normal(size=rows)) for k in range(70)]
    columns += [Column(f"c{k}", RNG(k).integers(0, 40, rows), tuple(map(str, range(40)))) for k in range(30)]
    start = time.process_time()
    assert find_remarks(columns, y) == []
    assert time.process_time() - start < 5  # 0.4 s where it was measured
