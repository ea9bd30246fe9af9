"""Reading tables: every rule about what is read, noted or refused, and that a table written is the table read."""

import io
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes

from bad_tables import CASES, CLASSES, good, rows, with_column
from widemargin.data.tabular.read import read_table
from widemargin.data.tabular.table import class_order
from widemargin.io.errors import InputError


@pytest.fixture(autouse=True)
def _no_data_from_elsewhere(monkeypatch):
    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)


def read(tmp_path, text, target=None, name="data.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_table(path, target)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "10,000 columns" else name for name in CASES]
)
def test_every_odd_table_works_or_says_why_not_in_one_line(tmp_path, name):
    case = CASES[name]
    path, options = case.write(tmp_path)
    target = options[options.index("--target") + 1] if "--target" in options else None
    if case.error is None:
        table = read_table(path, target)
        assert len(table.y) == len(table) >= 38
        assert len(table.columns) >= 2 - ("target first" in name)
        assert all(len(column) == len(table) for column in table.columns)
        assert any(case.note in note for note in table.notes) if case.note else table.notes == ()
    else:
        with pytest.raises(InputError) as caught:
            read_table(path, target)
        message = str(caught.value)
        assert case.error in message
        assert message.startswith(path)
        assert "\n" not in message
        assert len(message) < len(path) + 250


def test_the_corpus_is_large():
    assert sum(case.error is not None for case in CASES.values()) >= 40


def test_numbers_and_categories_and_classes(tmp_path):
    table = read(tmp_path, "size,colour,kind\n1.5,red,10\n?,blue,9\n2e1,red,10\n-3,NA,9\n")
    size, colour = table.columns
    assert size.levels is None
    np.testing.assert_array_equal(size.values, [1.5, np.nan, 20.0, -3.0])
    assert colour.levels == ("blue", "red")
    np.testing.assert_array_equal(colour.values, [1, 0, 1, -1])
    assert (size.values.dtype, colour.values.dtype, table.y.dtype) == (np.float64, np.int64, np.int64)
    assert table.class_names == ("9", "10")
    np.testing.assert_array_equal(table.y, [1, 0, 1, 0])
    assert (table.name, table.source) == ("data", str(tmp_path / "data.csv"))


def test_the_target_may_be_any_column(tmp_path):
    table = read(tmp_path, "kind,x\na,1\nb,2\na,3\nb,5\n", target="kind")
    assert [column.name for column in table.columns] == ["x"]
    assert table.class_names == ("a", "b")


def with_target(values):
    return "x,z,target\n" + "".join(f"{k % 17},{k % 5 + k / 7:.3f},{value}\n" for k, value in enumerate(values))


def draws(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    "values",
    [
        load_diabetes().target,  # 214 whole numbers, written with a decimal point, in 442 rows
        load_diabetes().target.astype(int),
        draws().lognormal(12, 0.4, 1500).round(-3).astype(int),  # prices, rounded to thousands
        draws().normal(12, 8, 3650).round(1) + 0.0,  # temperatures
        draws().normal(12, 8, 60_000).round(1) + 0.0,  # few different ones among so many rows
        draws().normal(12, 8, 3650).round().astype(int),
        np.clip(draws().normal(40, 12, 300), 18, 90).astype(int),  # ages
        np.clip(draws().normal(40, 14, 30_000), 18, 90).astype(int),
        draws().integers(1922, 2012, 5000),  # years
        draws().poisson(60, 400),  # counts
        draws().uniform(0, 1, 200),
    ],
    ids=lambda values: f"{len(np.unique(values))} in {len(values)}",
)
def test_a_number_to_be_predicted_is_refused_unless_it_is_said_to_be_a_class(tmp_path, values):
    text = with_target(values)
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    different = f"{len(np.unique(values)):,} different values in {len(values):,} rows"
    assert f"column 'target' looks like a number to be predicted ({different}); widemargin classifies" in str(
        caught.value
    )
    assert "choose another target, or bin it first" in str(caught.value)
    if len(np.unique(values)) < len(values) / 2:
        assert len(read_table(tmp_path / "data.csv", target_is_class=True).class_names) > 20


@pytest.mark.parametrize(
    "values",
    [
        np.arange(1000) % 10,
        np.repeat(np.arange(1000), 2),  # many classes with two rows each
        np.repeat(np.arange(1, 501), 3),
        np.repeat(draws().choice(10_000, 80, replace=False), 5),  # numbers of articles
        np.repeat(np.arange(65, 91), 4),  # letters by their codes
        (np.arange(500) % 10) / 2,  # stars: 0 to 4.5
        np.repeat(np.arange(1, 29), 20),
        ["A1", *(str(k) for k in range(30)), "B7"] * 2,
    ],
    ids=["digits", "1000 of 2", "500 of 3", "articles", "letters", "stars", "rings", "codes"],
)
def test_numbers_that_are_classes_are_taken(tmp_path, values):
    assert len(read(tmp_path, with_target(values)).class_names) == len(set(values))


