"""What a user did that cannot work, said in one line with the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from .printable import printable


class InputError(ValueError):
    """Wrong input from the user: one clear line, whatever stands in a name or path that it quotes.

    The command prints it and leaves with code 2.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class StoppedError(Exception):
    """A run that a signal has asked to stop, and that has kept all it had done."""

    code = 75  # "try again later" (EX_TEMPFAIL): a scheduler that sent the signal can send the job again


def unknown(kind: str, given: str, allowed: Iterable[str]) -> InputError:
    """An error for a name nobody knows, with the nearest one that exists.

    >>> print(unknown("loss", "arcfase", ["arcface", "cosface"]))
    unknown loss 'arcfase'; did you mean 'arcface'? (known: arcface, cosface)
    """
    names = sorted(allowed)
    near = get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    known = ", ".join(names) if names else "none"
    return InputError(f"unknown {kind} {given!r}{hint} (known: {known})")
