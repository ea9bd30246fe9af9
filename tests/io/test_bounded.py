"""Files of a run, a model or a table that are pipes, devices, folders or gigabytes of holes: one line, little memory.

Every case runs in a process of its own whose growth is measured, with a time limit, so that a reader which waits for
ever or fills the memory fails its test and nothing else.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from stress import sandbox
from stress.corpus import load_corpus_files
from widemargin.io.errors import InputError

MOST_MEMORY = 300 << 20
SPARSE = 8 << 30
LAST = "checkpoints/last"


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch):
    monkeypatch.setattr(sandbox, "_PATIENCE", 30.0)


@pytest.fixture
def run(tmp_path) -> Path:
    """The folder of a small finished run."""
    good, place = load_corpus_files("run"), tmp_path / "run"
    (place / LAST).mkdir(parents=True)
    (place / "run.json").write_bytes(good["run.json"])
    for name in ("state.json", "model.safetensors", "training.safetensors"):
        (place / LAST / name).write_bytes(good[name])
    (place / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "loss": 1.0, "step": 5}) + "\n")
    (place / "record.json").write_text(json.dumps({"test": {"top1": 50.0}, "seconds": 1.0}))
    return place


def spoil(path: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(SPARSE)


def load_run(folder: str) -> None:
    from widemargin.training.run import load_run

    load_run(folder)


def load_hub(folder: str) -> None:
    from widemargin.loading import load

    load(folder)


def open_store(folder: str) -> None:
    from widemargin.tabular.results import ResultStore

    ResultStore(folder)


def resumed_log(folder: str) -> None:
    from widemargin.training.config import TrainConfig
    from widemargin.training.logging import MetricsLog

    MetricsLog(Path(folder), 1, [], TrainConfig())


def refused(call, *given, tmp_path: Path) -> str:
    """The line with which a call in a process of its own is refused; neither time nor memory is taken."""
    answer = sandbox.run_attempt(call, given, tmp_path, {})
    said = answer.message
    if answer.status == "returned":  # a command: the line is printed
        assert answer.exit_code == 2, answer
        lines = [line for line in answer.output.splitlines() if line.startswith("widemargin: ")]
        assert len(lines) == 1, answer
        said = lines[0]
    else:
        assert answer.status == "refused", answer
    assert "Traceback" not in answer.output
    assert answer.memory_growth < MOST_MEMORY, f"{answer.memory_growth >> 20} MiB"
    assert len(said) < 1000
    return said


KINDS = ("pipe", "device", "holes", "folder")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["run.json", *(f"{LAST}/{n}" for n in ("state.json", "model.safetensors"))])
def test_a_run_whose_files_are_none_is_refused(run, tmp_path, name, kind):
    spoil(run / name, kind)
    assert Path(name).name in refused(load_run, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["training.safetensors", "sha256.json"])
def test_a_checkpoint_whose_files_are_none_is_refused(run, tmp_path, name, kind):
    spoil(run / LAST / name, kind)
    assert "damaged" in refused(load_run, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_made_of_files_only(run, tmp_path, kind):
    (run / LAST / "sha256.json").write_text(json.dumps({"state.json": "0" * 64}))
    spoil(run / LAST / "state.json", kind)
    assert "damaged" in refused(load_run, str(run), tmp_path=tmp_path)


def test_sums_are_made_of_the_files_of_a_checkpoint_only(run, tmp_path):
    """One file under a million names would be read a million times."""
    names = {f"{number}/model.safetensors": "0" * 64 for number in range(1000)}
    (run / LAST / "sha256.json").write_text(json.dumps(names))
    assert "'0/model.safetensors', which is no file of a checkpoint" in refused(load_run, str(run), tmp_path=tmp_path)


def save_again(folder: str) -> None:
    from widemargin.training.checkpoint import save

    for spare in (True, False):
        save(Path(folder, LAST), {"a": torch.ones(2)}, {"b": torch.ones(2)}, {"epoch": 1}, keep_backup=spare)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["last.new", "last.old"])
def test_a_checkpoint_is_written_past_whatever_lies_there(run, tmp_path, name, kind):
    spoil(run / "checkpoints" / name, kind)
    answer = sandbox.run_attempt(save_again, (str(run),), tmp_path, {})
    assert answer.status == "returned", answer
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["last"]
    assert Path("/dev/zero").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "holes"])
def test_a_checkpoint_that_is_no_folder_is_told_instead_of_a_new_beginning(run, tmp_path, kind):
    (run / LAST).rename(run / "checkpoints" / "away")
    spoil(run / LAST, kind)
    assert "not a folder, as a checkpoint is" in refused(load_run, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_page_is_written_in_its_own_place(run, tmp_path, kind):
    victim, page = tmp_path / "victim", run / "report.html"
    victim.write_text("precious")
    page.symlink_to(victim) if kind == "link" else os.mkfifo(page)
    answer = sandbox.run_attempt(sandbox.run_cli, ("report", str(run), "--no-images"), tmp_path, {})
    assert (answer.status, answer.exit_code) == ("returned", 0), answer
    assert victim.read_text() == "precious"
    assert page.is_file()
    assert not page.is_symlink()


def test_results_that_lead_elsewhere_are_not_written_to(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.jsonl").symlink_to(victim)
    assert "results.jsonl is a link" in refused(open_store, str(tmp_path / "out"), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["metrics.jsonl", "record.json"])
def test_a_report_of_files_that_are_none_is_refused(run, tmp_path, name, kind):
    spoil(run / name, kind)
    said = refused(sandbox.run_cli, "report", str(run), "--no-images", tmp_path=tmp_path)
    assert name in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_is_none_is_not_resumed(run, tmp_path, kind):
    spoil(run / "metrics.jsonl", kind)
    assert "metrics.jsonl" in refused(resumed_log, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_results_that_are_no_file_are_refused(tmp_path, kind):
    spoil(tmp_path / "results.jsonl", kind)
    refused(open_store, str(tmp_path), tmp_path=tmp_path)


# ---------------------------------------------------------------- weights


def huge_weights(path: Path, count: int = SPARSE, name: str = "a") -> None:
    """A safetensors file of one tensor that is a hole."""
    header = json.dumps({name: {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + count)


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors"])
def test_weights_that_are_holes_are_not_read(run, tmp_path, name):
    huge_weights(run / LAST / name)
    assert "are holes; not read" in refused(load_run, str(run), tmp_path=tmp_path)


def test_weights_far_larger_than_the_network_are_not_read(run, tmp_path):
    tensors = {"a": torch.ones(400 << 20, dtype=torch.uint8)}
    save_file(tensors, run / LAST / "model.safetensors")
    assert "these weights are of another model" in refused(load_run, str(run), tmp_path=tmp_path)
    (run / LAST / "model.safetensors").write_bytes(load_corpus_files("run")["model.safetensors"])
    save_file({**tensors, "average.a": torch.ones(3)}, run / LAST / "training.safetensors")
    load_small = sandbox.run_attempt(
        load_run, (str(run),), tmp_path, {}
    )  # moments are no part of a model that is judged
    assert load_small.memory_growth < MOST_MEMORY


def test_more_weights_than_memory_are_one_line(tmp_path, monkeypatch):
    from widemargin.io import resources
    from widemargin.io.tensor_files import read_safetensors

    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    monkeypatch.setattr(resources, "available_memory", lambda: 3999)
    with pytest.raises(InputError, match=r"4,000 bytes of memory are needed, 3,999 are available"):
        read_safetensors(path)
    monkeypatch.setattr(resources, "available_memory", lambda: None)
    assert read_safetensors(path)["a"].shape == (1000,)


def test_memory_of_machine_and_container(tmp_path, monkeypatch):
    from widemargin.io import resources

    there = resources.available_memory()
    assert there is None or 0 < there < 1 << 50
    monkeypatch.setattr(resources, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    assert resources.available_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\n")
    assert resources.available_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   4 kB\nSwapFree: 3 kB\n")
    assert resources.available_memory() == 7 << 10
    for name, text in (("max", "5000\n"), ("current", "3000\n"), ("stat", "anon 1\ninactive_file 200\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert resources.available_memory() == 2200
    (tmp_path / "memory.max").write_text("max\n")
    assert resources.available_memory() == 7 << 10


def load_weights(path: str) -> None:
    from widemargin.head.import_weights import read_class_weights

    read_class_weights(path, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_other_libraries_that_are_none_are_refused(tmp_path, kind):
    spoil(tmp_path / "weights.pt", kind)
    assert "weights.pt" in refused(load_weights, str(tmp_path / "weights.pt"), tmp_path=tmp_path)


def test_a_long_list_of_members_is_not_read(tmp_path):
    from widemargin.io.tensor_files import TensorFileError, read_torch

    path = tmp_path / "weights.pt"
    torch.save({"weight": torch.ones(3)}, path)
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\5\6")
    data[place + 12 : place + 16] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(TensorFileError, match="a list of members of 1,073,741,824 bytes"):
        read_torch(path)


def load_shards(folder: str) -> None:
    from stress.checks.attack_pickles import load_shards

    load_shards(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["index.json", "__0_0.distcp"])
def test_sharded_checkpoints_whose_files_are_none_are_refused(tmp_path, name, kind):
    from stress.checks.attack_pickles import save_shards

    save_shards(str(tmp_path / "shards"))
    spoil(tmp_path / "shards" / name, kind)
    assert name in refused(load_shards, str(tmp_path / "shards"), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["widemargin.json", "model.safetensors"])
def test_a_hub_folder_whose_files_are_none_is_refused(run, tmp_path, name, kind):
    hub = tmp_path / "hub"
    hub.mkdir()
    state = json.loads((run / LAST / "state.json").read_bytes())
    facts = {"format": 1, "run": json.loads((run / "run.json").read_bytes()), "sees": state["sees"]}
    (hub / "widemargin.json").write_text(json.dumps(facts))
    (hub / "model.safetensors").write_bytes((run / LAST / "model.safetensors").read_bytes())
    load_hub(str(hub))
    spoil(hub / name, kind)
    assert str(hub) in refused(load_hub, str(hub), tmp_path=tmp_path)


# ---------------------------------------------------------------- locks


def lock(folder: str) -> None:
    from widemargin.io.locks import lock_folder

    with lock_folder(folder):
        pass


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_lock_that_is_no_file_is_refused(tmp_path, kind):
    spoil(tmp_path / ".lock", kind)
    assert "cannot be written" in refused(lock, str(tmp_path), tmp_path=tmp_path)


def test_a_lock_overwrites_nothing_elsewhere(tmp_path):
    (tmp_path / "precious").write_text("words")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="is a link"):
        lock(str(tmp_path / "run"))
    assert (tmp_path / "precious").read_text() == "words"


# ---------------------------------------------------------------- logs


def test_lines_and_logs_are_bounded(tmp_path):
    from widemargin.io.bounded import NotAFileError, TooLargeError, read_file, read_lines

    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nthree")
    assert list(read_lines(path)) == [b"one\n", b"two\n", b"three"]
    assert list(read_lines(path, max_bytes=13, max_line_bytes=5)) == [b"one\n", b"two\n", b"three"]
    with pytest.raises(TooLargeError, match="line 3 has more than 4 bytes"):
        list(read_lines(path, max_line_bytes=4))
    with pytest.raises(TooLargeError, match="13 bytes, more than 12 bytes"):
        list(read_lines(path, max_bytes=12))
    assert read_file(path, 13) == b"one\ntwo\nthree"
    with pytest.raises(TooLargeError, match="the most that is read"):
        read_file(path, 12)
    with pytest.raises(TooLargeError, match="more than 100 bytes"):
        read_file("/proc/self/status", 100)  # claims to have none
    with pytest.raises(NotAFileError, match="not a file but a folder"):
        read_file(tmp_path, 12)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nowhere", 12)


def test_json_of_a_million_lists_is_not_made(tmp_path):
    from widemargin.io import bounded

    with pytest.raises(InputError, match="more than 1,048,576 lists and objects"):
        bounded.parse_json(b"[" + b"[]," * bounded.MAX_JSON_CONTAINERS + b"1]", "it")


# ---------------------------------------------------------------- tables


TABLE = "x,z,label\n" + "".join(f"{k % 7 / 4},{k % 5},{'ab'[k % 2]}\n" for k in range(60))


def read_table(path: str, least: int | None = None) -> None:
    from widemargin.data.tabular import table
    from widemargin.data.tabular.read import read_table

    if least is not None:
        table.MIN_MEMORY_BUDGET = least
    read_table(path)


def read_pairs(path: str) -> None:
    from widemargin.recognition.protocols import read_pairs

    read_pairs(path)


def read_manifest(path: str) -> None:
    from widemargin.data.images.manifest import Manifest

    Manifest.read(Path(path))


def hash_picture(path: str) -> None:
    from widemargin.data.images.decode import hash_file

    hash_file(Path(path))


@pytest.mark.parametrize("kind", ["device", "holes", "folder"])
@pytest.mark.parametrize("call", [read_pairs, read_manifest, hash_picture])
def test_lists_of_files_that_are_none_are_refused(tmp_path, call, kind):
    spoil(tmp_path / "list.csv", kind)
    assert "list.csv" in refused(call, str(tmp_path / "list.csv"), tmp_path=tmp_path)


def test_pairs_may_come_through_a_pipe(tmp_path, monkeypatch):
    from widemargin.io import bounded
    from widemargin.recognition import protocols

    for name in "ab":
        (tmp_path / f"{name}.png").write_bytes(b"")
    path = tmp_path / "pairs.csv"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("a,b,same\na.png,b.png,1\n",))
    writer.start()
    assert protocols.read_pairs(path) == [(tmp_path / "a.png", tmp_path / "b.png", True)]
    writer.join()
    monkeypatch.setattr(bounded, "PIPE_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(InputError, match=r"pairs.csv: a pipe that has sent nothing for 0.2 s"):
        protocols.read_pairs(path)
    monkeypatch.setattr(protocols, "MAX_PAIRS_FILE_BYTES", 10)
    path.unlink()
    path.write_text("a,b,same\na.png,b.png,1\n")
    with pytest.raises(InputError, match="more than 10 bytes"):
        protocols.read_pairs(path)


@pytest.mark.parametrize("kind", ["device", "holes"])
def test_a_table_that_is_no_file_is_refused(tmp_path, kind):
    spoil(tmp_path / "table.csv", kind)
    assert "table.csv" in refused(read_table, str(tmp_path / "table.csv"), tmp_path=tmp_path)


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


def test_a_pipe_without_end_is_bounded(tmp_path):
    from widemargin.io.bounded import TooLargeError, read_stream

    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = subprocess.Popen(["sh", "-c", 'cat /dev/zero > "$0"', str(path)], stderr=subprocess.DEVNULL)
    try:
        with pytest.raises(TooLargeError, match="more than 1 MiB"):
            read_stream(path, 1 << 20, 20.0)
    finally:
        writer.wait(20)


def test_a_shells_pipe_is_a_table(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    words = f"{sys.executable} -c 'import sys; from widemargin.data.tabular.read import read_table; "
    words += "print(len(read_table(sys.argv[1])))' <(cat table.csv)"
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("60\n", "")


def gzipped(path: Path, rows: int) -> None:
    import gzip

    with gzip.open(path, "wb") as file:
        file.write(b"x,z,label\n")
        for k in range(rows // 1000):
            file.write(b"1,1,a\n1,2,b\n" * 500 + b"%x,1,a\n" % (hash(k) * 2**40 // 7))


def test_a_small_packed_table_takes_little_memory(tmp_path):
    path = tmp_path / "table.csv.gz"
    gzipped(path, 1_000_000)
    said = refused(read_table, str(path), 64 << 20, tmp_path=tmp_path)
    assert "takes more than 64 MiB of memory as a table" in said
    assert f"a file of {path.stat().st_size:,} bytes" in said


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
        words = "no column to learn from"
    pq.write_table(table, path, compression="zstd", use_dictionary=what != "plain")
    assert path.stat().st_size < 200_000
    least = None if what in ("words", "lists") else 16 << 20
    assert words in refused(read_table, str(path), least, tmp_path=tmp_path)


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


def test_a_row_without_end_is_refused(tmp_path):
    (tmp_path / "wide.csv").write_bytes(b"a," * (20 << 20) + b"b\n")
    with pytest.raises(InputError, match=r"row 1: more than 16,777,216 characters"):
        read_table(str(tmp_path / "wide.csv"))
    (tmp_path / "quoted.csv").write_bytes(b"a,b\n" + b'"x\ny",' * (4 << 20) + b"b\n")
    with pytest.raises(InputError, match=r"row 2: more than 16,777,216 characters"):
        read_table(str(tmp_path / "quoted.csv"))


def test_a_table_that_becomes_too_many_columns_is_refused(tmp_path, monkeypatch):
    from widemargin.data.tabular import table as table_module
    from widemargin.data.tabular.encode import encode
    from widemargin.data.tabular.read import read_table

    path = tmp_path / "levels.csv"
    path.write_text("x,c,label\n" + "".join(f"{k},w{k % 30},{'ab'[k % 2]}\n" for k in range(300)))
    table = read_table(path)
    assert encode(table).x.shape == (300, 31)
    monkeypatch.setattr(table_module, "MAX_CELLS", 300 * 31)
    with pytest.raises(InputError, match=r"300 rows of 32 columns after encoding, more than 9,300 cells"):
        encode(table)


# ---------------------------------------------------------------- images and sizes


def png(path: Path, wide: int, tall: int) -> None:
    """A black picture of one bit a pixel."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = bytes(1 + (wide + 7) // 8)
    packed = b"".join(packer.compress(row * min(10_000, tall - top)) for top in range(0, tall, 10_000))
    header = struct.pack(">IIBBBBB", wide, tall, 1, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", packed + packer.flush()), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def read_picture(path: str) -> None:
    from widemargin.data.images.decode import read_image, resize_and_centre_crop

    resize_and_centre_crop(read_image(Path(path)), 32)


@pytest.mark.parametrize("sides", [(1, 30_000_000), (30_000_000, 1), (65_536, 1)])
def test_a_ribbon_is_refused_by_its_header(tmp_path, sides):
    png(tmp_path / "ribbon.png", *sides)
    said = refused(read_picture, str(tmp_path / "ribbon.png"), tmp_path=tmp_path)
    assert f"{sides[0]:,} × {sides[1]:,} pixels, more than 65,535 along a side" in said


def test_a_long_picture_within_the_bounds_is_read(tmp_path):
    png(tmp_path / "ribbon.png", 65_535, 2)
    read_picture(str(tmp_path / "ribbon.png"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_that_is_no_file_is_refused(tmp_path, kind):
    spoil(tmp_path / "picture.webp", kind)
    assert "picture.webp" in refused(read_picture, str(tmp_path / "picture.webp"), tmp_path=tmp_path)


def test_large_pictures_are_decoded_one_at_a_time(tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from widemargin.data.images import decode

    png(tmp_path / "picture.png", 64, 64)
    held = []

    def use(_: int) -> int:
        with decode.open_decoded_image(tmp_path / "picture.png"):
            held.append(1)
            time.sleep(0.02)
            most = len(held)
            held.pop()
        return most

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(use, range(8))) > 1
        monkeypatch.setattr(decode, "_SERIAL_DECODE_PIXELS", 1000)
        assert max(pool.map(use, range(8))) == 1


def test_the_size_of_a_runs_images_is_bounded(run, tmp_path):
    from widemargin.training.config import TrainConfig

    for size in (4097, 65_536, 0, 2.0, True):
        settings = json.loads((run / "run.json").read_bytes())
        (run / "run.json").write_text(json.dumps({**settings, "input_size": size}))
        with pytest.raises(InputError, match=r"input_size must be a whole number from 1 to 4,096"):
            TrainConfig.read(run)
    assert TrainConfig(input_size=4096).input_size == 4096
    state = json.loads((run / LAST / "state.json").read_bytes())
    (run / "run.json").write_bytes(load_corpus_files("run")["run.json"])
    (run / LAST / "state.json").write_text(json.dumps({**state, "sees": {**state["sees"], "size": 65_536}}))
    assert "sees.size is no whole number from 1 to 4,096" in refused(load_run, str(run), tmp_path=tmp_path)


def test_fewer_images_are_judged_at_once_where_they_are_large(run, tmp_path, monkeypatch):
    from widemargin.training import inputs
    from widemargin.training.run import load_run

    for number in range(5):
        png(tmp_path / f"{number}.png", 20 + number, 30)
    done = load_run(run)
    paths, sizes = [tmp_path / f"{number}.png" for number in range(5)], []
    wanted = done.embed_files(paths)
    embed = done.model.embed
    monkeypatch.setattr(done.model, "embed", lambda x: sizes.append(len(x)) or embed(x))
    monkeypatch.setattr(inputs, "_MAX_BATCH_VALUES", 2 * done.input_spec["channels"] * done.input_spec["size"] ** 2)
    torch.testing.assert_close(done.embed_files(paths), wanted)
    assert sizes == [2, 2, 1]


def test_memory_that_torch_has_not_is_one_line(capsys, monkeypatch):
    from widemargin.cli.main import main
    from widemargin.viz import terminal

    def fails(*_: object) -> None:
        torch.empty(1 << 50)

    monkeypatch.setattr(terminal, "print_losses", fails)
    assert main.main(["losses"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("widemargin: out of memory; take a smaller --batch-size")
    assert said.count("\n") == 1

    def other(*_: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(terminal, "print_losses", other)
    with pytest.raises(RuntimeError, match="something else"):
        main.main(["losses"])


# ---------------------------------------------------------------- error lines


@pytest.mark.parametrize("letter", ["z", "\U000e0001", "\x1b", "\n"])
def test_error_lines_are_short_whatever_they_quote(letter, capsys, tmp_path, monkeypatch):
    from widemargin.cli.main import main

    monkeypatch.chdir(tmp_path)
    name = letter * 100_000
    for words in (["report", name], ["compare", name], ["train", "mnist", "--out", name], ["losses", name]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert said.startswith("widemargin: ")
        assert len(said) <= 1001, words


def test_notes_and_warnings_are_short_too(capsys):
    import warnings

    from widemargin.io.text import plain_warnings, print_escaped

    print_escaped("x" * 10**6, to_stderr=True)
    with plain_warnings():
        print(warnings.formatwarning("y" * 10**6, UserWarning, "file.py", 1), file=sys.stderr)
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert [line[-1] for line in lines] == ["x", "y"]
    assert all(len(line) <= 1000 for line in lines)


def test_quoted_values_are_far_shorter():
    from widemargin.data.tabular.table import quote_cell
    from widemargin.io.errors import shorten, unknown_name_error

    for text in ("x" * 10**6, "\x1b" * 10**6, "\U000e0001" * 10**6, "\n" * 10**6):
        assert len(shorten(text)) <= 80
        assert len(quote_cell(text)) <= 82
        assert len(str(unknown_name_error("loss", text, ["softmax"]))) < 300


# ---------------------------------------------------------------- Parquet and torch in one process


@pytest.fixture
def refused_parquet(tmp_path) -> Path:
    """Two columns of bytes, from which nothing can be learnt, and one that can be read."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "bytes.parquet"
    pq.write_table(pa.table({"x": [b"1", b"2"] * 20, "z": [1.5, 2.5] * 20, "y": [b"a", b"b"] * 20}), path)
    return path


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_parquet_is_read_without_threads(refused_parquet):
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
    words = [sys.executable, "-c", code, str(refused_parquet)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "no column to learn from" in done.stdout
    assert done.stdout.endswith("0 threads more\n")


def test_refused_parquet_files_leave_with_code_2(refused_parquet):
    words = [sys.executable, "-m", "widemargin", "compare", str(refused_parquet)]
    several = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    ends = [(process.communicate(timeout=120), process.returncode) for process in several]
    for (said, complained), code in ends:
        assert (code, said) == (2, "")
        assert complained.startswith("widemargin: ")
        assert complained.count("\n") == 1
