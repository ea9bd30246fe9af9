"""Independent pieces of work on several processes, with progress and a way to stop at once.

Every worker has a pipe of its own to the first process and shares no lock with anyone: it can be ended at any
moment, its death is seen at once, and when the first process dies, however it does, the workers end with it: the
system is asked for that where it can do it (Linux), a thread watches for it everywhere, and the pipe breaks.

Not by joblib: it reports whole jobs only, and its busy workers outlive a first process that is killed.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, resource_tracker
from types import ModuleType
from typing import Any, TypeVar

from .errors import InputError, option_style, spell_option, writes_flags
from .resources import temporary_environment

T = TypeVar("T")

ProgressCallback = Callable[[float], None]
MAX_PROCESSES = 60  # Windows waits for no more than 63 things at once
_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
_THREAD_COUNT_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_starting = threading.Lock()  # the environment and the main module belong to all threads


def run_all(
    work: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int, on_progress: ProgressCallback
) -> Generator[T, None, None]:
    """`work(*job, on_progress)` for every job, results as they come; `on_progress` gets fractions of a job.

    `work` must be a function of an importable module: workers do not import the program's main module, so that a
    script needs no `if __name__ == "__main__"`. A daemon of multiprocessing, which may start no processes, does all
    work itself.
    """
    processes = min(processes, len(jobs), MAX_PROCESSES)
    if processes <= 1 or multiprocessing.current_process().daemon:
        for job in jobs:
            yield work(*job, on_progress)
        return
    workers: dict[Any, Any] = {}  # pipe → process
    try:
        # As many workers as cores need one thread each.
        one_thread = temporary_environment(dict.fromkeys(_THREAD_COUNT_VARIABLES, "1"))
        with hide_main_module(), one_thread, block_sigint():
            for _ in range(processes):
                _start_worker(workers)
        yield from _iter_results(work, jobs, workers, on_progress)
    except (EOFError, ConnectionError):
        raise InputError(
            f"a worker process died, most likely for lack of memory; use {spell_option('jobs', 1)}. Finished work is "
            "kept"
        ) from None
    finally:
        for process in workers.values():
            process.terminate()
        for pipe, process in workers.items():
            process.join()
            pipe.close()


def _start_worker(workers: dict[Any, Any]) -> None:
    context = multiprocessing.get_context("spawn")  # safe with threads, and the same on every system
    ours, theirs = context.Pipe()
    # Linux ends a child with the thread that started it, which is the process's own life for the main thread only.
    in_main_thread = threading.current_thread() is threading.main_thread()
    arguments = (theirs, os.getpid() if in_main_thread else None, writes_flags())
    process = context.Process(target=_worker_main, args=arguments, daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends with the worker
    workers[ours] = process


@contextmanager
def hide_main_module() -> Iterator[None]:
    """Workers started inside do not import the program's main module, which `spawn` would run anew in each of them.

    Without it a script that calls `compare` or `train` and has no `if __name__ == "__main__"` would start itself over
    and over.
    """
    with _starting:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # of no file: there is nothing to import
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _iter_results(
    work: Callable[..., T], jobs: Sequence[tuple[Any, ...]], workers: dict[Any, Any], on_progress: ProgressCallback
) -> Iterator[T]:
    waiting = iter(jobs)
    busy = list(workers)
    for pipe in busy:
        pipe.send((work, next(waiting)))
    while busy:
        ready: list[Any] = list(connection.wait(busy))
        for pipe in ready:
            kind, value = pipe.recv()
            if kind == "fraction":
                on_progress(value)
                continue
            if kind == "error":
                raise value
            job = next(waiting, None)
            if job is None:
                busy.remove(pipe)
            else:
                pipe.send((work, job))  # before the caller processes the result
            yield value


@contextmanager
def block_sigint() -> Iterator[None]:
    """Block SIGINT for workers started inside, also while they import; the first process gets it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # multiprocessing starts a process of its own with the first worker, and lets interrupts through after it.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker_main(pipe: Any, parent_pid: int | None, command_line: bool) -> None:
    """Run one job after the other until the pipe breaks; messages name options as the first process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process handles the interrupt and ends its workers
    end_with_parent(parent_pid)
    try:
        while True:
            work, job = pipe.recv()
            on_progress = _ProgressSender(pipe)
            try:
                with option_style(command_line=command_line):
                    answer = "done", work(*job, on_progress)
                on_progress.send()
            except ConnectionError:
                raise
            except Exception as error:
                error.add_note(f"in a worker process:\n{traceback.format_exc()}")
                answer = "error", error
            pipe.send(answer)
    except (EOFError, ConnectionError):
        return  # the first process is no more


def end_with_parent(parent_pid: int | None) -> None:
    """End this process as soon as the one that started it has ended, without finishing its work.

    `parent_pid` is the id of that process, if its main thread has started this one.
    """
    if parent_pid is not None and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent_pid:  # it ended before prctl was called
            os._exit(1)
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    started_by = multiprocessing.parent_process()
    if started_by is not None:
        connection.wait([started_by.sentinel])
        os._exit(1)


class _ProgressSender:
    """Collects fractions of a job and sends their sum to the first process, ten times a second at most."""

    def __init__(self, pipe: Any) -> None:
        self.pipe, self.fraction, self.last_sent = pipe, 0.0, time.monotonic()

    def __call__(self, fraction: float) -> None:
        self.fraction += fraction
        if time.monotonic() - self.last_sent > 0.1:
            self.send()

    def send(self) -> None:
        """Send the fraction that was not sent yet."""
        self.pipe.send(("fraction", self.fraction))
        self.fraction, self.last_sent = 0.0, time.monotonic()


def peak_memory(processes: int) -> float | None:
    """MiB that this process and so many workers held at the most, from above; None where the system does not tell.

    Largest sizes of this process and of the largest worker, as often as there are workers; pages they share count
    for each of them.
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    unit = 1024.0 if os.uname().sysname != "Darwin" else 1024.0 * 1024.0
    return (own + (processes * largest if processes > 1 else 0)) / unit
