"""Image files: RGB of the size asked for, or one line that names the file."""

from __future__ import annotations

from ..check import Outcome, Size
from ..corpus import files
from ..mutate import Mutator
from ..trial import run_trials

TITLE = "Images: truncated, empty, of another ending, 50,000 × 50,000, animated, CMYK, 16 bits, palettes, bytes flipped"
KIND = "input"
LONG = False

COUNTS = (300, 5_000)
MEGABYTES = 1024
"""An image of the most pixels that are taken (89 million) has 270 MB as RGB, and is copied once or twice on the way."""


def run(size: Size) -> Outcome:
    """Decode what bytes make, under any ending."""
    try:
        from ...data.decode import SUFFIXES, cut, fitted, read_image
    except ImportError:
        return Outcome(0, 0, "nothing", "pillow is not installed, so no image is read at all")
    kept = list(files("images").values())
    mutator = Mutator(size.seed)

    def read(data: bytes) -> None:
        path = size.folder / f"picture{mutator.draw.choice(SUFFIXES)}"
        path.write_bytes(data)
        image = read_image(path)
        side = mutator.draw.choice((1, 16, 33))
        for pixels in (fitted(image, side, mutator.draw.choice((1.0, 256 / 224))), cut(image, (0, 0, 1, 1), side)):
            if pixels.shape != (side, side, 3):
                raise AssertionError(f"an image of {pixels.shape}")

    return run_trials(
        size, "images", kept, lambda: mutator.spoiled(kept), read, COUNTS, place="picture", megabytes=MEGABYTES
    )
