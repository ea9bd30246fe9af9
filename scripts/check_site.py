"""Check a built site: every internal link and anchor exists, and no page loads anything from another host.

    python scripts/check_site.py [site]

zensical's strict mode checks links in Markdown; this checks the built pages, including pictures and raw HTML.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

FETCHED = {(tag, "src") for tag in ("script", "img", "iframe", "source")} | {("link", "href"), ("object", "data")}
NOT_FETCHED = {"canonical", "next", "prev", "alternate"}


class Page(HTMLParser):
    """Links, fetched resources and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "__skip", "top"}
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := attributes.get(name))}
        for name in ("src", "href", "data"):
            value = attributes.get(name)
            if value is None or value.startswith("data:"):
                continue
            if (tag, name) in FETCHED and not NOT_FETCHED & set((attributes.get("rel") or "").split()):
                self.fetched.add(value)
            elif name == "href":
                self.links.add(value)


def find_problems(site: Path) -> list[str]:
    """Return one line per problem."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute, for a server's root
            continue
        where = path.relative_to(site)
        problems += [f"{where}: fetches {url}" for url in sorted(page.fetched) if re.match(r"(\w+:)?//", url)]
        for url in sorted(page.links | page.fetched):
            if re.match(r"(\w+:)?//|mailto:", url):
                continue
            place, anchor = urldefrag(unquote(url))
            target = (path.parent / place).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                problems.append(f"{where}: {url} does not exist")
            elif target in pages and anchor not in pages[target].anchors:
                problems.append(f"{where}: {url} has no such anchor")
    for style in sorted(site.rglob("*.css")):
        text = style.read_text(encoding="utf-8")
        outside = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", text)
        problems += [f"{style.relative_to(site)}: fetches {url}" for url in outside]
    return problems or ([] if pages else [f"{site}: there are no pages"])


if __name__ == "__main__":
    wrong = find_problems(Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve())
    print("\n".join(wrong) or "all links and anchors exist; nothing is loaded from other hosts")
    sys.exit(bool(wrong))
