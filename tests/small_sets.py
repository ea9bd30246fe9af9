"""CIFAR files in the official layout with few images and pixels that tell their class, for tests that train."""

from dataclasses import replace

import numpy as np

from widemargin.data.images.originals import IMAGE_SETS, OriginalFile


def write_small_cifar(name, folder, monkeypatch, train=300, test=100):
    """The files of a set in `folder`, and its entry with these sizes and no known hashes."""
    entry = IMAGE_SETS[name]
    each = train // len(entry.train)
    entry = replace(
        entry,
        train=tuple(OriginalFile(file.name, each) for file in entry.train),
        test=tuple(OriginalFile(file.name, test) for file in entry.test),
        download_sha256=(),
    )
    monkeypatch.setitem(IMAGE_SETS, name, entry)
    classes, leading = (100, 2) if name == "cifar100" else (10, 1)
    generator = np.random.default_rng(0)
    looks = generator.integers(0, 256, (classes, 3072))
    folder.mkdir(parents=True, exist_ok=True)
    for file in entry.files:
        y = np.arange(file.num_items) % classes
        pixels = np.clip(looks[y] + generator.normal(0, 60, (file.num_items, 3072)), 0, 255)
        head = np.stack([y // 5, y][2 - leading :], 1)  # CIFAR-100: a coarse byte before the fine one
        np.concatenate((head, pixels), 1).astype(np.uint8).tofile(folder / file.name)
    return folder
