"""Work on several processes: everything is done, told and cleared away, whatever happens to a worker."""

import os
import signal
import time
from contextlib import closing

import pytest

from widemargin.errors import InputError
from widemargin.pool import run_all


def square(value, told):
    for _ in range(4):
        told(0.25)
    return value * value, os.getpid(), os.environ.get("OMP_NUM_THREADS")


def slow(value, told):
    told(0.5)
    time.sleep(60 if value else 0)
    return os.getpid()


def fails(value, told):
    if value == 2:
        raise InputError("two is refused")
    return 1 / (value - 1)


def dies(value, told):
    if value == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("processes", [1, 2, 3, 99])
def test_every_job_is_done_once_and_all_of_it_told(processes):
    shares = []
    found = list(run_all(square, [(value,) for value in range(5)], processes, shares.append))
    assert sorted(value for value, _, _ in found) == [0, 1, 4, 9, 16]
    assert sum(shares) == pytest.approx(5)
    pids = {pid for _, pid, _ in found}
    if processes == 1:
        assert pids == {os.getpid()}
    else:
        assert os.getpid() not in pids
        assert len(pids) <= 5
        assert {threads for _, _, threads in found} == {"1"}
        assert all(map(gone, pids))


def test_the_environment_stays_as_it_was(monkeypatch):
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    list(run_all(square, [(1,), (2,)], 2, lambda share: None))
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


@pytest.mark.parametrize("processes", [1, 2])
def test_a_mistake_in_a_job_is_told_as_it_is(processes):
    with pytest.raises(InputError) as caught:
        list(run_all(fails, [(2,), (3,)], processes, lambda share: None))
    assert str(caught.value) == "two is refused"


def test_an_error_in_a_worker_says_where():
    with pytest.raises(ZeroDivisionError) as caught:
        list(run_all(fails, [(3,), (1,)], 2, lambda share: None))
    assert "in fails" in caught.value.__notes__[0]


def test_a_worker_that_dies_is_one_line():
    with pytest.raises(InputError, match="a worker process died, most likely for lack of memory; try --jobs 1"):
        list(run_all(dies, [(2,), (3,), (4,)], 2, lambda share: None))


def test_leaving_early_ends_the_workers_at_once():
    begun = time.monotonic()
    with closing(run_all(slow, [(0,), (1,), (1,), (1,)], 2, lambda share: None)) as results:
        pid = next(results)
        assert not gone(pid)
    assert gone(pid)
    assert time.monotonic() - begun < 30
