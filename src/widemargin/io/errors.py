"""InputError, the one-line error for wrong input, and the formatting of values and names in its messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from .text import escape_unprintable, one_line


def shorten(text: str, max_chars: int = 80) -> str:
    """Shorten a text and escape unprintable characters, for a message of one line.

    >>> print(shorten("a\\nb"), len(shorten("x" * 99)), len(shorten("\\x1b" * 99)))
    a\\nb 78 78
    """
    escaped = escape_unprintable(text[: max_chars + 1])  # escapes take up to ten characters each
    return escaped if len(escaped) <= max_chars else escaped[: max_chars - 3] + "…"


def format_value(value: Any) -> str:
    """Format any value for a message: its repr on one line, shortened.

    >>> print(format_value("one\\ntwo"), format_value([1] * 99)[-5:], format_value(1 << 99999))
    'one\\ntwo' 1, 1… a number of 100000 bits
    """
    if isinstance(value, int) and value.bit_length() > 1000:  # Python prints no integer of more than 4300 digits
        return f"a number of {value.bit_length()} bits"
    try:
        return shorten(" ".join(repr(value).split()))
    except ValueError:  # such an integer inside a list
        return f"a {type(value).__name__}"


class InputError(ValueError):
    """Wrong input from the user, in one line; control characters in quoted names and paths are escaped.

    The command prints the message and exits with code 2.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class StoppedError(Exception):
    """A signal stopped the run after its state was saved."""

    exit_code = 75  # EX_TEMPFAIL, "try again later": a scheduler that sent the signal can requeue the job


def unknown_name_error(kind: str, given: str, allowed: Iterable[str]) -> InputError:
    """Return the error for an unknown name, with the nearest known one.

    >>> print(unknown_name_error("loss", "arcfase", ["arcface", "cosface"]))
    unknown loss 'arcfase'; did you mean 'arcface'? (known: arcface, cosface)
    """
    names, given = sorted(allowed), shorten(given) if isinstance(given, str) else format_value(given)
    near = get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    known = ", ".join(names) if names else "none"
    return InputError(f"unknown {kind} {given!r}{hint} (known: {known})")
