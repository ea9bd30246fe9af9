"""Readers of files that others may have written: bytes, lines, pipes and JSON are bounded, and only files are read."""

import os
import subprocess
import threading

import pytest

from refusals import FILE_KINDS, hash_picture, open_store, read_manifest, read_pairs, refusal_message, replace_with
from widemargin.io.errors import InputError


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
    with pytest.raises(TooLargeError, match="more than 12 bytes"):
        read_file(path, 12)
    with pytest.raises(TooLargeError, match="more than 100 bytes"):
        read_file("/proc/self/status", 100)  # claims to have none
    with pytest.raises(NotAFileError, match="not a file but a folder"):
        read_file(tmp_path, 12)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nowhere", 12)


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


def test_json_of_a_million_lists_is_not_made(tmp_path):
    from widemargin.io import bounded

    with pytest.raises(InputError, match="more than 1,048,576 lists and objects"):
        bounded.parse_json(b"[" + b"[]," * bounded.MAX_JSON_CONTAINERS + b"1]", "it")


@pytest.mark.parametrize("kind", ["device", "holes", "folder"])
@pytest.mark.parametrize("call", [read_pairs, read_manifest, hash_picture])
def test_lists_of_files_that_are_none_are_refused(tmp_path, call, kind):
    replace_with(tmp_path / "list.csv", kind)
    assert "list.csv" in refusal_message(call, str(tmp_path / "list.csv"), tmp_path=tmp_path)


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
    with pytest.raises(InputError, match=r"pairs.csv: .*0.2 s"):
        protocols.read_pairs(path)
    monkeypatch.setattr(protocols, "MAX_PAIRS_FILE_BYTES", 10)
    path.unlink()
    path.write_text("a,b,same\na.png,b.png,1\n")
    with pytest.raises(InputError, match="more than 10 bytes"):
        protocols.read_pairs(path)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_results_that_are_no_file_are_refused(tmp_path, kind):
    replace_with(tmp_path / "results.jsonl", kind)
    refusal_message(open_store, str(tmp_path), tmp_path=tmp_path)


def test_results_that_lead_elsewhere_are_not_written_to(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.jsonl").symlink_to(victim)
    assert "results.jsonl is a symbolic link" in refusal_message(open_store, str(tmp_path / "out"), tmp_path=tmp_path)
