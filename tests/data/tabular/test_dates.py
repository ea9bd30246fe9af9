"""Dates and times: every way of writing gives the numbers that pandas has for the same dates."""

import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bad_tables import CLASSES
from widemargin.data.tabular.dates import read_dates
from widemargin.data.tabular.load import load_table
from widemargin.data.tabular.read import read_table
from widemargin.io.errors import InputError

FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d %B %Y", "%d-%b-%Y", "%b %d, %Y")
TIMES = ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S.%f", " %I:%M:%S %p", "T%H:%M:%SZ")
ORDERS = ("%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")

moments = st.lists(
    st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)), min_size=2, max_size=20, unique=True
)


def table_of(dates, name="when"):
    rows = [f"{value},{k * 7 % 11},{CLASSES[k % 2]}\n" for k, value in enumerate(dates)]
    return f"{name},w,label\n" + "".join(rows)


def read(tmp_path, text):
    (tmp_path / "data.csv").write_text(text)
    return read_table(tmp_path / "data.csv")


def values_of(table):
    return {column.name: column.values for column in table.columns}


def check_parts(parts, expected):
    """All parts that vary, and no others, as pandas computes them."""
    series = pd.Series(expected)
    hours = (series - series.dt.normalize()).dt.total_seconds() / 3600
    reference = {
        "_year": series.dt.year,
        "_month": series.dt.month,
        "_weekday": series.dt.day_of_week,
        "_hour": hours,
        "_days": (series - series.min()).dt.total_seconds() / 86400,
    }
    varying = {name: column for name, column in reference.items() if column.nunique() > 1}
    assert set(parts) == set(varying)
    for name, column in varying.items():
        np.testing.assert_allclose(parts[name], column.to_numpy(float), atol=1e-7)


@given(moments, st.sampled_from(FORMATS), st.sampled_from(TIMES))
def test_dates_in_one_way_of_writing_are_read_back(dates, day, time):
    words = [moment.strftime(day + time) for moment in dates]
    expected = [datetime.datetime.strptime(word, day + time) for word in words]
    reading = read_dates(words)
    if len(set(words)) > 1:
        assert not reading.unread
        check_parts(reading.parts, expected)


@given(moments, st.sampled_from(ORDERS))
def test_the_whole_column_tells_whether_the_day_comes_first(dates, order):
    dates = [*dates, datetime.datetime(2024, 12, 31), datetime.datetime(2023, 3, 17)]
    reading = read_dates([moment.strftime(order) for moment in dates])
    check_parts(reading.parts, [moment.replace(hour=0, minute=0, second=0, microsecond=0) for moment in dates])
    assert ("day first" if order.startswith("%d") else "month first") in reading.note


def test_where_nothing_tells_points_have_days_first_and_slashes_months():
    assert read_dates(["01.02.2024", "01.03.2024"]).parts["_days"].tolist() == [0, 29]
    assert read_dates(["01-02-2024", "01-03-2024"]).parts["_days"].tolist() == [0, 29]
    reading = read_dates(["01/02/2024", "01/03/2024"])
    assert reading.parts["_days"].tolist() == [0, 1]
    assert "month first: no day above 12 tells" in reading.note
    told = read_dates(["01/02/2024", "01/03/2024"], [["x", "y"], ["31/01/2024", "05/06/2024"]])
    assert told.parts["_days"].tolist() == [0, 29]
    assert "day first, as in another column" in told.note


@pytest.mark.parametrize(
    "words",
    [
        ["1.2.3", "1.2.10"],  # versions
        ["2024-13-01", "2024-14-01"],
        ["31.12.2024", "2024-12-31"],
        ["12:60", "25:00"],
        ["red", "blue"],
        ["10-20", "20-30"],
        ["", "?"],
        ["192.168.0.1", "10.0.0.1"],
    ],
)
def test_words_that_are_no_dates(words):
    reading = read_dates(words)
    assert reading is None or len(reading.unread) == len(words)


