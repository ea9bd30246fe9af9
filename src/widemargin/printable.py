"""Words that others chose (class names, paths, settings) on their way to a terminal: they stay words.

A file's name or a class's may hold escape sequences that colour, hide or overwrite what a terminal shows, or marks
that turn the direction of writing. Here such characters become the text of their escapes. Pages have `report.escaped`,
which begins with the same.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unicodedata import category

_JOINERS = "\u200c\u200d"  # parts of words in Persian and Hindi, and of emoji; they move nothing


def printable(text: str) -> str:
    r"""The text on one line, without anything that a terminal would act on.

    >>> print(printable("Zoë 🙂"), printable("\x1b[31mred\nline"), printable("abc\u202ecba"))
    Zoë 🙂 \x1b[31mred\nline abc\u202ecba
    """
    if text.isprintable():
        return text
    return "".join(one if _harmless(one) else one.encode("unicode_escape").decode() for one in text)


def _harmless(one: str) -> bool:
    return one.isprintable() or one in _JOINERS or category(one) == "Zs"


def lines(text: str) -> str:
    """The same for text that has lines of its own, as a page shows it."""
    return "\n".join(map(printable, text.split("\n")))


def say(text: str, *, aside: bool = False) -> None:
    """Print one line in which words of others stand; `aside` goes to standard error, and is cut like an error."""
    from .errors import one_line

    print(one_line(text) if aside else printable(text), file=sys.stderr if aside else sys.stdout, flush=aside)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings as one line each, of words that stay words; where in the source they were raised helps no reader."""
    from .errors import one_line

    before = warnings.formatwarning

    def formatted(message: Warning | str, category: type[Warning], *_: object, **__: object) -> str:
        what = "note" if issubclass(category, UserWarning) else category.__name__
        return one_line(f"widemargin: {what}: {' '.join(str(message).split())}") + "\n"

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = before
