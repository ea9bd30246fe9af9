"""A folder of images for classes that training does not see: eight shades with noise, twelve images each."""

from pathlib import Path

import numpy as np
from PIL import Image


def draw(root: Path) -> Path:
    """Write them to `root/Shades`."""
    root = root / "Shades"
    noise = np.random.default_rng(0)
    for k in range(8):
        place = root / f"shade{k}"
        place.mkdir(parents=True)
        base = np.array([40 + 25 * k, 230 - 25 * k, 40 + 60 * (k % 3)])
        for n in range(12):
            pixels = np.clip(base + noise.normal(0, 12, (24, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{n}.png")
    return root
