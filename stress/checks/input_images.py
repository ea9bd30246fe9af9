"""Image files: RGB of the requested size, or one line that names the file."""

from __future__ import annotations

from ..check import CheckContext, Outcome
from ..fuzzing import load_corpus_files, run_fuzz_cases
from ..mutate import Mutator

TITLE = "Images: truncated, empty, of another ending, 50,000 × 50,000, animated, CMYK, 16 bits, palettes, bytes flipped"
KIND = "input"
LONG = False

COUNTS = (300, 5_000)
MAX_IMAGE_MEGABYTES = 1024
"""An image with the most allowed pixels (89 million) takes 270 MB as RGB, and is copied once or twice."""


def run(context: CheckContext) -> Outcome:
    """Decode mutated bytes with any suffix."""
    try:
        from widemargin.data.images.decode import IMAGE_SUFFIXES, crop_and_resize, read_image, resize_and_centre_crop
    except ImportError:
        return Outcome(0, 0, "nothing", "pillow is not installed, so no image is read at all")
    corpus = list(load_corpus_files("images").values())
    mutator = Mutator(context.seed)

    def read(data: bytes) -> None:
        path = context.folder / f"picture{mutator.rng.choice(IMAGE_SUFFIXES)}"
        path.write_bytes(data)
        image = read_image(path)
        side = mutator.rng.choice((1, 16, 33))
        for pixels in (
            resize_and_centre_crop(image, side, mutator.rng.choice((1.0, 256 / 224))),
            crop_and_resize(image, (0, 0, 1, 1), side),
        ):
            if pixels.shape != (side, side, 3):
                raise AssertionError(f"an image of {pixels.shape}")

    return run_fuzz_cases(
        context,
        "images",
        corpus,
        lambda: mutator.mutate_bytes(corpus),
        read,
        COUNTS,
        expected_text="picture",
        max_megabytes=MAX_IMAGE_MEGABYTES,
    )
