"""Independent pieces of work on several processes, with progress and a way to stop at once."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from .errors import InputError

T = TypeVar("T")

Told = Callable[[float], None]
_reports: Any = None
_stop: Any = None


def run_all(work: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int, told: Told) -> Iterator[T]:
    """`work(*job, told)` for every job, results as they come; `told` hears shares of a job."""
    processes = min(processes, len(jobs))
    if processes <= 1:
        for job in jobs:
            yield work(*job, told)
        return
    context = multiprocessing.get_context("spawn")  # safe with threads, and the same on every system
    reports, stop = context.Queue(), context.Event()
    with _one_thread_each():
        executor = ProcessPoolExecutor(processes, context, _prepare, (reports, stop))
        waiting: set[Future[T]] = {executor.submit(_reporting, work, job) for job in jobs}
    try:
        while waiting:
            done, waiting = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            _drain(reports, told)
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise InputError(
            "a worker process died, most likely for lack of memory; try --jobs 1. What was done is kept"
        ) from None
    finally:
        stop.set()
        executor.shutdown(wait=True, cancel_futures=True)
        _drain(reports, told)


class _one_thread_each:  # noqa: N801 - reads as what it does
    """Workers started inside compute with one thread: as many workers as cores need no more."""

    NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

    def __enter__(self) -> None:
        self.before = {name: os.environ.get(name) for name in self.NAMES}
        os.environ.update(dict.fromkeys(self.NAMES, "1"))

    def __exit__(self, *error: object) -> None:
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _prepare(reports: Any, stop: Any) -> None:
    global _reports, _stop  # the one way to hand a queue to a worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears the interrupt and says stop
    _reports, _stop = reports, stop


def _reporting(work: Callable[..., T], job: tuple[Any, ...]) -> T:
    last = [time.monotonic(), 0.0]

    def told(share: float) -> None:
        if _stop.is_set():
            raise InputError("stopped")
        last[1] += share
        if time.monotonic() - last[0] > 0.1:  # a report now and then is enough
            _reports.put(last[1])
            last[:] = [time.monotonic(), 0.0]

    result = work(*job, told)
    _reports.put(last[1])
    return result


def _drain(reports: Any, told: Told) -> None:
    while True:
        try:
            told(reports.get_nowait())
        except queue.Empty:
            return
