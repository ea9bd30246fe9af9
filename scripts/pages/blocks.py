"""Blocks of hand-written Markdown pages that scripts generate: the text between two HTML comments."""

from __future__ import annotations

from pathlib import Path


def replace_block(text: str, name: str, content: str) -> str:
    """`text` with `content` between `<!-- name: begin -->` and `<!-- name: end -->`."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ValueError(f"the comments {begin.strip()} and {end.strip()} are missing")
    return f"{before}{begin}\n{content.strip()}\n\n{end}{after}"


def write_block(page: Path, name: str, content: str) -> None:
    """Replace a block of a page in place."""
    try:
        page.write_text(replace_block(page.read_text(encoding="utf-8"), name, content), encoding="utf-8")
    except ValueError as error:
        raise SystemExit(f"{page}: {error}") from None
    print(f"wrote {page}")