def test_rows_left_out_are_left_out_of_every_column(tmp_path):
    table = read(tmp_path, "x,c,label\n1,p,a\n2,q,\n3,p,b\n4,q,lonely\n5,q,a\n6,p,b\n")
    np.testing.assert_array_equal(table.columns[0].values, [1, 3, 5, 6])
    np.testing.assert_array_equal(table.columns[1].values, [0, 0, 1, 0])
    assert any("row 3" in note for note in table.notes)
    assert any("'lonely'" in note for note in table.notes)


def test_a_value_in_a_row_left_out_does_no_harm(tmp_path):
    assert len(read(tmp_path, good(r9c0="inf", r9c2=""))) == 39


def test_row_numbers_are_lines_of_the_file(tmp_path):
    body = "".join(f"{k},w{k % 3},{CLASSES[k % 2]}\n" for k in range(30))
    text = f'x,z,label\n\n1,"two\nlines",a\n\n{body}bad,w0,a\n'
    line = text.splitlines().index("bad,w0,a") + 1
    with pytest.raises(InputError, match=f"row {line}, column 'x': 'bad'"):
        read(tmp_path, text)


def test_a_running_number_is_left_out_only_by_its_name_and_values(tmp_path):
    def names(text):
        return [column.name for column in read(tmp_path, text).columns]

    assert names(with_column("id", lambda k: str(k))) == ["x", "z"]
    assert names(with_column("id", lambda k: str(k * k + 7))) == ["x", "z"]
    assert names(with_column("humid", lambda k: str(k * k + 7))) == ["humid", "x", "z"]
    assert names(with_column("year", lambda k: str(k))) == ["year", "x", "z"]
    assert names(with_column("id", lambda k: str(k % 9))) == ["id", "x", "z"]


def test_a_header_of_words_and_years_is_a_header_and_data_is_data(tmp_path):
    body = "".join(f"{k % 7}.5,{k % 3},{'pq'[k % 2]}\n" for k in range(20))
    assert [column.name for column in read(tmp_path, "2019,2020,kind\n" + body).columns] == ["2019", "2020"]
    flowers = read(tmp_path, body)
    assert [column.name for column in flowers.columns] == ["c1", "c2"]
    assert len(flowers) == 20


def test_decimal_commas_beside_points_are_not_guessed(tmp_path):
    body = "".join(f"{k},5;{'uv'[k // 2 % 2]};{CLASSES[k % 2]}\n" for k in range(40))
    table = read(tmp_path, "x;w;label\n" + body)
    np.testing.assert_array_equal(table.columns[0].values, np.arange(40) + 0.5)
    table = read(tmp_path, "x;w;label\n" + body + "1.5;u;a\n")
    assert [column.name for column in table.columns] == ["w"]
    assert any("left out 'x'" in note for note in table.notes)


def test_many_columns_left_out_make_one_short_note(tmp_path):
    header = ",".join([*(f"k{k}" for k in range(300)), "x", "label"])
    table = read(tmp_path, header + "\n" + "".join("7," * 300 + f"{k},{CLASSES[k % 2]}\n" for k in range(12)))
    assert table.notes == ("left out 'k0', 'k1', 'k2', 'k3', 'k4' and 295 more (one value only)",)


def test_unknown_target_among_many_columns_stays_short(tmp_path):
    text = ",".join(f"c{k}" for k in range(5000)) + "\n" + ",".join("1" * 5000) + "\n"
    with pytest.raises(InputError, match="and 4,988 more"):
        read(tmp_path, text, target="zzzz")


def test_an_unreadable_file_is_one_line(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "data.csv").write_text(good())
    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)"):
        read_table(tmp_path / "data.csv")


