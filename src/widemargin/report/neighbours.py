"""Images with their nearest neighbours beside them, the mistakes framed."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .escaped import escape

THUMBNAIL_STYLE = """
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


def neighbour_row(query: tuple[str, str], matches: Sequence[tuple[str, str, float]]) -> str:
    """(picture, class) that was asked for, and what lies nearest: (picture, class, cosine)."""
    cells = [_thumbnail_figure(*query, "asked", "asked for")]
    cells += [
        _thumbnail_figure(picture, name, "" if name == query[1] else "wrong", f"{cos:.2f}")
        for picture, name, cos in matches
    ]
    return f'<div class="near">{"".join(cells)}</div>'


def _thumbnail_figure(image_uri: str, name: str, css_class: str, note: str) -> str:
    caption = escape(f"{name} ({note})")
    inside = f'<img src="{image_uri}" alt="{caption}"><figcaption>{escape(name)}</figcaption>'
    return f'<figure class="{css_class}" title="{caption}">{inside}</figure>'


def captioned_thumbnail(image_uri: str, caption: str) -> str:
    """One picture with what there is to say under it."""
    escaped_caption = escape(caption)
    return f'<figure class="told"><img src="{image_uri}" alt="{escaped_caption}"><figcaption>{escape(caption)}</figcaption></figure>'
