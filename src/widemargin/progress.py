"""Progress bars on long work, on standard error, so that what is printed can be piped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

_SLOW = 600.0  # seconds to look back for a speed where one step may take a minute
_WORDS = 80  # columns of counts, time and words at their longest


@dataclass(frozen=True)
class Bar:
    """What is told how much more was done, and in a few words how it goes."""

    progress: Progress
    task: TaskID

    @property
    def live(self) -> bool:
        """Whether anybody sees it."""
        return not self.progress.disable

    def __call__(self, share: float, words: str | None = None) -> None:
        self.progress.advance(self.task, share)
        if words is not None:
            self.progress.update(self.task, words=words)


@contextmanager
def bar(what: str, total: float, done: float = 0.0, words: str | None = None) -> Iterator[Bar]:
    """A bar with the time that remains, on a terminal only; with `words`, if only "", it has room for some."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    what = escape(printable(what)) if words is None else printable(what)
    columns = _plain_columns() if words is None else _columns_with_words(console.width)
    hidden, back = not console.is_terminal, 30.0 if words is None else _SLOW
    with Progress(*columns, console=console, transient=True, disable=hidden, speed_estimate_period=back) as progress:
        task = progress.add_task(what, total=total, words=words)
        progress.advance(task, done)
        yield Bar(progress, task)


def _plain_columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    return [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(elapsed_when_finished=True),
    ]


def _columns_with_words(width: int) -> list[ProgressColumn]:
    """On a narrow terminal the bar and the name make room: the words change, those do not."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns: list[ProgressColumn] = [
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[words]}", markup=False),
    ]
    room = width - _WORDS
    if room > 6:
        columns.insert(0, BarColumn(min(room - 1, 12)))
    if room > 24:
        short = Column(no_wrap=True, overflow="ellipsis", max_width=room - 14)
        columns.insert(0, TextColumn("{task.description}", markup=False, table_column=short))
    return columns
