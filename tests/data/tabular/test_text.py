"""Tables in text: through pipes, packed, without end, and names that belong to no file."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from refusals import read_table, refusal_message, replace_with
from widemargin.io.errors import InputError

TABLE = "x,z,label\n" + "".join(f"{k % 7 / 4},{k % 5},{'ab'[k % 2]}\n" for k in range(60))


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
