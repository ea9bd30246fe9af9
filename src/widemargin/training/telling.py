"""What a person sees of a run while it trains: a bar on a terminal, a line per epoch in the log of a batch job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..progress import ProgressBar, progress_bar
from ..run import TrainConfig
from .judging import selection_metric


@dataclass(frozen=True)
class EpochProgress:
    """How an epoch goes so far."""

    loss: float
    top1: float
    images_per_second: float

    def __str__(self) -> str:
        return f"loss {self.loss:.3f}, train {self.top1:.1f} %, {self.images_per_second:,.0f} images/s"


class ProgressReporter:
    """Told of every step and every epoch; without a bar it keeps all to itself."""

    def __init__(self, epoch_bar: ProgressBar | None = None, start_epoch: int = 0, end_epoch: int = 0) -> None:
        self.bar, self.start_epoch, self.end_epoch = epoch_bar, start_epoch, end_epoch
        self.start_time = time.monotonic()
        self.val_text, self.has_warned = "", False

    def step(self, fraction: float, progress: EpochProgress | None = None) -> None:
        """So much of an epoch more; `running` only where the loop has looked at its sums anyway."""
        if self.bar is not None:
            self.bar(fraction, None if progress is None else f"{progress}{self.val_text}")

    def report_epoch(self, line: dict[str, Any]) -> None:
        """What is logged of an epoch."""
        self._warn_on_collapse(line)
        val = line.get("held_out")
        self.val_text = "" if val is None else f", held out {selection_metric(val):.1f} %"
        if self.bar is None or self.bar.is_visible:
            return
        progress = EpochProgress(line["loss"], line["train_top1"], line["images_per_second"])
        each = (time.monotonic() - self.start_time) / (line["epoch"] - self.start_epoch)
        left = round(each * (self.end_epoch - line["epoch"]))
        clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
        print_stderr(f"epoch {line['epoch']}/{self.end_epoch}: {progress}{self.val_text}, {clock} left")

    def _warn_on_collapse(self, line: dict[str, Any]) -> None:
        """Once, when all embeddings have become one point: no loss on pairs or triplets leads out of that."""
        if self.bar is None or self.has_warned or "collapsed" not in line.get("mining", {}):
            return
        self.has_warned = True
        remedy = "lower --lr, or mine with semihard or distance instead of hard"
        print_stderr(f"epoch {line['epoch']}: all embeddings have collapsed into one point; {remedy}")


@contextmanager
def open_reporter(config: TrainConfig, start_epoch: int, end_epoch: int) -> Iterator[ProgressReporter]:
    """A bar for the epochs from `epoch` to `end` on a terminal; elsewhere lines."""
    with progress_bar(
        f"{os.path.basename(config.data)} {config.model} {config.loss}", end_epoch, start_epoch, message=""
    ) as epoch_bar:
        yield ProgressReporter(epoch_bar, start_epoch, end_epoch)


def print_stderr(message: str) -> None:
    """On standard error; a reader that has left must not end a training that takes days."""
    if sys.stderr is None:
        return
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        # What could not be written stays in the stream's buffer and would fail again, at the latest at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
