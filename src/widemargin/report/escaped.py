"""Words of others on their way into a page, a picture or Markdown: the one place where they lose their power.

Markup becomes text, and so do control characters and marks that turn the direction of writing.
"""

from __future__ import annotations

import html
import re

from ..printable import lines, printable


def escape(text: str) -> str:
    r"""Text for the inside of an element, or of an attribute in quotes.

    >>> print(escape("<b onclick='x'>"), escape("a\u202eb\x1b"))
    &lt;b onclick=&#x27;x&#x27;&gt; a\u202eb\x1b
    """
    return html.escape(lines(text), quote=True)


def markdown(text: str) -> str:
    r"""Text for a line or a table's cell of Markdown, which stays in it.

    >>> print(markdown("a|b <i> [x](y)"))
    a\|b \<i> \[x\](y)
    """
    return re.sub(r"[`\[\]<|]", r"\\\g<0>", printable(text))


def in_code(text: str) -> str:
    """Text for a span or block of code in Markdown: one line, without what would end it."""
    return printable(text).replace("`", "'")
