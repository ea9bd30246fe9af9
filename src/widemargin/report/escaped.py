"""Words of others on their way into a page, a picture or Markdown: the one place where they lose their power.

Markup becomes text, and so do control characters and marks that turn the direction of writing.
"""

from __future__ import annotations

import html
import re

from ..printable import escape_unprintable, escape_unprintable_lines


def escape(text: str) -> str:
    r"""Text for the inside of an element, or of an attribute in quotes.

    >>> print(escape("<b onclick='x'>"), escape("a\u202eb\x1b"))
    &lt;b onclick=&#x27;x&#x27;&gt; a\u202eb\x1b
    """
    return html.escape(escape_unprintable_lines(text), quote=True)


def escape_markdown(text: str) -> str:
    r"""Text for a line or a table's cell of Markdown, which stays in it.

    >>> print(markdown("a|b <i> [x](y)"))
    a\|b \<i> \[x\](y)
    """
    return re.sub(r"[`\[\]<|]", r"\\\g<0>", escape_unprintable(text))


def escape_markdown_code(text: str) -> str:
    """Text for a span or block of code in Markdown: one line, without what would end it."""
    return escape_unprintable(text).replace("`", "'")
