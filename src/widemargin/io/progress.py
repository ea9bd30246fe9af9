"""Progress bars on long work, on standard error, so that what is printed can be piped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .text import escape_unprintable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID


_SLOW_SPEED_WINDOW_SECONDS = 600.0  # seconds to look back for a speed where one step may take a minute
_MAX_TEXT_WIDTH = 80  # columns of counts, time and words at their longest


@dataclass(frozen=True)
class ProgressBar:
    """Progress callback: `on_progress(fraction, message)`."""

    progress: Progress
    task: TaskID

    @property
    def is_visible(self) -> bool:
        """Whether anybody sees it."""
        return not self.progress.disable

    def __call__(self, fraction: float, message: str | None = None) -> None:
        self.progress.advance(self.task, fraction)
        if message is not None:
            self.progress.update(self.task, message=message)


@contextmanager
def progress_bar(
    description: str, total: float, completed: float = 0.0, message: str | None = None, hidden: bool = False
) -> Iterator[ProgressBar]:
    """A bar with the time that remains, on a terminal only and unless `hidden`.

    `message`, even if "", adds a column for messages.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    description = escape(escape_unprintable(description)) if message is None else escape_unprintable(description)
    columns = _plain_columns() if message is None else _columns_with_message(console.width)
    hidden = hidden or not console.is_terminal
    speed_window = 30.0 if message is None else _SLOW_SPEED_WINDOW_SECONDS
    with Progress(
        *columns, console=console, transient=True, disable=hidden, speed_estimate_period=speed_window
    ) as progress:
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
    """On a narrow terminal the bar and the description are left out for the message, which changes."""
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
