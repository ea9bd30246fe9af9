"""Words of others on their way into a page or picture: the one place where they lose their power.

Markup becomes text, and so do control characters and marks that turn the direction of writing.
"""

from __future__ import annotations

import html

from ..printable import lines


def escape(text: str) -> str:
    r"""Text for the inside of an element, or of an attribute in quotes.

    >>> print(escape("<b onclick='x'>"), escape("a\u202eb\x1b"))
    &lt;b onclick=&#x27;x&#x27;&gt; a\u202eb\x1b
    """
    return html.escape(lines(text), quote=True)
