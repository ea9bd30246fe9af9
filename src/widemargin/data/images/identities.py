"""Splits by identity: classes that are never seen in training, to be tested on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeAlias

import torch

from ...io.errors import InputError
from ...numerics.random import permutation
from .folder import FolderImages
from .sets import Images
from .splits import count_unseen

AnyImages: TypeAlias = Images | FolderImages


def split_identities(images: AnyImages, fraction: float, seed: int) -> tuple[AnyImages, AnyImages]:
    """Images of seen and of unseen classes, each with its own labels from 0 on; `fraction` of the classes is unseen."""
    total = len(images.class_names)
    count = count_unseen(total, fraction, images.name)
    order = permutation(torch.Generator().manual_seed(seed), total)
    unseen, seen = order[:count].sort().values, order[count:].sort().values
    return _select_classes(images, seen), check_two_images_per_class(_select_classes(images, unseen))


def concat_images(one: AnyImages, other: AnyImages) -> AnyImages:
    """Both parts of a set as one."""
    if isinstance(one, FolderImages) and isinstance(other, FolderImages):
        return replace(one, paths=one.paths + other.paths, y=torch.cat((one.y, other.y)))
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


def check_two_images_per_class(images: AnyImages) -> AnyImages:
    """The images, if every class has at least two, so that it has a pair; an error names one that has not."""
    counts = torch.bincount(images.y, minlength=len(images.class_names))
    alone = (counts < 2).nonzero().squeeze(1).tolist()
    if alone:
        raise InputError(
            f"{images.name}: {images.class_names[alone[0]]!r} has {counts[alone[0]]} image, pairs want two"
        )
    return images


def check_disjoint_identities(seen: AnyImages, unseen: AnyImages) -> None:
    """Refuse parts that share an identity."""
    both = set(seen.class_names) & set(unseen.class_names)
    if both:
        raise InputError(f"{sorted(both)[0]!r} is in the training part and among the unseen: split by identity")
