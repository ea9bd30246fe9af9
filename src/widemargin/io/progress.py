"""Progress of long work on standard error: a bar on a terminal, otherwise occasional lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .text import escape_unprintable, one_line, print_stderr

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID


FIRST_LINE_SECONDS, LINE_INTERVAL_SECONDS = 10.0, 30.0
"""Without a terminal: seconds until the first line, and the shortest interval between lines."""
_SLOW_SPEED_WINDOW_SECONDS = 600.0  # seconds over which the speed is averaged if one step may take a minute
_MAX_TEXT_WIDTH = 80  # columns of counts, time and message at their longest


@dataclass(frozen=True)
class ProgressBar:
    """Progress callback that draws a bar: `on_progress(fraction, message)`."""

    progress: Progress
    task: TaskID

    def __call__(self, fraction: float, message: str | None = None) -> None:
        self.progress.advance(self.task, fraction)
        if message is not None:
            self.progress.update(self.task, message=message)


class ProgressLines:
    """Progress callback that prints a line at intervals: `on_progress(fraction, message)`.

    Args:
        description: what the work is.
        total, completed: units of work in total, and those done before.
        first_seconds: time until the first line, so that shorter work prints none; None for `FIRST_LINE_SECONDS`.
        interval_seconds: shortest time between two lines.
        hidden: print nothing.
        clock: returns the time in seconds.
        write: prints a line.

    >>> seconds = iter([0, 5, 20, 40, 60])
    >>> on_progress = ProgressLines("folds", 4, clock=lambda: next(seconds), write=print)
    >>> for _ in range(4):
    ...     on_progress(1.0)
    folds: 2 of 4, 50 %, about 20 s left
    """

    def __init__(
        self,
        description: str,
        total: float,
        completed: float = 0.0,
        *,
        first_seconds: float | None = None,
        interval_seconds: float = LINE_INTERVAL_SECONDS,
        hidden: bool = False,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] = print_stderr,
    ) -> None:
        self.description, self.total, self.completed = description, total, completed
        self.interval_seconds, self.hidden, self.clock, self.write = interval_seconds, hidden, clock, write
        self.done, self.message, self.start_time = completed, "", clock()
        self.next_time = self.start_time + (FIRST_LINE_SECONDS if first_seconds is None else first_seconds)

    def __call__(self, fraction: float, message: str | None = None) -> None:
        self.done += fraction
        self.message = self.message if message is None else message
        now = self.clock()
        if self.hidden or now < self.next_time or self.done >= self.total:
            return
        self.write(one_line(self._line(now - self.start_time)))
        self.next_time = now + self.interval_seconds

    def postpone(self) -> None:
        """Restart the interval until the next line, because another line has just been printed."""
        self.next_time = self.clock() + self.interval_seconds

    def _line(self, elapsed_seconds: float) -> str:
        counts = [f"{int(self.done)} of {self.total:g}"] if self.total > 1 else []
        parts = [*counts, f"{100 * self.done / self.total:.0f} %"]
        if self.done > self.completed:
            left = elapsed_seconds * (self.total - self.done) / (self.done - self.completed)
            parts.append(f"about {format_duration(left)} left")
        return f"{self.description}: {', '.join([*parts, self.message] if self.message else parts)}"


def format_duration(seconds: float) -> str:
    """Format a rough duration.

    >>> [format_duration(seconds) for seconds in (0.2, 44, 100, 3500, 3600, 9000)]
    ['1 s', '44 s', '2 min', '58 min', '1 h', '2 h 30 min']
    """
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return " ".join(part for part in (f"{hours} h" * (hours > 0), f"{minutes} min" * (minutes > 0)) if part)


@contextmanager
def progress_bar(
    description: str,
    total: float,
    completed: float = 0.0,
    message: str | None = None,
    hidden: bool = False,
    *,
    first_seconds: float | None = None,
    interval_seconds: float = LINE_INTERVAL_SECONDS,
) -> Iterator[ProgressBar | ProgressLines]:
    """Show a progress bar with the remaining time; lines if standard error is not a terminal; nothing if `hidden`.

    `message`, even if "", adds a column for messages.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield ProgressLines(
            description,
            total,
            completed,
            first_seconds=first_seconds,
            interval_seconds=interval_seconds,
            hidden=hidden,
        )
        return
    description = escape(escape_unprintable(description)) if message is None else escape_unprintable(description)
    columns = _plain_columns() if message is None else _columns_with_message(console.width)
    speed_window = 30.0 if message is None else _SLOW_SPEED_WINDOW_SECONDS
    with Progress(*columns, console=console, transient=True, speed_estimate_period=speed_window) as progress:
        task = progress.add_task(description, total=total, message=message)
        progress.advance(task, completed)
        yield ProgressBar(progress, task)


def _plain_columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    return [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(elapsed_when_finished=True),
    ]


def _columns_with_message(width: int) -> list[ProgressColumn]:
    """Columns with a message; a narrow terminal shows the message instead of the bar and the description."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns: list[ProgressColumn] = [
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[message]}", markup=False),
    ]
    spare_width = width - _MAX_TEXT_WIDTH
    if spare_width > 6:
        columns.insert(0, BarColumn(min(spare_width - 1, 12)))
    if spare_width > 24:
        short = Column(no_wrap=True, overflow="ellipsis", max_width=spare_width - 14)
        columns.insert(0, TextColumn("{task.description}", markup=False, table_column=short))
    return columns
