"""What one cell of a table says: a number, a word or nothing; and how cells and names are shown in a message."""

from __future__ import annotations

from collections.abc import Iterable

MISSING_TOKENS = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "-"})
_MAX_MISSING_LENGTH = max(map(len, MISSING_TOKENS))
LABEL_MISSING_TOKENS = MISSING_TOKENS - {"none"}  # "none" is a fair name for a class, as in "none, mild, severe"


def is_missing(word: str, tokens: frozenset[str] = MISSING_TOKENS) -> bool:
    """Whether a cell holds no value.

    >>> [missing(word) for word in ("", " N/A ", "?", "0", "no")]
    [True, True, True, False, False]
    """
    bare = word.strip()
    return len(bare) <= _MAX_MISSING_LENGTH and bare.lower() in tokens  # a long word is not copied to be compared


def parse_number(word: str) -> float | None:
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


def quote_cell(text: str, max_length: int = 40) -> str:
    """A cell or name in quotes, on one line and not too long.

    >>> print(shown("one\\ntwo"), shown("x" * 99))
    'one\\ntwo' 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'
    """
    found = repr(text if len(text) <= max_length else text[: max_length - 1] + "…")
    return found if len(found) <= 2 * max_length else f"{found[: 2 * max_length - 2]}…{found[-1]}"


def join_names(names: Iterable[str], max_names: int = 5) -> str:
    """A list of names that stays short.

    >>> print(several("abc"), "|", several("abcdefgh", most=3))
    'a', 'b', 'c' | 'a', 'b', 'c' and 5 more
    """
    all_of_them = list(names)
    rest = f" and {len(all_of_them) - max_names:,} more" if len(all_of_them) > max_names else ""
    return ", ".join(map(quote_cell, all_of_them[:max_names])) + rest
