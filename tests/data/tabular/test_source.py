"""Where tables come from: standard input of a real process, addresses on a server, and names that are nowhere."""

import gzip
import os
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import unquote

import pytest

from file_server import FileServer
from widemargin.cli.main import main
from widemargin.data.tabular import source
from widemargin.data.tabular.load import load_table, load_tables
from widemargin.data.tabular.read import read_table
from widemargin.data.tabular.uci import UCI_SETS, list_uci_sets, load_uci_set, uci_set_names
from widemargin.io.errors import InputError

TABLE = "x,z,label\n" + "".join(f"{k % 7 / 4},{k * k % 31},{'ab'[k % 2]}\n" for k in range(60))
QUICK = ["--losses", "softmax", "--cv-repeats", "1", "--folds", "2", "--jobs", "1", "--no-baselines"]


@pytest.fixture(autouse=True)
def _no_data_from_elsewhere(monkeypatch, tmp_path):
    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)
    monkeypatch.setenv("WIDEMARGIN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def server():
    running = FileServer({"/data/my rows.csv": TABLE.encode()})
    yield running
    running.stop()


def run_command(folder, *words, **options):
    command = [sys.executable, "-m", "widemargin", "compare", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False, **options)


# Standard input


def test_a_table_comes_through_standard_input(tmp_path):
    ran = run_command(tmp_path, "-", "--target", "label", *QUICK, input=gzip.compress(TABLE.encode()))
    assert (ran.returncode, ran.stdout.decode().startswith("stdin: accuracy")) == (0, True), ran.stderr
    assert (tmp_path / "compare-stdin" / "report.html").is_file()


def read_in_process(folder, **options):
    code = "from widemargin.data.tabular.read import read_table; t = read_table('-'); print(t.name, t.source, len(t))"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False, **options
    )