def test_offsets_count_in_days_and_not_in_hours():
    reading = read_dates(["2024-01-01 12:00:00+02:00", "2024-01-01 11:00:00Z", "2024-01-01T12:00:00-0130"])
    np.testing.assert_allclose(reading.parts["_days"] * 24, [0, 1, 3.5])
    np.testing.assert_allclose(reading.parts["_hour"], [12, 11, 12])


def test_two_digits_are_a_year_of_these_decades():
    reading = read_dates(["12/31/99", "01/01/00"])
    assert reading.parts["_year"].tolist() == [1999, 2000]
    assert reading.parts["_days"].tolist() == [0, 1]


def test_a_column_of_dates_becomes_numbers_and_a_note(tmp_path):
    start = datetime.date(2024, 11, 3)
    dates = [str(start + datetime.timedelta(days=11 * k)) if k != 5 else "" for k in range(40)]
    table = read(tmp_path, table_of(dates))
    values = values_of(table)
    assert list(values) == ["when_year", "when_month", "when_weekday", "when_days", "w"]
    np.testing.assert_array_equal(values["when_days"][[0, 1, 5, 39]], [0, 11, np.nan, 429])
    assert "'when': dates became year, month, weekday and days since 2024-11-03" in table.notes


def test_only_parts_that_vary_become_columns_and_names_stay_different(tmp_path):
    table = read(tmp_path, table_of([f"0{k % 7 + 1}.05.2024" for k in range(40)]).replace("w,", "when_days,", 1))
    assert [column.name for column in table.columns] == ["when_weekday", "when_days_", "when_days"]
    constant = read(tmp_path, table_of(["2024-05-01"] * 40))
    assert [column.name for column in constant.columns] == ["w"]
    assert "left out 'when' (one value only)" in constant.notes


def test_times_of_day_become_hours(tmp_path):
    table = read(tmp_path, table_of([f"{k % 24:02d}:{k % 60:02d}" for k in range(40)]))
    np.testing.assert_allclose(values_of(table)["when"][:3], [0, 1 + 1 / 60, 2 + 2 / 60])


def test_a_slip_among_dates_is_named_with_its_row(tmp_path):
    dates = [f"2024-01-{k + 1:02d}" for k in range(30)]
    for slip in ("soon", "2024-02-30"):
        with pytest.raises(InputError, match=f"row 9, column 'when': '{slip}' is not a date"):
            read(tmp_path, table_of([*dates[:7], slip, *dates[8:]]))
    table = read(tmp_path, table_of([*dates[:7], "0000-00-00", *dates[8:]]))
    assert np.isnan(values_of(table)["when_days"][7])


def test_dates_of_data_frames_and_parquet_are_the_same_numbers(tmp_path):
    count = 60
    moments = pd.Series(pd.date_range("2023-12-28 06:00", periods=count, freq="31h"))
    frame = pd.DataFrame(
        {
            "at": moments.where(np.arange(count) != 4),
            "zoned": moments.dt.tz_localize("Europe/Berlin"),
            "day": moments.dt.date,
            "clock": moments.dt.time,
            "wait": pd.to_timedelta(np.arange(count) % 13, unit="h"),
            "label": [CLASSES[k % 2] for k in range(count)],
        }
    )
    table = load_table(frame)
    values = values_of(table)
    np.testing.assert_allclose(values["at_days"][[0, 1, 4, 59]], np.array([0, 31, np.nan, 31 * 59]) / 24)
    np.testing.assert_array_equal(values["day_weekday"], moments.dt.day_of_week)
    np.testing.assert_allclose(values["clock"], moments.dt.hour)
    np.testing.assert_allclose(values["zoned_days"][:2] * 24, [0, 31])
    np.testing.assert_allclose(values["wait"] * 24, np.arange(count) % 13)
    frame.to_parquet(tmp_path / "data.parquet")
    stored = values_of(read_table(tmp_path / "data.parquet"))
    assert list(stored) == list(values)
    for name, column in values.items():
        np.testing.assert_allclose(stored[name], column, err_msg=name)


def test_ids_and_words_with_digits_stay_what_they_were(tmp_path):
    table = read(tmp_path, table_of([f"A-{k % 5}-2024" for k in range(40)]))
    assert table.columns[0].levels == tuple(f"A-{k}-2024" for k in range(5))
