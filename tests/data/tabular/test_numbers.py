"""Numbers as people write them: what is written in any one way is read, and what has two readings is refused."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bad_tables import CLASSES
from widemargin.data.tabular.load import load_table
from widemargin.data.tabular.numbers import parse_formatted, read_numbers
from widemargin.data.tabular.read import read_table
from widemargin.io.errors import InputError

GROUPS = {".": (",", " ", "\u00a0", "\u202f", "'", "’", ""), ",": (".", " ", "\u00a0", "\u202f", "'", "")}
UNITS = ("{}", "${}", "€ {}", "{} €", "{}%", "{} %", "USD {}", "{} CHF", "{} kr")


def write_number(value, digits, decimal, group):
    """The number with `digits` after its decimal sign, written by Python and then with other signs."""
    text = f"{value:,.{digits}f}"
    return text.replace(",", "\0").replace(".", decimal).replace("\0", group)


def table_of(values, separator=";", name="price"):
    """A table in text with these words in its first column, a number that tells nothing beside it."""
    lines = [separator.join((name, "w", "label"))]
    for k, value in enumerate(values):
        cell = f'"{value}"' if separator in value else value
        lines.append(separator.join((cell, f"{k * 7 % 11}", CLASSES[k % 2])))
    return "\n".join(lines) + "\n"


def read(tmp_path, text, **options):
    (tmp_path / "data.csv").write_text(text)
    return read_table(tmp_path / "data.csv", **options)


@given(
    st.lists(
        st.sampled_from(["1", "-2.5e3", " 7 ", "1_000", "", "?", "NA", "nan", "inf", "red", "x1", "٣"]), min_size=1
    )
)
def test_plain_numbers_gaps_and_words_are_told_apart_cell_by_cell(words):
    reading = read_numbers(words)
    meant = {"1": 1.0, "-2.5e3": -2500.0, " 7 ": 7.0, "inf": math.inf, "٣": 3.0}
    np.testing.assert_array_equal(reading.values, [meant.get(word, math.nan) for word in words])
    assert reading.unread == [place for place, word in enumerate(words) if word in ("1_000", "red", "x1")]


values = st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=30)


@given(values, st.integers(0, 4), st.sampled_from(".,"), st.data())
def test_numbers_in_one_way_of_writing_are_read_back(whole, digits, decimal, data):
    group = data.draw(st.sampled_from(GROUPS[decimal]))
    unit = data.draw(st.sampled_from(UNITS))
    expected = [value / 10**digits for value in whole]
    words = [unit.format(write_number(value, digits, decimal, group)) for value in expected]
    known = {sign: [parse_formatted(word).values.get(sign) for word in words] for sign in ".,"}
    assert known[decimal] == expected
    other = known[{".": ",", ",": "."}[decimal]]
    if None in other or other == expected:  # the column tells
        assert read_numbers(words, "f").values == expected
    elif all(math.isfinite(float(word)) if is_float(word) else False for word in words):
        assert read_numbers(words, "f").values == [float(word) for word in words]
    else:
        with pytest.raises(InputError, match="decimal"):
            read_numbers(words, "f")
    assert read_numbers(words, "f", decimal=decimal).values == expected
    assert not read_numbers(words, "f", decimal=decimal).unread


def is_float(word):
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.sampled_from([None, "."]), st.sampled_from(",;\t"))
def test_what_python_writes_is_read_as_it_is(numbers, decimal, separator):
    assert (
        read_numbers([repr(number) for number in numbers], "f", decimal=decimal, separator=separator).values == numbers
    )


@given(st.text(st.sampled_from("0123456789.,-+()eE%$€ '\u00a0kr"), max_size=12))
def test_any_word_is_a_number_or_none(word):
    found = parse_formatted(word)
    if found is not None:
        assert set(found.values) <= {".", ","}
        assert found.values
        assert all(isinstance(value, float) for value in found.values.values())
    plain = word.strip()
    if is_float(plain) and plain.isascii():
        assert parse_formatted(plain).values["."] == float(plain)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["12.345,67", "8", "1,5"], [12345.67, 8, 1.5]),
        (["1,234.5", "2"], [1234.5, 2]),
        (["1 234,5", "1 234 567"], [1234.5, 1234567]),
        (["$1,234", "$12.50"], [1234, 12.5]),
        (["1.234 €", "€ 5,20"], [1234, 5.2]),
        (["1.234", "1.234.567"], [1234, 1234567]),
        (["1,234", "0,500"], [1.234, 0.5]),
        (["1,234", "12,34"], [1.234, 12.34]),
        (["1,234", "1,234,567"], [1234, 1234567]),
        (["45.3 %", "0", "?"], [45.3, 0, np.nan]),
        (["(1,234.50)", "7"], [-1234.5, 7]),
        (["-$5", "$-6", "\u22127"], [-5, -6, -7]),
        (["1'234.567", "1"], [1234.567, 1]),
        (["1,5e-3", "2e2"], [0.0015, 200]),
        ([",5", "5,"], [0.5, 5]),
    ],
)
def test_columns_that_tell_how_they_are_written(tmp_path, words, expected):
    table = read(tmp_path, table_of(words * 4, ";"))
    np.testing.assert_array_equal(table.columns[0].values, expected * 4)
    assert table.columns[0].levels is None


@pytest.mark.parametrize(
    "word", ["1,2,3", "12,3456.7", "1.23.456", "$", "5 kg", "--5", "(5", "1_000", "$5%", "1 23", "", "e5"]
)
def test_words_that_are_no_numbers(word):
    assert parse_formatted(word) is None


@pytest.mark.parametrize(
    ("words", "example"),
    [(["1,234", "987"], "'1,234' may be 1.234 or 1234"), (["1.234 €", "2.000 €"], "'1.234 €' may be 1.234 or 1234")],
)
@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_column_with_two_readings_is_refused_until_decimal_decides(tmp_path, words, example, separator):
    text = table_of(words * 10, separator)
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'data.csv'}: column 'price': {example}")
    assert "decimal=" in said
    assert "\n" not in said
    comma, point = (read(tmp_path, text, decimal=sign).columns[0].values[0] for sign in (",", "."))
    assert {comma, point} == {1.234, 1234.0}
    assert comma == (1.234 if "," in words[0] else 1234.0)


def test_quoted_thousands_between_commas_are_thousands(tmp_path):
    text = table_of(["1,234", "987"] * 10, ",")
    assert read(tmp_path, text).columns[0].values[0] == 1234
    assert read(tmp_path, text, decimal=",").columns[0].values[0] == 1.234


def test_plain_points_are_decimal_unless_something_says_otherwise(tmp_path):
    plain = table_of(["1.234", "999"] * 10, ";")
    table = read(tmp_path, plain)
    assert (table.columns[0].values[0], table.columns[0].values[1]) == (1.234, 999)
    assert read(tmp_path, plain, decimal=",").columns[0].values[0] == 1234
    assert read(tmp_path, table_of(["0.5", "1.234"] * 10), decimal=",").columns[0].values.tolist()[:2] == [0.5, 1.234]
    beside = plain.replace("w;", "length;").replace(";7;", ";7,5;")
    with pytest.raises(
        InputError, match=r"column 'price': '1.234' may be 1.234 or 1234, for column 'length' has decimal"
    ):
        read(tmp_path, beside)
    assert read(tmp_path, beside, decimal=",").columns[0].values[0] == 1234
    assert read(tmp_path, beside, decimal=".").columns[0].values[0] == 1.234


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([f"{k},5" for k in range(30)] + ["1.5"], "decimal commas and decimal points"),
        ([f"${k}" for k in range(30)] + ["€7"], "several currencies, such as $ and €"),
        ([f"{k}%" for k in range(15)] + [str(k) for k in range(15, 30)], "percent signs in some"),
    ],
)
def test_columns_of_different_units_or_signs_are_no_numbers(tmp_path, words, reason):
    table = read(tmp_path, table_of(words))
    assert [column.name for column in table.columns] == ["w"]
    assert any("left out 'price'" in note and reason in note for note in table.notes)


def test_notes_say_what_was_taken_out(tmp_path):
    table = read(tmp_path, table_of([f"{k}.234,50 €" for k in range(1, 30)]))
    note = next(note for note in table.notes if note.startswith("'price'"))
    assert all(part in note for part in ("points between thousands", "decimal commas", "currency sign €"))


def test_a_slip_among_written_numbers_is_named_with_its_row(tmp_path):
    with pytest.raises(InputError, match=r"row 14, column 'price': 'about 7' is not a number"):
        read(tmp_path, table_of([f"{k},5 €" if k != 12 else "about 7" for k in range(30)]))


def test_a_price_as_target_is_a_quantity_however_it_is_written(tmp_path):
    text = "x;y\n" + "".join(f"{k % 7};{k},{k % 9}5 €\n" for k in range(200))
    with pytest.raises(InputError, match="looks like a number to be predicted"):
        read(tmp_path, text)


def test_a_first_row_of_written_numbers_is_data(tmp_path):
    table = read(tmp_path, "".join(f"{k},5;{k % 5},25;{CLASSES[k % 2]}\n" for k in range(20)))
    assert len(table) == 20
    assert [column.name for column in table.columns] == ["c1", "c2"]
    named = read(tmp_path, "25%;50%;y\n" + "".join(f"{k},5;{k % 5},25;{CLASSES[k % 2]}\n" for k in range(20)))
    assert [column.name for column in named.columns] == ["25%", "50%"]


def test_words_of_a_data_frame_are_read_alike():
    frame = pd.DataFrame({"price": ["1,234", "2,345", "3"] * 8, "y": list("ab") * 12})
    with pytest.raises(InputError, match="table: column 'price': '1,234' may be"):
        load_table(frame)
    assert load_table(frame, decimal=".").columns[0].values[0] == 1234
    assert load_table((frame[["price"]], frame["y"]), decimal=",").columns[0].values[0] == 1.234
    with pytest.raises(InputError, match=r'decimal must be "," or "\."'):
        load_table(frame, decimal=";")


@given(st.lists(st.sampled_from(["1,234", "1.234", "12,5", "1.5", "7", "x", "", "$3", "5%"]), min_size=2, max_size=12))
def test_any_column_is_read_or_refused_in_one_line(words):
    assume(any(words))
    known = [found for word in set(words) if (found := parse_formatted(word))]
    fits_both = all(len(found.values) == 2 for found in known) and len(known) == len({*words} - {""})
    is_plain = all(is_float(word) for word in words if word)
    mixes_units = "5%" in words and len(known) > 1
    if fits_both and not is_plain and not mixes_units and any(found.is_ambiguous for found in known):
        with pytest.raises(InputError, match=r"^f: column 'x': '1.234' may be 1\.234 or 1234; .*decimal"):
            read_numbers(words, "f: column 'x'")
        return
    reading = read_numbers(words, "f: column 'x'")
    assert len(reading.values) == len(words)
    assert all(np.isnan(reading.values[place]) for place in reading.unread)
    is_read = [word and place not in reading.unread for place, word in enumerate(words)]
    assert all(not np.isnan(value) for value, read_it in zip(reading.values, is_read, strict=True) if read_it)
