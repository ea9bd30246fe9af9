"""A folder of small images that can be learned in a second: three classes of noisy colours, with a test part."""

from pathlib import Path

import torch
from PIL import Image


def draw(root: Path) -> Path:
    """Write them to `root/Colours`."""
    root = root / "Colours"
    draws = torch.Generator().manual_seed(0)
    for part, count in (("train", 16), ("test", 4)):
        for number, word in enumerate(("red", "green", "blue")):
            place = root / part / word
            place.mkdir(parents=True)
            for index in range(count):
                pixels = torch.randint(100, (20, 24, 3), generator=draws, dtype=torch.uint8)
                pixels[:, :, number] += 120
                Image.fromarray(pixels.numpy()).save(place / f"{index}.png")
    return root


# The smallest training on them, as words of the command behind the folder.
FAST = ["fast(width=0.125)", "arcgrad(s=10)", "--input-size", "16", "--batch-size", "12", "--augment", "fast"]
FAST += ["--opt", "sgd", "--lr", "0.05"]