def parquet(tmp_path, **columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "data.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_numbers_words_and_gaps(tmp_path):
    import pyarrow as pa

    path = parquet(
        tmp_path,
        id=list(range(1, 25)),
        size=[1.5, None, float("nan"), 4.0] * 6,
        count=pa.array([1, 2, 3, None] * 6, pa.int16()),
        colour=pa.array(["red", None, "blue", "red"] * 6).dictionary_encode(),
        flag=[True, False] * 12,
        parts=[[1], [2]] * 12,
        kind=pa.array([2**60 + 1, 2**60 + 2] * 12),
    )
    table = read_table(path)
    assert [column.name for column in table.columns] == ["size", "count", "colour", "flag"]
    np.testing.assert_array_equal(table.columns[0].values[:4], [1.5, np.nan, np.nan, 4.0])
    np.testing.assert_array_equal(table.columns[1].values[:4], [1, 2, 3, np.nan])
    assert table.columns[2].levels == ("blue", "red")
    assert table.columns[3].levels == ("False", "True")
    assert table.class_names == (str(2**60 + 1), str(2**60 + 2))
    assert any("'parts'" in note for note in table.notes)
    assert any("'id'" in note for note in table.notes)


def test_parquet_says_the_row_of_an_infinite_number(tmp_path):
    path = parquet(tmp_path, x=[1.0, 2.0, float("inf"), 4.0], kind=["a", "b", "a", "b"])
    with pytest.raises(InputError, match="row 3, column 'x': an infinite number"):
        read_table(path)


def test_parquet_without_rows_or_features_is_one_line(tmp_path):
    with pytest.raises(InputError, match="no rows"):
        read_table(parquet(tmp_path, x=[], kind=[]))
    with pytest.raises(InputError, match="a feature and a column of classes"):
        read_table(parquet(tmp_path, kind=["a", "b"]))
    with pytest.raises(InputError, match="only 1 of its 2 columns can be read"):
        read_table(parquet(tmp_path, parts=[[1], [2]], kind=["a", "b"]))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    path = parquet(tmp_path, x=[1, 2], kind=["a", "b"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r'pip install "widemargin\[parquet\]"'):
        read_table(path)


def test_reading_needs_no_torch():
    import subprocess

    modules = "widemargin.data.tabular.read, widemargin.data.tabular.uci, widemargin.reproduce.paper"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)
kinds_of_words = st.sampled_from(["p", "q r", "s,t", 'u"v', "w;x", "y\nz", "größe", "π"])


@given(
    st.lists(st.tuples(numbers, st.none() | numbers, kinds_of_words), min_size=6, max_size=20),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_what_is_written_is_read(tmp_path_factory, values, separator, encoding):
    import csv

    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator)
    writer.writerow(["first", "second", "kind", "label"])
    for place, (first, second, kind) in enumerate(values):
        writer.writerow([repr(first), "" if second is None else repr(second), kind, "yes" if place % 2 else "no"])
    path = tmp_path_factory.mktemp("table") / "data.csv"
    path.write_bytes(text.getvalue().encode(encoding))
    expected = {
        "first": [first for first, _, _ in values],
        "second": [np.nan if second is None else second for _, second, _ in values],
    }
    varied = {name: len({v for v in column if not np.isnan(v)}) > 1 for name, column in expected.items()}
    kinds = sorted({kind for _, _, kind in values})
    if not any(varied.values()) and len(kinds) == 1:
        with pytest.raises(InputError, match="no column to learn from"):
            read_table(path)
        return
    table = read_table(path)
    found = {column.name: column for column in table.columns}
    assert set(found) == {name for name, varies in varied.items() if varies} | ({"kind"} if len(kinds) > 1 else set())
    for name, column in expected.items():
        if varied[name]:
            np.testing.assert_array_equal(found[name].values, column)
    if len(kinds) > 1:
        assert found["kind"].levels == tuple(kinds)
        assert [kinds[code] for code in found["kind"].values] == [kind for _, _, kind in values]
    assert [table.class_names[code] for code in table.y] == [
        "yes" if place % 2 else "no" for place in range(len(values))
    ]


def table_or_line(path):
    try:
        return read_table(path)
    except InputError as error:
        return str(error)


@given(st.binary(max_size=300))
def test_any_bytes_make_a_table_or_one_line(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "data.csv"
    path.write_bytes(data)
    found = table_or_line(path)
    assert not isinstance(found, str) or "\n" not in found


@given(st.text(st.sampled_from('abx019.,;"\n\t -?'), max_size=120))
def test_any_text_makes_a_table_or_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("text") / "data.csv"
    path.write_text("x,label\n" + text)
    found = table_or_line(path)
    if isinstance(found, str):
        assert "\n" not in found
    else:
        assert len(found.class_names) >= 2
        assert np.bincount(found.y).min() >= 2


@given(st.lists(st.integers(-1000, 1000), min_size=1))
def test_classes_that_are_numbers_stand_in_their_order(values):
    assert [int(name) for name in class_order(map(str, values))] == sorted(set(values))


def test_good_rows_are_what_the_cases_say():
    assert len(rows()) == 40
    assert good(r3c0="Z").splitlines()[2].startswith("Z,")
