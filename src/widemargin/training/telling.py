"""What a person sees of a run while it trains: a bar on a terminal, a line per epoch in the log of a batch job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..progress import Bar, bar
from ..run import Run
from .judging import choosing


@dataclass(frozen=True)
class Running:
    """How an epoch goes so far."""

    loss: float
    top1: float
    images_per_second: float

    def __str__(self) -> str:
        return f"loss {self.loss:.3f}, train {self.top1:.1f} %, {self.images_per_second:,.0f} images/s"


class Telling:
    """Told of every step and every epoch; without a bar it keeps all to itself."""

    def __init__(self, seen: Bar | None = None, epoch: int = 0, end: int = 0) -> None:
        self.bar, self.begin, self.end = seen, epoch, end
        self.clock = time.monotonic()
        self.held, self.warned = "", False

    def step(self, share: float, running: Running | None = None) -> None:
        """So much of an epoch more; `running` only where the loop has looked at its sums anyway."""
        if self.bar is not None:
            self.bar(share, None if running is None else f"{running}{self.held}")

    def epoch(self, line: dict[str, Any]) -> None:
        """What is logged of an epoch."""
        self._warn(line)
        held = line.get("held_out")
        self.held = "" if held is None else f", held out {choosing(held):.1f} %"
        if self.bar is None or self.bar.live:
            return
        running = Running(line["loss"], line["train_top1"], line["images_per_second"])
        each = (time.monotonic() - self.clock) / (line["epoch"] - self.begin)
        left = round(each * (self.end - line["epoch"]))
        clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
        say(f"epoch {line['epoch']}/{self.end}: {running}{self.held}, {clock} left")

    def _warn(self, line: dict[str, Any]) -> None:
        """Once, when all embeddings have become one point: no loss on pairs or triplets leads out of that."""
        if self.bar is None or self.warned or "collapsed" not in line.get("mining", {}):
            return
        self.warned = True
        remedy = "lower --lr, or mine with semihard or distance instead of hard"
        say(f"epoch {line['epoch']}: all embeddings have collapsed into one point; {remedy}")


@contextmanager
def telling(run: Run, epoch: int, end: int) -> Iterator[Telling]:
    """A bar for the epochs from `epoch` to `end` on a terminal; elsewhere lines."""
    with bar(f"{os.path.basename(run.data)} {run.model} {run.loss}", end, epoch, words="") as seen:
        yield Telling(seen, epoch, end)


def say(words: str) -> None:
    """On standard error; a reader that has left must not end a training that takes days."""
    if sys.stderr is None:
        return
    try:
        print(words, file=sys.stderr, flush=True)
    except OSError:
        # What could not be written stays in the stream's buffer and would fail again, at the latest at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
