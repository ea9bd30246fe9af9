"""TableEncoder: what `fit` decides of a column holds for any later rows."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adult_like
import widemargin as wm
from widemargin.data.tabular.dates import read_dates, read_new_dates
from widemargin.data.tabular.readings import ColumnReading

TABLE = adult_like.draw(200, seed=0)


def test_every_kind_of_column_becomes_numbers():
    encoder = wm.TableEncoder().fit(TABLE.drop(columns="income"))
    kinds = {reading.name: reading.kind for reading in encoder.readings_}
    assert kinds == {
        "age": "number",
        "hours": "number",
        "education": "category",
        "work": "category",
        "gain": "number",
        "married": "category",
        "hired": "date",
        "shift": "time",
        "weight": "number",
    }
    frame = pd.DataFrame(encoder.transform(TABLE), columns=encoder.get_feature_names_out())
    np.testing.assert_array_equal(frame["hours"], TABLE["hours"].str.replace(",", ".").astype(float))
    np.testing.assert_array_equal(frame["gain"], TABLE["gain"].str.replace("[$,]", "", regex=True).astype(float))
    dates = pd.to_datetime(TABLE["hired"], format="%d.%m.%Y")
    np.testing.assert_array_equal(frame["hired_month"], dates.dt.month)
    np.testing.assert_array_equal(frame["hired_days"], (dates - dates.min()).dt.days)
    np.testing.assert_array_equal(frame["work=missing"], TABLE["work"] == "")
    np.testing.assert_array_equal(frame["education=PhD"], TABLE["education"] == "PhD")
    np.testing.assert_array_equal(frame["shift"], TABLE["shift"].str[:2].astype(int) + 0.5)
    assert frame["weight"].isna().sum() == TABLE["weight"].isna().sum() > 0
    assert encoder.is_numeric_.sum() == 9


@given(st.integers(0, 199), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_rows_alone_are_read_as_among_others(first, count):
    part = TABLE.iloc[first : first + count]
    np.testing.assert_array_equal(ENCODER.transform(part), ENCODER.transform(TABLE)[first : first + count])


ENCODER = wm.TableEncoder().fit(TABLE.drop(columns="income"))


def test_readings_survive_json():
    for reading in ENCODER.readings_:
        assert ColumnReading.from_dict(json.loads(json.dumps(reading.to_dict()))) == reading
    good = ENCODER.readings_[2].to_dict()
    for wrong in (
        {"kind": "program"},
        {"levels": [1, 2]},
        {"levels": ["a", "a"]},
        {"levels": "ab"},
        {"decimal": ";"},
        {"start": [float("nan"), 0]},
        {"start": [1e300, 0]},
        {"feature_names": ["a", "b"]},
        {"parts": ["_century"]},
        {"more": 1},
        {"name": None},
    ):
        with pytest.raises((ValueError, TypeError)):
            ColumnReading.from_dict({**good, **wrong})
    for nothing in (None, [], "x", {}):
        with pytest.raises(ValueError, match="no column"):
            ColumnReading.from_dict(nothing)


def test_columns_that_tell_nothing_are_left_out_and_may_be_missing_later():
    frame = TABLE[["age", "education"]].assign(same=1, id=np.arange(200))
    encoder = wm.TableEncoder().fit(frame)
    assert encoder.n_features_in_ == 4
    assert encoder.get_feature_names_out().tolist() == ["age", *(f"education={x}" for x in ("BSc", "HS", "MSc", "PhD"))]
    assert encoder.transform(frame[["education", "age"]]).shape == (200, 5)
    assert any("one value only" in note for note in encoder.notes_)


def test_truth_in_a_frame_is_truth_in_a_file(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(f"{k},{str(k % 3 == 0).lower()}" for k in range(30)))
    encoder = wm.TableEncoder().fit(tmp_path / "t.csv")
    frame = pd.read_csv(tmp_path / "t.csv")
    assert frame["b"].dtype == bool
    np.testing.assert_array_equal(encoder.transform(frame), encoder.transform(tmp_path / "t.csv"))


@given(st.lists(st.datetimes(pd.Timestamp(1950, 1, 1), pd.Timestamp(2050, 1, 1)), min_size=3, max_size=20, unique=True))
@settings(max_examples=40, deadline=None)
def test_new_dates_are_the_numbers_they_were(moments):
    for form in ("%Y-%m-%d %H:%M", "%d.%m.%Y", "%d-%b-%Y"):
        words = [moment.strftime(form) for moment in moments]
        old = read_dates(words)
        new = read_new_dates(words, old.sign, old.order, old.start)
        assert not new.unread
        for part, values in old.parts.items():
            np.testing.assert_array_equal(new.parts[part], values)


def test_the_order_of_day_and_month_is_that_of_fit():
    old = read_dates(["31/01/2024", "05/02/2024"])
    assert read_new_dates(["03/04/2024"], old.sign, old.order, old.start).parts["_month"].tolist() == [4]
    american = read_dates(["01/31/2024", "02/05/2024"])
    new = read_new_dates(["03/04/2024", "13/04/2024", ""], american.sign, american.order, american.start)
    assert new.parts["_month"][0] == 3
    assert new.unread == [1]


@pytest.mark.parametrize(
    ("column", "value"),
    [("age", "x"), ("age", np.inf), ("hours", "1.5"), ("hired", 5.0), ("shift", "25:00"), ("gain", "45 %")],
)
def test_what_cannot_be_read_is_refused_with_its_row(column, value):
    frame = TABLE.astype({column: object})
    frame.loc[:, column] = value
    if not isinstance(value, str):
        frame[column] = frame[column].astype(float)
    with pytest.raises(wm.InputError, match=f"column '{column}'") as caught:
        ENCODER.transform(frame)
    assert "\n" not in str(caught.value)
