"""Work on several processes: everything is done, reported and cleared away, whatever happens to a worker."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from widemargin.io.errors import InputError
from widemargin.io.worker_pool import run_all


def square(value, on_progress):
    for _ in range(4):
        on_progress(0.25)
    return value * value, os.getpid(), os.environ.get("OMP_NUM_THREADS")


def slow(value, on_progress):
    on_progress(0.5)
    time.sleep(60 if value else 0)
    return os.getpid()


def fails(value, on_progress):
    if value == 2:
        raise InputError("two is refused")
    return 1 / (value - 1)


def dies(value, on_progress):
    if value == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def is_unknown(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("processes", [1, 2, 3, 99])
def test_every_job_is_done_once_and_all_of_it_told(processes):
    fractions = []
    found = list(run_all(square, [(value,) for value in range(5)], processes, fractions.append))
    assert sorted(value for value, _, _ in found) == [0, 1, 4, 9, 16]
    assert sum(fractions) == pytest.approx(5)
    pids = {pid for _, pid, _ in found}
    if processes == 1:
        assert pids == {os.getpid()}
    else:
        assert os.getpid() not in pids
        assert len(pids) <= 5
        assert {threads for _, _, threads in found} == {"1"}
        assert all(map(is_unknown, pids))


def test_the_environment_stays_as_it_was(monkeypatch):
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    list(run_all(square, [(1,), (2,)], 2, lambda fraction: None))
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


@pytest.mark.parametrize("processes", [1, 2])
def test_a_mistake_in_a_job_is_told_as_it_is(processes):
    with pytest.raises(InputError) as caught:
        list(run_all(fails, [(2,), (3,)], processes, lambda fraction: None))
    assert str(caught.value) == "two is refused"


def test_an_error_in_a_worker_says_where():
    with pytest.raises(ZeroDivisionError) as caught:
        list(run_all(fails, [(3,), (1,)], 2, lambda fraction: None))
    assert "in fails" in caught.value.__notes__[0]


def test_a_worker_that_dies_is_one_line():
    with pytest.raises(InputError, match=r"worker process died.*jobs=1"):
        list(run_all(dies, [(2,), (3,), (4,)], 2, lambda fraction: None))


def test_leaving_early_ends_the_workers_at_once():
    begun = time.monotonic()
    with closing(run_all(slow, [(0,), (1,), (1,), (1,)], 2, lambda fraction: None)) as results:
        pid = next(results)
        assert not is_unknown(pid)
    assert is_unknown(pid)
    assert time.monotonic() - begun < 30


def busy(kind, on_progress):
    """Work without progress for a minute: in Python, in the system, or in one long call that keeps Python's lock."""
    os.write(1, f"PID {os.getpid()}\n".encode())  # in one piece
    begun = time.monotonic()
    while time.monotonic() - begun < 60:
        if kind == "sleeping":
            time.sleep(60)
        elif kind == "locked":
            sum(range(3_000_000_000))


PARENT = """
import sys, threading
import test_worker_pool
from widemargin.io.worker_pool import run_all

def work():
    for _ in run_all(test_worker_pool.busy, [(sys.argv[1],), (sys.argv[1],)], 2, lambda fraction: None):
        pass

if __name__ == "__main__":
    if sys.argv[2] == "thread":
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
"""


def has_ended(pid):
    """Whether a process computes no more; one that nobody has waited for is still listed."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("kind", "where"), [("counting", "main"), ("sleeping", "main"), ("locked", "main"), ("counting", "thread")]
)
def test_workers_end_with_a_first_process_that_is_killed(kind, where, tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    words = [sys.executable, str(tmp_path / "parent.py"), kind, where]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        pids = [int(parent.stdout.readline().removeprefix("PID ")) for _ in range(2)]
        assert not any(map(has_ended, pids))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    begun = time.monotonic()
    while not all(map(has_ended, pids)) and time.monotonic() - begun < 20:
        time.sleep(0.02)
    left = [pid for pid in pids if not has_ended(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert time.monotonic() - begun < 5  # at once, but for what a busy machine adds
