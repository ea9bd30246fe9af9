"""Image files as RGB: decoded by PIL, turned as their camera says, and refused in one line when they are damaged."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ..errors import InputError
from .content import check_regular

# Asked for by name, for PIL guesses by content: an EPS file called .png would be handed to Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
LARGEST = 89_478_485  # pixels, PIL's own bound: a small file can unpack to more memory than there is

Box = tuple[int, int, int, int]


def read_image(path: Path) -> Image.Image:
    """The image as RGB, upright."""
    check_regular(path)
    try:
        with Image.open(path, formats=FORMATS) as opened:
            if opened.width * opened.height > LARGEST:
                raise Image.DecompressionBombError
            opened.load()
            turned: Image.Image = opened
            with suppress(Exception):  # a broken tag does not spoil the picture
                turned = ImageOps.exif_transpose(opened)
            return _rgb(turned)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InputError(f"{path}: more than {LARGEST:,} pixels; make it smaller or remove it") from None
    except MemoryError:
        raise InputError(f"{path}: too little memory to unpack it; make it smaller or remove it") from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # whatever a damaged file makes its decoder raise
        why = (" ".join(str(error).split()) or type(error).__name__).replace(str(path), path.name)
        raise InputError(f"{path}: cannot be read as an image ({why}); repair or remove it") from None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode[0] in "IF":  # 16 or 32 bits a pixel, which PIL would clip instead of scale
        values = np.array(image, dtype=np.float32)  # in place all the way: of many pixels every copy counts
        np.nan_to_num(values, copy=False)
        values *= 1 / 257 if image.mode[0] == "I" else 255.0 if values.max(initial=0.0) <= 1.0 else 1.0
        image = Image.fromarray(values.round(out=values).clip(0, 255, out=values).astype(np.uint8))
    if image.mode == "P" or "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def fitted(image: Image.Image, size: int, zoom: float = 1.0, interpolation: str = "bicubic") -> NDArray[np.uint8]:
    """The middle size × size pixels [H, W, 3] of the image whose shorter side is made size × zoom pixels long."""
    short = int(size * zoom)
    wide, tall = (max(short, int(short * side / min(image.size))) for side in image.size)
    left, top = round((wide - size) / 2), round((tall - size) / 2)
    if wide * tall > LARGEST:  # a ribbon: only the middle of it, or the whole would fill the memory
        across, down = image.width / wide, image.height / tall
        box = (left * across, top * down, (left + size) * across, (top + size) * down)
        return np.asarray(image.resize((size, size), _filter(interpolation), box=box))
    resized = image if image.size == (wide, tall) else image.resize((wide, tall), _filter(interpolation))
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def cut(image: Image.Image, box: Box, size: int, interpolation: str = "bicubic") -> NDArray[np.uint8]:
    """The box (top, left, height, width) as size × size pixels [H, W, 3]."""
    top, left, tall, wide = box
    part = image.crop((left, top, left + wide, top + tall))
    return np.asarray(part.resize((size, size), _filter(interpolation)))


def _filter(interpolation: str) -> Image.Resampling:
    return Image.Resampling[interpolation.upper()]
