"""Tables in text: through pipes, packed, without end, and names that belong to no file."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refusals import read_table, refusal_message, replace_with
from widemargin.data.tabular import text
from widemargin.data.tabular.table import MISSING_TOKENS, MemoryBudget
from widemargin.io.errors import InputError

TABLE = "x,z,label\n" + "".join(f"{k % 7 / 4},{k % 5},{'ab'[k % 2]}\n" for k in range(60))


PLAIN = ["1", "-2.5e3", "7 ", "", "?", "NA", "none", "inf", "007", "1e400"]
CELLS = [
    *PLAIN,
    "1_000",
    "18446744073709551616",
    "True",
    "red",
    "a b",
    "x,y",
    "p;q",
    "l|r",
    "p¦q",
    'say "hi"',
    "#1",
    "'",
]
CELLS += ["two\nlines", "two\r\nlines", "zażółć", "5\u00a0", "٣"]


@given(
    st.lists(st.tuples(*[st.sampled_from(CELLS)] * 3), min_size=1, max_size=60),
    st.sampled_from([",", ";", "\t", "|", "¦"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.dictionaries(st.integers(0, 59), st.sampled_from(["", "  ", '""', '" "', "\u2003"]), max_size=3),
)
def test_every_cell_and_line_is_read_back(rows, separator, line_end, quote_all, blank_lines):
    lines = [f"sep={separator}{line_end}", separator.join(["one", "two", "three"]) + line_end]
    starts = []
    for place, row in enumerate(rows):
        if place in blank_lines:
            lines.append(blank_lines[place] + line_end)
        starts.append(1 + sum(len(re.findall(r"\r\n|\r|\n", line)) for line in lines))
        is_quoted = [quote_all or any(sign in cell for sign in f'{separator}"\r\n') for cell in row]
        quoted = [cell.replace('"', '""').join('""') if has else cell for cell, has in zip(row, is_quoted, strict=True)]
        lines.append(separator.join(quoted) + line_end)
    data = "".join(lines).encode()
    grid = text.parse_grid(text.EncodedText(data, "utf-8"), MemoryBudget("f", len(data)))
    assert grid.column_names == ["one", "two", "three"]
    assert list(grid.line_numbers) == starts
    for place, words in enumerate(grid.column_words(range(3))):
        wanted = [row[place].strip() for row in rows]
        assert list(words) == wanted
        cells = grid.columns[place]
        assert isinstance(cells, np.ndarray) == all(row[place] in PLAIN for row in rows)
        if isinstance(cells, np.ndarray):
            expected = [np.nan if word.lower() in MISSING_TOKENS else float(word) for word in wanted]
            np.testing.assert_array_equal(cells, expected)


@pytest.mark.parametrize("kind", ["device", "holes"])
def test_a_table_that_is_no_file_is_refused(tmp_path, kind):
    replace_with(tmp_path / "table.csv", kind)
    assert "table.csv" in refusal_message(read_table, str(tmp_path / "table.csv"), tmp_path=tmp_path)


def test_a_pipe_that_nobody_writes_to_is_one_line(tmp_path, monkeypatch):
    from widemargin.io import bounded

    path = tmp_path / "table.csv"
    os.mkfifo(path)
    monkeypatch.setattr(bounded, "PIPE_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(InputError, match=r"a pipe that has sent nothing for 0.2 s"):
        read_table(str(path))
    handle = os.open(path, os.O_RDWR)  # a writer that is there and silent
    with pytest.raises(InputError, match=r"a pipe that has sent nothing for 0.2 s"):
        read_table(str(path))
    os.close(handle)


def test_a_slow_pipe_is_read_to_its_end(tmp_path, monkeypatch):
    from widemargin.data.tabular.read import read_table
    from widemargin.io import bounded

    monkeypatch.setattr(bounded, "PIPE_TIMEOUT_SECONDS", 20.0)
    path = tmp_path / "table.csv"
    os.mkfifo(path)

    def write() -> None:
        time.sleep(0.2)  # the reader is there first
        with path.open("w") as file:
            for start in range(0, len(TABLE), 200):
                file.write(TABLE[start : start + 200])
                file.flush()
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    assert len(read_table(path)) == 60
    writer.join()


def test_a_shells_pipe_is_a_table(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    words = f"{sys.executable} -c 'import sys; from widemargin.data.tabular.read import read_table; "
    words += "print(len(read_table(sys.argv[1])))' <(cat table.csv)"
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("60\n", "")


def write_gzipped_table(path: Path, rows: int) -> None:
    import gzip

    with gzip.open(path, "wb") as file:
        file.write(b"x,z,label\n")
        for k in range(rows // 1000):
            file.write(b"1,1,a\n1,2,b\n" * 500 + b"%x,1,a\n" % (hash(k) * 2**40 // 7))


def test_a_small_packed_table_takes_little_memory(tmp_path):
    path = tmp_path / "table.csv.gz"
    write_gzipped_table(path, 1_000_000)
    said = refusal_message(read_table, str(path), 64 << 20, tmp_path=tmp_path)
    assert "takes more than 64 MiB of memory as a table" in said
    assert f"a file of {path.stat().st_size:,} bytes" in said


def test_a_row_without_end_is_refused(tmp_path):
    (tmp_path / "wide.csv").write_bytes(b"a," * (20 << 20) + b"b\n")
    with pytest.raises(InputError, match=r"row 1: more than 16,777,216 characters"):
        read_table(str(tmp_path / "wide.csv"))
    (tmp_path / "quoted.csv").write_bytes(b"a,b\n" + b'"x\ny",' * (4 << 20) + b"b\n")
    with pytest.raises(InputError, match=r"row 2: more than 16,777,216 characters"):
        read_table(str(tmp_path / "quoted.csv"))
