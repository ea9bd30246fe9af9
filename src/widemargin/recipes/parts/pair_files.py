"""Pairs of image files, decoded once each."""

from __future__ import annotations

from pathlib import Path

import torch

from ...errors import InputError
from ...training.protocols import read_pairs
from ...training.siamese import ImagePairs

PairFiles = list[tuple[Path, Path, bool]]


def read_pair_images(path: str, size: int) -> tuple[ImagePairs, PairFiles]:
    """The pairs of a CSV with their images in memory, and the files they are of."""
    from ...data.folder import FolderImages

    files = read_pairs(path)
    each = tuple(dict.fromkeys(file for a, b, _ in files for file in (a, b)))
    place = {file: k for k, file in enumerate(each)}
    x = FolderImages(path, each, torch.zeros(len(each), dtype=torch.int64), ("image",)).load_into_memory(size).x
    first, second = torch.tensor([place[a] for a, _, _ in files]), torch.tensor([place[b] for _, b, _ in files])
    return ImagePairs(x, first, second, torch.tensor([same for *_, same in files])), files


def split_pairs(
    pairs: ImagePairs, files: PairFiles, seed: int, test_fraction: float = 0.2
) -> tuple[ImagePairs, ImagePairs, PairFiles]:
    """Pairs to learn from, pairs to judge on, and the latter's files."""
    count = round(test_fraction * len(pairs))
    if count < 2:
        raise InputError(f"{len(pairs)} pairs are too few to keep some back; give pairs to judge on with --judge")
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    back, rest = order[:count], order[count:]
    part = [ImagePairs(pairs.x, pairs.first[rows], pairs.second[rows], pairs.same[rows]) for rows in (rest, back)]
    return part[0], part[1], [files[k] for k in back.tolist()]
