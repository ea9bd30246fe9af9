"""What one cell of a table says: a number, a word or nothing; and how cells and names are shown in a message."""

from __future__ import annotations

from collections.abc import Iterable

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "-"})
_LONGEST_MISSING = max(map(len, MISSING))
LABEL_MISSING = MISSING - {"none"}  # "none" is a fair name for a class, as in "none, mild, severe"


def missing(word: str, tokens: frozenset[str] = MISSING) -> bool:
    """Whether a cell holds no value.

    >>> [missing(word) for word in ("", " N/A ", "?", "0", "no")]
    [True, True, True, False, False]
    """
    bare = word.strip()
    return len(bare) <= _LONGEST_MISSING and bare.lower() in tokens  # a long word is not copied to be compared


def number(word: str) -> float | None:
    """The number a cell holds; None for a word. Python's `1_000` is a word here.

    >>> number(" -1.5e3 "), number("1_000"), number("x1")
    (-1500.0, None, None)
    """
    if "_" in word:
        return None
    try:
        return float(word)
    except ValueError:
        return None


def shown(text: str, longest: int = 40) -> str:
    """A cell or name in quotes, on one line and not too long.

    >>> print(shown("one\\ntwo"), shown("x" * 99))
    'one\\ntwo' 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'
    """
    found = repr(text if len(text) <= longest else text[: longest - 1] + "…")
    return found if len(found) <= 2 * longest else f"{found[: 2 * longest - 2]}…{found[-1]}"


def several(names: Iterable[str], most: int = 5) -> str:
    """A list of names that stays short.

    >>> print(several("abc"), "|", several("abcdefgh", most=3))
    'a', 'b', 'c' | 'a', 'b', 'c' and 5 more
    """
    all_of_them = list(names)
    rest = f" and {len(all_of_them) - most:,} more" if len(all_of_them) > most else ""
    return ", ".join(map(shown, all_of_them[:most])) + rest
