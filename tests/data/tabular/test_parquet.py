"""Parquet files: sizes are looked at before anything is unpacked, and reading starts no threads."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refusals import read_table, refusal_message
from widemargin.io.errors import InputError


@pytest.mark.parametrize("what", ["rows", "words", "lists", "plain"])
def test_a_small_parquet_file_takes_little_memory(tmp_path, what):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path, count = tmp_path / "table.parquet", 200_000
    label = pa.DictionaryArray.from_arrays(pa.array([0, 1] * (count // 2), pa.int32()), pa.array(["a", "b"]))
    if what == "rows":
        table, words = pa.table({"x": [0.5, 1.5] * (count // 2), "y": label}), "takes more than 16 MiB of memory"
    elif what == "words":
        long = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * 100_000]))
        table, words = pa.table({"x": long, "y": label}), "words of more than 1,073,741,824 characters"
    elif what == "plain":
        table, words = pa.table({"x": ["x" * 100_000] * 2000, "y": ["a", "b"] * 1000}), "takes more than 16 MiB"
    else:
        inner = pa.array(np.ones(30_000_000, dtype=np.int8))
        table = pa.table({"l": pa.ListArray.from_arrays([0, 15_000_000, 30_000_000], inner), "y": ["a", "b"]})
        words = "columns can be read"
    pq.write_table(table, path, compression="zstd", use_dictionary=what != "plain")
    assert path.stat().st_size < 200_000
    least = None if what in ("words", "lists") else 16 << 20
    assert words in refusal_message(read_table, str(path), least, tmp_path=tmp_path)


def test_pages_say_how_large_they_are(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    from widemargin.data.tabular.parquet import PageError, largest_page

    table = pa.table({"x": [k / 7 for k in range(3000)], "s": [f"word {k}" for k in range(3000)]})
    for version in ("1.0", "2.0"):
        for codec in ("none", "zstd"):
            path = tmp_path / "pages.parquet"
            pq.write_table(table, path, data_page_version=version, compression=codec, use_dictionary=["s"])
            data, told = path.read_bytes(), pq.read_metadata(path).row_group(0)
            for number in range(2):
                chunk = told.column(number)
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                found = largest_page(data, start, start + chunk.total_compressed_size)
                assert 0.5 * chunk.total_uncompressed_size < found < chunk.total_uncompressed_size
    for start, end in ((-1, 5), (5, len(data) + 1), (0, 30), (len(data) - 1, len(data))):
        with pytest.raises(PageError):
            largest_page(data, start, end)


def test_the_parts_of_columns_are_those_that_pyarrow_finds(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    from widemargin.data.tabular.parquet import PageError, column_chunks

    path = tmp_path / "chunks.parquet"
    columns = {f"c{k}": [float(k)] * 300 for k in range(20)}  # more than a list's short form counts
    table = pa.table({**columns, "s": [f"word {k % 9}" for k in range(300)], "l": [[1, 2]] * 300})
    pq.write_table(table, path, row_group_size=100, compression="zstd", write_page_index=True)
    told, found = pq.read_metadata(path), list(column_chunks(path.read_bytes()))
    known = [told.row_group(row).column(column) for row in range(3) for column in range(22)]
    assert [chunk.unpacked_bytes for chunk in found] == [chunk.total_uncompressed_size for chunk in known]
    assert [chunk.end - chunk.start for chunk in found] == [chunk.total_compressed_size for chunk in known]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in known]
    assert [chunk.start for chunk in found] == starts
    for data in (b"", b"PAR1", b"PAR1PAR1PAR1", path.read_bytes()[:-1], path.read_bytes()[:-8] + b"\xff\xff\0\0PAR1"):
        with pytest.raises(PageError):
            list(column_chunks(data))


def test_a_page_that_claims_more_than_its_file_says_is_not_unpacked(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    from widemargin.data.tabular import table
    from widemargin.data.tabular.read import read_table

    monkeypatch.setattr(table, "MIN_MEMORY_BUDGET", 64 << 20)
    path = tmp_path / "table.parquet"
    table = pa.table({"x": [0.5, 1.5] * 70_000, "y": ["a", "b"] * 70_000})
    one_page = {"data_page_size": 16 << 20, "max_rows_per_page": 1 << 20}
    pq.write_table(table, path, use_dictionary=["y"], compression="zstd", **one_page)
    assert len(read_table(path)) == 140_000
    data = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    assert data[start : start + 3] == b"\x15\x00\x15"  # the page's type, then its size in seven bits a byte
    size = sum((data[start + 3 + k] & 127) << 7 * k for k in range(4)) // 2
    assert 1_120_000 <= size < 1_130_000
    data[start + 3 : start + 7] = b"\xfe\xff\xff\x7f"  # 128 MiB
    path.write_bytes(data)
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size < 1_200_000
    with pytest.raises(InputError, match="takes more than 64 MiB of memory"):
        read_table(path)


# ---------------------------------------------------------------- with torch in one process


@pytest.fixture
def unusable_parquet(tmp_path) -> Path:
    """Two columns of bytes, from which nothing can be learnt, and one that can be read."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "bytes.parquet"
    pq.write_table(pa.table({"x": [b"1", b"2"] * 20, "z": [1.5, 2.5] * 20, "y": [b"a", b"b"] * 20}), path)
    return path


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_parquet_is_read_without_threads(unusable_parquet):
    code = """
import os, sys
import torch
import pyarrow.parquet
from widemargin.data.tabular.read import read_table
before = len(os.listdir("/proc/self/task"))
try:
    read_table(sys.argv[1])
except ValueError as error:
    print(error)
print(len(os.listdir("/proc/self/task")) - before, "threads more")
"""
    words = [sys.executable, "-c", code, str(unusable_parquet)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "columns can be read" in done.stdout
    assert done.stdout.endswith("0 threads more\n")


@pytest.mark.slow
def test_refused_parquet_files_leave_with_code_2(unusable_parquet):
    words = [sys.executable, "-m", "widemargin", "compare", str(unusable_parquet)]
    several = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    ends = [(process.communicate(timeout=120), process.returncode) for process in several]
    for (said, complained), code in ends:
        assert (code, said) == (2, "")
        assert complained.startswith("widemargin: ")
        assert complained.count("\n") == 1
