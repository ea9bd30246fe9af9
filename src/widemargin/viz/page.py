"""A page as one file that opens offline: no network, light and dark; it forbids itself every script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..io.text import escape
from .svg import Chart

_PAGE_CSS = """
:root { --ink: #1d2129; --soft: #5b6472; --line: #d9dde3; --ground: #ffffff; --raised: #f6f7f9; --accent: #b3304a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaee; --soft: #a3acb9; --line: #3a414c; --ground: #15181d; --raised: #1e2229; --accent: #ff8fa3; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 40px 0 6px; } h3 { font-size: 1rem; margin: 24px 0 4px; overflow-wrap: anywhere; }
p { max-width: 74ch; margin: 6px 0 12px; overflow-wrap: anywhere; }
.lead { fill: none; stroke: var(--soft); stroke-width: 1; }
.sub, figcaption, .note { color: var(--soft); font-size: .92rem; }
.verdict { border-left: 4px solid var(--accent); background: var(--raised); padding: 12px 16px; margin: 18px 0;
  border-radius: 0 6px 6px 0; max-width: 80ch; }
figure { margin: 12px 0 8px; }
svg { width: 100%; min-width: 640px; height: auto; display: block; font: 13px system-ui, sans-serif; }
svg text { fill: var(--ink); stroke: none; } svg text.tick { fill: var(--soft); font-size: 12px; }
svg text.strong { font-weight: 600; } svg .grid { stroke: var(--line); } svg .faint { opacity: .22; stroke: none; }
svg .axis { stroke: var(--ink); } svg .bar { stroke: var(--ink); stroke-width: 5; stroke-linecap: round; opacity: .75; }
.wide { overflow-x: auto; }
.side { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 460px), 1fr)); gap: 0 32px; }
.side > section { min-width: 0; } .side svg { min-width: min(440px, 100%); max-width: 620px; }
@media (max-width: 520px) { .side svg { font-size: 15px; } .side svg text.tick { font-size: 14px; } }
table { border-collapse: collapse; font-size: .93rem; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 9px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td:first-child { white-space: normal; min-width: 9em; max-width: 22em; overflow-wrap: anywhere; }
@media (max-width: 700px) { .wide td:first-child, .wide th:first-child { position: sticky; left: 0;
  background: var(--ground); max-width: 42vw; } }
td .range { display: block; color: var(--soft); font-size: .8rem; font-weight: 400; }
.sortable { font-size: .85rem; } .sortable th, .sortable td { padding: 5px 7px; }
.sortable thead th { cursor: pointer; } .sortable thead th:focus-visible { outline: 2px solid var(--accent); }
.sortable th[aria-sort=ascending]::after { content: " ▲"; font-size: .7em; }
.sortable th[aria-sort=descending]::after { content: " ▼"; font-size: .7em; }
thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom;
  white-space: normal; overflow-wrap: break-word; }
tfoot td { color: var(--soft); } tfoot tr:first-child td { border-top: 2px solid var(--soft); }
td.best { font-weight: 700; } td.alike::after { content: " ≈"; color: var(--accent); }
td.under { color: var(--accent); }
pre, code { font: .88rem ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; }
pre { background: var(--raised); padding: 10px 14px; border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
details summary { cursor: pointer; color: var(--soft); }
"""


def html_page(title: str, subtitle: str, body: Iterable[str], script: str = "") -> str:
    """The whole document; `script` is the only script that the page may run."""
    script_hash = (
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" if script else "'none'"
    )
    # Whatever else gets into the page, a browser neither runs it nor asks the network for it.
    content_policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {script_hash}; "
    content_policy += "base-uri 'none'; form-action 'none'"
    end = f"<script>{script}</script>" if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_PAGE_CSS}</style></head>\n<body><main>"
        f'<h1>{escape(title)}</h1><p class="sub">{escape(subtitle)}</p>'
        + "\n".join(body)
        + f"</main>{end}</body></html>\n"
    )


def json_script(name: str, value: Any) -> str:
    """A value for the page's script, as JSON in an element of its own; `<` is escaped, so it cannot end early."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{escape(name)}">{text}</script>'


def heading(text: str, description: str = "", anchor: str = "") -> str:
    """A section's title, and a sentence on how to read it; `anchor` is what links name."""
    name = f' id="{escape(anchor)}"' if anchor else ""
    return f"<h2{name}>{escape(text)}</h2>" + (f'<p class="sub">{escape(description)}</p>' if description else "")


def subheading(text: str, description: str = "") -> str:
    """The title of a part of a section, and a sentence on how to read it."""
    return f"<h3>{escape(text)}</h3>" + (f'<p class="sub">{escape(description)}</p>' if description else "")


def paragraph(text: str, css_class: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{css_class}">{escape(text)}</p>' if css_class else f"<p>{escape(text)}</p>"


def figure(picture: str | Chart, caption: str = "") -> str:
    """A figure, of SVG text or a chart, with its caption."""
    svg = picture.to_svg() if isinstance(picture, Chart) else picture
    return (
        f'<figure class="wide">{svg}' + (f"<figcaption>{escape(caption)}</figcaption>" if caption else "") + "</figure>"
    )


Cell = tuple[str, str]
"""Text and CSS class."""


SORT_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const text = row.cells[column].textContent.trim(), number = parseFloat(text.replace(/,/g, ""));
    return Number.isNaN(number) ? text : number * (/^[\\d.,]+ min/.test(text) ? 60 : 1);
  };
  const sort = column => {
    const rising = heads[column].getAttribute("aria-sort") === "descending", rows = [...body.rows];
    const known = rows.filter(row => key(row, column) !== "–"), rest = rows.filter(row => key(row, column) === "–");
    known.sort((a, b) => {
      const x = key(a, column), y = key(b, column);
      const order = typeof x === typeof y && typeof x === "number" ? x - y : String(x).localeCompare(String(y));
      return rising ? order : -order;
    });
    body.append(...known, ...rest);
    for (const head of heads) head.setAttribute("aria-sort", "none");
    heads[column].setAttribute("aria-sort", rising ? "ascending" : "descending");
  };
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(column));
    head.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort(column);
    });
  });
}
"""
"""Sorts a table of class `sortable` by the column whose title is clicked: falling, then rising."""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    foot: Sequence[Sequence[Cell]] = (),
    *,
    is_sortable: bool = False,
) -> str:
    """A table that scrolls by itself on narrow screens; a page with a sortable one runs `SORT_SCRIPT`.

    Of a cell with two lines the second is small.
    """

    def content(text: str) -> str:
        first, _, second = text.partition("\n")
        return escape(first) + (f'<span class="range">{escape(second)}</span>' if second else "")

    def line(cells: Sequence[Cell]) -> str:
        inside = "".join(
            f'<td class="{kind}">{content(text)}</td>' if kind else f"<td>{content(text)}</td>" for text, kind in cells
        )
        return f"<tr>{inside}</tr>"

    top = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(map(line, rows))
    below = f"<tfoot>{''.join(map(line, foot))}</tfoot>" if foot else ""
    kind = ' class="sortable"' if is_sortable else ""
    return f'<div class="wide"><table{kind}><thead><tr>{top}</tr></thead><tbody>{body}</tbody>{below}</table></div>'


def code(text: str) -> str:
    """A block of preformatted text."""
    return f"<pre>{escape(text)}</pre>"


def side_by_side(sections: Iterable[str]) -> str:
    """Sections side by side where there is room, else one under the other."""
    return f'<div class="side">{"".join(f"<section>{section}</section>" for section in sections)}</div>'


def details(summary: str, content: str) -> str:
    """A part of the page that opens on a click."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
