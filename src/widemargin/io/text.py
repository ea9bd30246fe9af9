"""Escaping of untrusted text (class names, paths, settings) for terminals, pages, pictures and Markdown.

File and class names may hold escape sequences that colour, hide or overwrite what a terminal shows, marks that change
the direction of writing, or markup. `escape_unprintable` replaces control characters by the text of their escapes,
`one_line` also bounds the length of a message; `escape`, `escape_markdown` and `escape_markdown_code` also escape
markup.
"""

from __future__ import annotations

import html
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unicodedata import category

_JOINERS = "\u200c\u200d"  # parts of words in Persian and Hindi, and of emoji; harmless


def escape_unprintable(text: str) -> str:
    r"""Escape everything that a terminal would act on, including line breaks.

    >>> print(escape_unprintable("Zoë 🙂"), escape_unprintable("\x1b[31mred\nline"), escape_unprintable("abc\u202ecba"))
    Zoë 🙂 \x1b[31mred\nline abc\u202ecba
    """
    if text.isprintable():
        return text
    return "".join(one if _is_safe_char(one) else one.encode("unicode_escape").decode() for one in text)


def _is_safe_char(char: str) -> bool:
    return char.isprintable() or char in _JOINERS or category(char) == "Zs"


def escape_unprintable_lines(text: str) -> str:
    """Escape control characters but keep line breaks, for text that spans several lines."""
    return "\n".join(map(escape_unprintable, text.split("\n")))


def print_escaped(text: str, *, to_stderr: bool = False) -> None:
    """Print one escaped line; `to_stderr` prints to standard error, shortened to the length of an error message."""
    print(
        one_line(text) if to_stderr else escape_unprintable(text),
        file=sys.stderr if to_stderr else sys.stdout,
        flush=to_stderr,
    )


def print_stderr(message: str) -> None:
    """Print to standard error and ignore a closed pipe, which must not end a long run."""
    if sys.stderr is None:
        return
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        # Unwritten text stays in the stream's buffer and would fail again, at the latest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print each warning as one escaped line, without the place in the source where it was raised."""
    before = warnings.formatwarning

    def format_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> str:
        what = "note" if issubclass(category, UserWarning) else category.__name__
        return one_line(f"widemargin: {what}: {' '.join(str(message).split())}") + "\n"

    warnings.formatwarning = format_warning
    try:
        yield
    finally:
        warnings.formatwarning = before


def escape(text: str) -> str:
    r"""Escape text for the inside of an HTML element or a quoted attribute.

    >>> print(escape("<b onclick='x'>"), escape("a\u202eb\x1b"))
    &lt;b onclick=&#x27;x&#x27;&gt; a\u202eb\x1b
    """
    return html.escape(escape_unprintable_lines(text), quote=True)


def escape_markdown(text: str) -> str:
    r"""Escape text for a line or table cell of Markdown.

    >>> print(escape_markdown("a|b <i> [x](y)"))
    a\|b \<i> \[x\](y)
    """
    return re.sub(r"[`\[\]<|]", r"\\\g<0>", escape_unprintable(text))


def escape_markdown_code(text: str) -> str:
    """Escape text for a code span or block of Markdown: one line, without backticks that would end it."""
    return escape_unprintable(text).replace("`", "'")


def normalize_flag(word: str) -> str:
    """`--data_set=a_b` → `--data-set=a_b`: options are accepted with - or _."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


_MAX_MESSAGE_CHARS = 1000  # characters of a message; longer ones come from the input


def one_line(text: str) -> str:
    """Return a message as one printable line of bounded length.

    >>> len(one_line("x" * 10**6)) <= 1000, len(one_line("\\x1b" * 10**6)) <= 1000
    (True, True)
    """
    return _elide_middle(escape_unprintable(_elide_middle(text)))


def _elide_middle(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[: _MAX_MESSAGE_CHARS - 300]} … {text[-250:]}"
