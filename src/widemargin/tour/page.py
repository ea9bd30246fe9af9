"""The tour as one HTML file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..io.text import escape
from ..viz import page
from . import classical, groups, margins, pairs
from .gallery import gallery_html
from .live import SLIDER_SCRIPT, Section, slider_html

_TOUR_CSS = """<style>
main { max-width: 840px; }
nav ol { columns: 2 260px; padding-left: 1.4em; } nav a { color: inherit; }
.live { margin: 10px 0 4px; max-width: 760px; } .live label { display: block; font-size: .92rem; }
.live output { font-weight: 700; font-variant-numeric: tabular-nums; }
.live input { width: 100%; accent-color: var(--accent); }
.live input:focus-visible, nav a:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.live svg, .still svg { min-width: 0; max-width: 620px; } .live svg.small { max-width: 420px; }
.numbers { color: var(--soft); font-size: .92rem; font-variant-numeric: tabular-nums; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(240px, 100%), 1fr)); gap: 18px; }
.gallery figure { margin: 0; text-align: center; } .gallery svg { min-width: 0; }
section { margin-bottom: 34px; }
@media (max-width: 520px) { .live svg { font-size: 14px; } .live svg text.tick { font-size: 14px; }
  .still { overflow-x: auto; } .still svg { min-width: 480px; } }
</style>"""
_SUBTITLE = (
    "From squared error to ArcGrad, one idea at a time, for readers who have trained a classifier. Move the sliders: "
    "every picture is computed by the losses of the package."
)


def build_sections() -> list[Section]:
    """Return all sections, in order."""
    makers = (*classical.CLASSICAL_SECTIONS, *pairs.PAIR_SECTIONS, *margins.MARGIN_SECTIONS, groups.groups)
    return [make() for make in makers]


def tour_page(sections: Sequence[Section], gallery: dict[str, Any] | None) -> str:
    """Return the whole page."""
    contents = "".join(f'<li><a href="#{escape(section.key)}">{escape(section.title)}</a></li>' for section in sections)
    if gallery is not None:
        contents += '<li><a href="#gallery">The gallery</a></li>'
    body = [_TOUR_CSS, f'<nav aria-label="sections"><ol>{contents}</ol></nav>']
    body += [_section_html(number, section) for number, section in enumerate(sections, 1)]
    if gallery is not None:
        config = gallery["run"]
        text = (
            f"Ten digits of MNIST in two dimensions, test images, {config['epochs']} epochs on "
            f"{100 * config['train_fraction']:g} % of "
            "the training images, the same small network for all. Rays are class weights. With losses that keep norms "
            "the digits spread along the rays; with the others they lie on the circle (jittered a little to be "
            "visible). Ten classes in two dimensions are an illustration, not a recommendation: on a circle a class "
            "cannot move past another one."
        )
        body.append(
            f'<section id="gallery">{page.heading(f"{len(sections) + 1}. The gallery", text)}{gallery_html(gallery)}</section>'
        )
    return page.html_page("A tour of the margins", _SUBTITLE, body, SLIDER_SCRIPT)


def _section_html(number: int, section: Section) -> str:
    parts = [page.heading(f"{number}. {section.title}")]
    parts += [re.sub("`([^`]+)`", r"<code>\1</code>", page.paragraph(text)) for text in section.text]
    if section.slider is not None:
        parts.append(slider_html(section.key, section.slider))
    if section.static_html:
        parts.append(f'<div class="still">{section.static_html}</div>')
    parts += [page.code(text) for text in section.commands]
    return f'<section id="{escape(section.key)}">{"".join(parts)}</section>'
