"""Findings: the claims of the papers as rows, each judged from the records, with its picture and its command.

    widemargin reproduce findings --records records

Cost: seconds; it trains nothing. Expected: one page, `findings/report.html`, with a row per claim: holds, holds under
conditions, does not hold, or not tested here (with the command and its cost). `--markdown FILE` also writes the page of
the docs with its pictures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .parts.claim import Claim


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--records", metavar="DIR", default="records", help="folder of the records (default records)")
    parser.add_argument("--out", metavar="DIR", default="findings", help="folder of the page (default findings)")
    parser.add_argument("--markdown", metavar="FILE", help="also write this page of the docs, pictures beside it")


def run(options: argparse.Namespace) -> None:
    """Judge all claims, print them, write the page."""
    from ..io.errors import InputError
    from .parts.claim import STATUSES
    from .parts.findings_claims import judge_claims

    records = Path(options.records)
    if not records.is_dir():
        raise InputError(f"--records {records}: not a folder; give the folder of the records, such as records")
    claims = judge_claims(records)
    for claim in claims:
        print(f"{claim.status:24} {claim.source}: {claim.claim}")
    print(", ".join(f"{sum(c.status == status for c in claims)} {status}" for status in STATUSES))
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "report.html"
    path.write_text(render_page(claims), encoding="utf-8")
    print(f"wrote {path}")
    if options.markdown:
        print(f"wrote {write_markdown(claims, Path(options.markdown))} and its pictures")


_OVERVIEW_STYLE = """<style>
.claims { list-style: none; margin: 20px 0; padding: 0; border-top: 2px solid var(--soft); }
.claims li { display: grid; grid-template-columns: 1fr 13em 13.5em; gap: 0 18px; padding: 7px 4px;
  border-bottom: 1px solid var(--line); }
.claims a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: 3px; }
.claims .source { color: var(--soft); font-size: .92rem; } .claims .open { color: var(--soft); }
@media (max-width: 700px) { .claims li { grid-template-columns: 1fr; gap: 2px; } }
</style>"""


def render_overview(claims: Sequence[Claim]) -> str:
    """A line for each claim with its source and outcome, which leads to its section."""
    from ..io.text import escape

    lines = [
        f'<li><a href="#{escape(c.name)}">{escape(c.claim)}</a><span class="source">{escape(c.source)}</span>'
        + (f"<strong>{escape(c.status)}</strong>" if c.finding else f'<span class="open">{escape(c.status)}</span>')
        + "</li>"
        for c in claims
    ]
    return f'{_OVERVIEW_STYLE}<ul class="claims">{"".join(lines)}</ul>'


def render_page(claims: Sequence[Claim]) -> str:
    """The page: all claims with their outcomes, then a section for each."""
    from ..viz import page

    body = [render_overview(claims)]
    for claim in claims:
        body += [page.heading(claim.claim, f"{claim.source}: {claim.status}", claim.name)]
        if claim.finding:
            body.append(page.paragraph(claim.finding))
        if claim.chart is not None:
            body.append(page.figure(claim.chart))
        body.append(page.code(claim.command))
        source = f"; the record is records/{claim.record}" if claim.finding else ""
        body.append(page.paragraph(f"Cost: {claim.cost}{source}.", "note"))
    sub = "What the ArcGrad paper and its relatives claim, and what this library's records say"
    return page.html_page("Findings", sub, body)


def write_markdown(claims: Sequence[Claim], path: Path) -> Path:
    """Write the page of the docs, and its pictures to `pictures/findings_NAME.svg` beside it."""
    pictures = path.parent / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for claim in claims:
        if claim.chart is not None:
            (pictures / f"findings_{claim.name}.svg").write_text(claim.chart.to_svg(standalone=True), encoding="utf-8")
    path.write_text(render_markdown(claims), encoding="utf-8")
    return path


def render_markdown(claims: Sequence[Claim]) -> str:
    """The text of the docs' page."""
    lines = [
        "# Findings",
        "",
        "What the ArcGrad paper and its relatives claim, and what holds on machines with two CPU cores. Every outcome "
        "and figure is computed from `records/` by `widemargin reproduce findings`; negative results count as much.",
        "",
        "| claim | source | outcome |",
        "|---|---|---|",
        *(f"| [{c.claim}](#{c.name}) | {c.source} | {c.status} |" for c in claims),
        "",
    ]
    for claim in claims:
        lines += [f"## {claim.claim} {{ #{claim.name} }}", "", f"*{claim.source}* — **{claim.status}**.", ""]
        if claim.finding:
            lines += [claim.finding, ""]
        if claim.chart is not None:
            lines += [f"![{claim.claim}](pictures/findings_{claim.name}.svg)", ""]
        source = f"; the record is `records/{claim.record}`" if claim.finding else ""
        language = "text" if "FOLDER" in claim.command else "bash"  # files that have to be given
        lines += [f"```{language}", claim.command, "```", "", f"Cost: {claim.cost}{source}.", ""]
    return "\n".join(lines).rstrip() + "\n"
