"""InputError, the one-line error for wrong input, and the formatting of values, names and options in its messages."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

from .text import escape_unprintable, one_line

_MAX_KNOWN_CHARS, _NEAREST_NAMES = 500, 10  # a message must stay one readable line, whatever has how many names
_style = SimpleNamespace(command_line=False)  # of the process: a command may answer from several threads


@contextmanager
def option_style(*, command_line: bool) -> Iterator[None]:
    """Let `spell_option` write flags (`--lr 0.1`) or, which is the default, Python arguments (`lr=0.1`)."""
    before, _style.command_line = _style.command_line, command_line
    try:
        yield
    finally:
        _style.command_line = before


def writes_flags() -> bool:
    """Return True while a command line runs, where messages name an option by its flag."""
    return bool(_style.command_line)


def spell_option(name: str, *value: Any) -> str:
    """Write an option, with a value or alone, as the caller does: as an argument in Python, as a flag of a command.

    >>> print(spell_option("val_fraction"), spell_option("resume", True), spell_option("freeze", "all"))
    val_fraction resume=True freeze='all'
    >>> with option_style(command_line=True):
    ...     print(spell_option("val_fraction"), spell_option("sync_bn", False), spell_option("clip", 1))
    --val-fraction --no-sync-bn --clip 1
    """
    flag = "--" + name.replace("_", "-")
    if not value:
        return flag if writes_flags() else name
    (given,) = value
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if not writes_flags():
        return f"{name}={given!r}"
    if isinstance(given, bool):
        return flag if given else f"--no-{flag[2:]}"
    return f"{flag} {shlex.join(map(str, given)) if isinstance(given, tuple) else shlex.quote(str(given))}"


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
    """Return the error for an unknown name, with the nearest known one and all known ones, or ten of a long list.

    >>> print(unknown_name_error("loss", "arcfase", ["arcface", "cosface"]))
    unknown loss 'arcfase'; did you mean 'arcface'? (known: arcface, cosface)
    """
    names, given = sorted(allowed), shorten(given) if isinstance(given, str) else format_value(given)
    near = get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    known = f"known: {', '.join(names) if names else 'none'}"
    if len(known) > _MAX_KNOWN_CHARS:
        nearest = get_close_matches(given.lower(), names, n=_NEAREST_NAMES, cutoff=0.0)
        known = f"{len(names)} are known, the nearest: {', '.join(nearest)}"
    return InputError(f"unknown {kind} {given!r}{hint} ({known})")
