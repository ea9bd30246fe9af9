"""Stopping on request: SIGTERM or SIGINT lets a step end, keeps everything and leaves; a second one leaves at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether somebody has asked."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.asked = True
        if sys.stderr is not None:
            name = signal.Signals(number).name
            print(f"{name}: saving after this step; once more leaves at once", file=sys.stderr, flush=True)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Listens while it lasts; in the main thread only, elsewhere signals are not ours."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