def test_standard_input_may_be_a_file(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    with (tmp_path / "table.csv").open() as file:
        assert read_in_process(tmp_path, stdin=file).stdout == "stdin stdin 60\n"


@contextmanager
def standard_input(text):
    """A pipe with a text as standard input of this process."""
    (reading, writing), before = os.pipe(), os.dup(0)
    os.write(writing, text.encode())
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "the file is empty"),
        ("x,label\n1,a\n2\n", "row 3 has 1 field"),
        ("x;y\n" + "1,234;a\n1,500;b\n" * 9, "column 'x': '1,234' may be 1.234 or 1234"),
    ],
)
def test_bad_standard_input_is_one_line(tmp_path, given, why, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with standard_input(given):
        code = main(["compare", "-", *QUICK])
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("widemargin: stdin: ")
    assert why in said


def test_standard_input_that_is_a_device_or_closed_is_one_line(tmp_path):
    for given in ({"stdin": subprocess.DEVNULL}, {"preexec_fn": lambda: os.close(0)}):
        ran = read_in_process(tmp_path, **given)
        assert "Error: stdin: " in ran.stderr.splitlines()[-1]


def test_standard_input_is_bounded(tmp_path):
    code = "from widemargin.data.tabular import source; source.MAX_TABLE_BYTES = 1000; source.read_source('-')"
    ran = subprocess.run([sys.executable, "-c", code], input=TABLE * 9, capture_output=True, text=True, check=False)
    assert "stdin: larger than" in ran.stderr


# Addresses


def test_a_table_comes_from_an_address(server, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_MIRROR", "https://mirror.invalid")  # for known sets only
    address = f"{server.address}/data/my rows.csv"
    server.files["/data/my rows.csv?token=secret"] = TABLE.encode()
    table = load_table(f"{address}?token=secret#top", "label")
    (tmp_path / "same.csv").write_text(TABLE)
    assert table.fingerprint == read_table(tmp_path / "same.csv").fingerprint
    assert (table.name, table.source) == ("my rows", address)
    assert server.asked == ["/data/my rows.csv?token=secret"]


def test_the_command_takes_an_address(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server.files["/flowers.csv.gz"] = gzip.compress(TABLE.encode())
    assert main(["compare", f"{server.address}/flowers.csv.gz", *QUICK]) == 0
    assert (tmp_path / "compare-flowers" / "results.jsonl").is_file()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("{}/nothing.csv", "the server answers 404"),
        ("{}/page.csv", "is a web page; download the file itself"),
        ("http://example.org/x.csv", "only https addresses are fetched"),
        ("ftp://example.org/x.csv", "only https addresses are fetched"),
        ("file:///etc/hostname", "only https addresses are fetched"),
        ("https://user:word@127.0.0.1:1/x.csv", "URLs with a user name are not fetched"),
        ("http://127.0.0.1:1/x.csv", "no connection"),
        ("http://[::1/x.csv", "only https addresses are fetched"),
    ],
)
def test_an_address_without_a_table_is_one_line(server, path, why):
    server.files["/page.csv"] = b"<!DOCTYPE html><html></html>"
    with pytest.raises(InputError) as caught:
        read_table(path.format(server.address))
    said = str(caught.value)
    assert why in said
    assert "\n" not in said
    assert "word@" not in said


def test_a_download_is_bounded_and_goes_nowhere_else(server, monkeypatch):
    address = f"{server.address}/data/my rows.csv"
    monkeypatch.setattr(source, "MAX_TABLE_BYTES", 100)
    with pytest.raises(InputError, match="bytes, more than the 100 expected"):
        read_table(address)
    server.answers = [302]
    with pytest.raises(InputError, match="only https addresses are fetched"):
        read_table(address)


@pytest.mark.parametrize(
    ("path", "name"), [("/a/..%2F..%2Fx%0Ay.csv", "x_y"), ("/download/?id=3", "download"), ("/", "127_0_0_1")]
)
def test_names_of_tables_from_addresses_are_names_of_folders(server, path, name):
    server.files[unquote(path)] = TABLE.encode()
    assert read_table(server.address + path).name.startswith(name)


# Excel's first line


@pytest.mark.parametrize("separator", [",", ";", "|", "\t", ":", "~"])
def test_a_first_line_names_the_separator(tmp_path, separator):
    text = TABLE.replace(",", separator)
    (tmp_path / "plain.csv").write_text(TABLE)
    for first in (f"sep={separator}\n", f"SEP={separator}\r\n", f'"sep={separator}"\n'):
        (tmp_path / "data.csv").write_bytes(b"\xef\xbb\xbf" + (first + text).encode())
        found = read_table(tmp_path / "data.csv")
        assert found.fingerprint == read_table(tmp_path / "plain.csv").fingerprint
        assert found.notes == read_table(tmp_path / "plain.csv").notes


def test_rows_are_counted_with_the_line_that_names_the_separator(tmp_path):
    (tmp_path / "data.csv").write_text("sep=;\n" + TABLE.replace(",", ";") + "1;a\n")
    with pytest.raises(InputError, match="row 63 has 2 fields"):
        read_table(tmp_path / "data.csv")
    (tmp_path / "data.csv").write_text("sep=5\n" + TABLE)
    with pytest.raises(InputError, match="row 1: '5' cannot separate fields"):
        read_table(tmp_path / "data.csv")


# Known sets


def test_known_sets_are_listed_with_their_shapes(tmp_path):
    listed = {entry.name: entry for entry in list_uci_sets()}
    assert tuple(listed) == uci_set_names()
    for name, entry in UCI_SETS.items():
        assert (listed[name].classes, listed[name].columns, listed[name].rows) == entry.shape
    assert {name for name, entry in listed.items() if entry.is_present} == {"iris", "balance_scale"}
    for name in ("iris", "balance_scale"):
        table = load_uci_set(name)
        assert listed[name][1:4] == (len(table), len(table.columns), len(table.class_names))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "haberman.csv").write_text("")
    assert {entry.name for entry in list_uci_sets(tmp_path / "data") if entry.is_present} == {
        "iris",
        "balance_scale",
        "haberman",
    }


def test_the_command_lists_the_known_sets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = main(["compare", "--list"])
    out, said = capsys.readouterr()
    assert (code, said) == (0, "")
    header, *lines = out.splitlines()
    assert header.split()[:4] == ["name", "rows", "columns", "classes"]
    assert [line.split()[:4] for line in lines] == [
        [entry.name, str(entry.rows), str(entry.columns), str(entry.classes)] for entry in list_uci_sets()
    ]
    assert not list(tmp_path.glob("compare-*"))


@pytest.mark.parametrize(("given", "near"), [("habermann", "'haberman'"), ("mine.cvs", "'mine.csv'"), ("qqqq", "")])
def test_a_name_that_is_nowhere_gets_the_nearest_and_how_to_list_them(tmp_path, monkeypatch, given, near):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(TABLE)
    with pytest.raises(InputError) as caught:
        load_tables(given)
    said = str(caught.value)
    assert said.startswith(f"{given}: no such file or data set")
    assert f"did you mean {near}?" in said or not near
    assert "widemargin compare --list" in said
