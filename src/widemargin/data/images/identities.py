"""Splits by identity: classes that are never seen in training, to be tested on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeAlias

import torch

from ...io.errors import InputError
from ...numerics.random import permutation
from .image_files import FolderImages
from .packed import PackedFiles
from .sets import Images
from .splits import count_unseen

AnyImages: TypeAlias = Images | FolderImages


def split_identities(images: AnyImages, fraction: float, seed: int) -> tuple[AnyImages, AnyImages]:
    """Images of seen and of unseen classes, each with its own labels from 0 on; `fraction` of the classes is unseen."""
    total = len(images.class_names)
    count = count_unseen(total, fraction, images.name)
    order = permutation(torch.Generator().manual_seed(seed), total)
    unseen, seen = order[:count].sort().values, order[count:].sort().values
    return _select_classes(images, seen), check_some_pairs(_select_classes(images, unseen))


def concat_images(one: AnyImages, other: AnyImages) -> AnyImages:
    """Both parts of a set as one."""
    if isinstance(one, FolderImages) and isinstance(other, FolderImages):
        if isinstance(one.paths, PackedFiles) and isinstance(other.paths, PackedFiles):
            return replace(one, paths=one.paths + other.paths, y=torch.cat((one.y, other.y)))
        return replace(one, paths=(*one.paths, *other.paths), y=torch.cat((one.y, other.y)))
    assert isinstance(one, Images)
    assert isinstance(other, Images)
    return replace(one, x=torch.cat((one.x, other.x)), y=torch.cat((one.y, other.y)))


def _select_classes(images: AnyImages, class_indices: torch.Tensor) -> AnyImages:
    rows = torch.isin(images.y, class_indices).nonzero().squeeze(1)
    part = images.take(rows)
    names = tuple(images.class_names[k] for k in class_indices.tolist())
    return replace(part, y=torch.searchsorted(class_indices, part.y), class_names=names)


def without_classes(images: AnyImages, removed: Collection[str], names: tuple[str, ...]) -> AnyImages:
    """The images without those of some classes, with labels in the order of `names`, the classes that stay."""
    kept = torch.tensor([k for k, name in enumerate(images.class_names) if name not in removed], dtype=torch.int64)
    found = _select_classes(images, kept)
    assert found.class_names == names
    return found


def check_some_pairs(images: AnyImages) -> AnyImages:
    """The images, if a class has at least two of them, so that there is a pair of one class."""
    counts = torch.bincount(images.y, minlength=len(images.class_names))
    if not len(counts) or int(counts.max()) < 2:
        raise InputError(f"{images.name}: every unseen class has one image only; at least one class needs two")
    return images


def describe_singletons(images: AnyImages) -> str | None:
    """A line about classes of one image among those to test on; None where there is none.

    Such an image is in the gallery, where others must not be taken for it, but nothing of its class is to be found.
    """
    count = int((torch.bincount(images.y, minlength=len(images.class_names)) == 1).sum())
    if not count:
        return None
    what = "1 unseen class has" if count == 1 else f"{count:,} unseen classes have"
    return f"{what} one image: it is searched among the others, but has no pair of its own class"


def check_disjoint_identities(seen: AnyImages, unseen: AnyImages) -> None:
    """Refuse parts that share an identity."""
    both = set(seen.class_names) & set(unseen.class_names)
    if both:
        raise InputError(f"{sorted(both)[0]!r} is in the training part and among the unseen: split by identity")
