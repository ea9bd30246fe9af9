"""Errors in the user's input, each one line with the remedy, and how values and names are quoted in them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from .text import escape_unprintable, one_line


def shorten(text: str, max_chars: int = 80) -> str:
    """The text, or the beginning of a long one, for a message of one line.

    >>> print(shorten("a\\nb"), len(shorten("x" * 99)), len(shorten("\\x1b" * 99)))
    a\\nb 78 78
    """
    found = escape_unprintable(text[: max_chars + 1])  # escapes take up to ten characters each
    return found if len(found) <= max_chars else found[: max_chars - 3] + "…"


def format_value(value: Any) -> str:
    """Any value as a message shows it: its repr, on one line and not too long.

    >>> print(format_value("one\\ntwo"), format_value([1] * 99)[-5:], format_value(1 << 99999))
    'one\\ntwo' 1, 1… a number of 100000 bits
    """
    if isinstance(value, int) and value.bit_length() > 1000:  # Python writes none of more than 4300 digits
        return f"a number of {value.bit_length()} bits"
    try:
        return shorten(" ".join(repr(value).split()))
    except ValueError:  # such a number inside a list
        return f"a {type(value).__name__}"


class InputError(ValueError):
    """Wrong input from the user: one clear line, whatever stands in a name or path that it quotes.

    The command prints it and leaves with code 2.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class StoppedError(Exception):
    """A run that a signal has asked to stop, and that has kept all it had done."""

    exit_code = 75  # "try again later" (EX_TEMPFAIL): a scheduler that sent the signal can send the job again


def unknown_name_error(kind: str, given: str, allowed: Iterable[str]) -> InputError:
    """An error for a name nobody knows, with the nearest one that exists.

    >>> print(unknown_name_error("loss", "arcfase", ["arcface", "cosface"]))
    unknown loss 'arcfase'; did you mean 'arcface'? (known: arcface, cosface)
    """
    names, given = sorted(allowed), shorten(given) if isinstance(given, str) else format_value(given)
    near = get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    known = ", ".join(names) if names else "none"
    return InputError(f"unknown {kind} {given!r}{hint} (known: {known})")
