"""Images with their nearest neighbours beside them, the mistakes framed."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .escaped import escape

STYLE = """
<style>
.near { display: flex; gap: 6px; align-items: center; margin: 4px 0; flex-wrap: wrap; }
.near figure { margin: 0; } .near img { width: 56px; height: 56px; image-rendering: pixelated; border-radius: 4px;
  border: 3px solid transparent; display: block; }
.near figure.asked img { margin-right: 18px; border-color: var(--soft); }
.near figure.wrong img { border-color: var(--accent); }
.near figcaption { font-size: .7rem; max-width: 60px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.near figure.told { width: 110px; } .near figure.told img { width: 84px; height: 84px; }
.near figure.told figcaption { max-width: 108px; white-space: normal; font-size: .74rem; line-height: 1.25; }
</style>
"""


def thumbnail(pixels: NDArray[np.uint8]) -> str:
    """Pixels [C, H, W] as the address of a PNG inside the page."""
    from PIL import Image

    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, 2))
    image.thumbnail((64, 64))
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def row(asked: tuple[str, str], found: Sequence[tuple[str, str, float]]) -> str:
    """(picture, class) that was asked for, and what lies nearest: (picture, class, cosine)."""
    cells = [_cell(*asked, "asked", "asked for")]
    cells += [_cell(picture, name, "" if name == asked[1] else "wrong", f"{cos:.2f}") for picture, name, cos in found]
    return f'<div class="near">{"".join(cells)}</div>'


def _cell(picture: str, name: str, kind: str, words: str) -> str:
    said = escape(f"{name} ({words})")
    inside = f'<img src="{picture}" alt="{said}"><figcaption>{escape(name)}</figcaption>'
    return f'<figure class="{kind}" title="{said}">{inside}</figure>'


def captioned(picture: str, words: str) -> str:
    """One picture with what there is to say under it."""
    said = escape(words)
    return f'<figure class="told"><img src="{picture}" alt="{said}"><figcaption>{escape(words)}</figcaption></figure>'
