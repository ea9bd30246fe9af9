"""Locks on folders: real processes, killed ones, children that outlive them, and lock files that are no files."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refusals import lock_and_release, refusal_message, replace_with
from widemargin.cli.main import main
from widemargin.io.errors import InputError
from widemargin.io.locks import LOCK_FILE_NAME, lock_folder

HOLD = """
import os, sys, time
from widemargin.io.locks import lock_folder
with lock_folder(sys.argv[1]):
    child = os.fork() if sys.argv[2] == "child" else 1
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60)
"""


def start_holder(folder: Path, kind: str = "alone") -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), kind], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.first = process.stdout.readline().strip()
    return process


def test_another_process_is_refused_by_name_and_a_killed_one_keeps_nothing(tmp_path):
    folder = tmp_path / "new" / "folder"
    process = start_holder(folder)
    try:
        with (
            pytest.raises(InputError, match=f"process {process.pid} on ") as refused,
            lock_folder(folder),
        ):
            pass
        assert "\n" not in str(refused.value)
    finally:
        process.kill()
        process.communicate()
    assert (folder / LOCK_FILE_NAME).exists()  # nobody was left to take it away
    with lock_folder(folder):
        pass
    assert not (folder / LOCK_FILE_NAME).exists()


def test_a_child_that_outlives_its_parent_keeps_no_lock(tmp_path):
    process = start_holder(tmp_path, "child")
    child = int(process.first)
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)  # alive, with the lock's file open
        with lock_folder(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_the_same_process_is_refused_too(tmp_path):
    with (
        lock_folder(tmp_path / "run"),
        pytest.raises(InputError, match=f"process {os.getpid()}"),
        lock_folder(tmp_path / "run"),
    ):
        pass
    with lock_folder(tmp_path / "run"):
        pass


def test_a_folder_that_was_only_locked_goes_again(tmp_path):
    with pytest.raises(ValueError, match="wrong"), lock_folder(tmp_path / "a" / "b"):
        raise ValueError("wrong")
    assert list(tmp_path.iterdir()) == []
    with lock_folder(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "kept").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["kept"]


def test_only_one_of_many_has_it_at_any_time(tmp_path):
    """Twelve processes take it again and again; whoever is in counts up a file without any lock of its own."""
    work = """
import sys, time
from pathlib import Path
from widemargin.io.errors import InputError
from widemargin.io.locks import lock_folder
folder, done, until = Path(sys.argv[1]), 0, time.monotonic() + 30
while done < 20 and time.monotonic() < until:
    try:
        with lock_folder(folder):
            there = int((folder / "count").read_text() or 0)
            time.sleep(0.0005)
            (folder / "count").write_text(str(there + 1))
            done += 1
    except InputError:
        time.sleep(0.0005)
print(done)
"""
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-c", work, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    done = sum(int(process.communicate(timeout=120)[0]) for process in processes)
    assert done > 0
    assert int((tmp_path / "count").read_text()) == done


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"), lock_folder(tmp_path / "file" / "run"):
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_goes_without(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run" / "kept").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["kept"]


def test_compare_is_refused_beside_another(tmp_path, capsys):
    process = start_holder(tmp_path / "out")
    try:
        begun = time.monotonic()
        assert main(["compare", "iris", "--losses", "softmax", "--out", str(tmp_path / "out")]) == 2
        assert time.monotonic() - begun < 30
    finally:
        process.kill()
        process.communicate()
    said = capsys.readouterr().err.strip().splitlines()
    assert f"process {process.pid} on" in said[-1]
    assert not (tmp_path / "out" / "results.jsonl").exists()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_lock_that_is_no_file_is_refused(tmp_path, kind):
    replace_with(tmp_path / ".lock", kind)
    assert "cannot be written" in refusal_message(lock_and_release, str(tmp_path), tmp_path=tmp_path)


def test_a_lock_overwrites_nothing_elsewhere(tmp_path):
    (tmp_path / "precious").write_text("words")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="is a link"):
        lock_and_release(str(tmp_path / "run"))
    assert (tmp_path / "precious").read_text() == "words"
