"""Stopping on request: SIGTERM or SIGINT lets a step end, keeps everything and leaves; a second one leaves at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .telling import print_stderr

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether somebody has asked."""

    def __init__(self) -> None:
        self.is_requested = False

    def __call__(self, signum: int, _: FrameType | None) -> None:
        """The first one: ask, and leave the next to the system, which waits for no Python."""
        self.is_requested = True
        for each in _STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        print_stderr(f"{signal.Signals(signum).name}: saving after this step; once more leaves at once")


@contextmanager
def handle_stop_signals() -> Iterator[StopRequest]:
    """Listens while it lasts; in the main thread only, elsewhere signals are not ours."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in _STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
