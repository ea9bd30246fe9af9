"""Splits by identity: classes that are never seen in training, to be judged on."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import torch

from ..errors import InputError
from .draws import permutation
from .folder import FolderImages
from .images import Images
from .splits import count_unseen

Some: TypeAlias = Images | FolderImages


def split_identities(images: Some, share: float, seed: int) -> tuple[Some, Some]:
    """Images of seen and of unseen classes, each with its own labels from 0 on; `share` of the classes is unseen."""
    total = len(images.classes)
    count = count_unseen(total, share, images.name)
    order = permutation(torch.Generator().manual_seed(seed), total)
    unseen, seen = order[:count].sort().values, order[count:].sort().values
    return _of_classes(images, seen), check_pairs(_of_classes(images, unseen))


def joined(one: Some, other: Some) -> Some:
    """Both parts of a set as one."""
    if isinstance(one, FolderImages) and isinstance(other, FolderImages):
        return replace(one, paths=one.paths + other.paths, y=torch.cat((one.y, other.y)))
    assert isinstance(one, Images)
    assert isinstance(other, Images)
    return replace(one, x=torch.cat((one.x, other.x)), y=torch.cat((one.y, other.y)))


def _of_classes(images: Some, which: torch.Tensor) -> Some:
    rows = torch.isin(images.y, which).nonzero().squeeze(1)
    part = images.take(rows)
    names = tuple(images.classes[k] for k in which.tolist())
    return replace(part, y=torch.searchsorted(which, part.y), classes=names)


def check_pairs(images: Some) -> Some:
    """Identities of one image have no pair: refused, with a name."""
    counts = torch.bincount(images.y, minlength=len(images.classes))
    alone = (counts < 2).nonzero().squeeze(1).tolist()
    if alone:
        raise InputError(f"{images.name}: {images.classes[alone[0]]!r} has {counts[alone[0]]} image, pairs want two")
    return images


def check_apart(seen: Some, unseen: Some) -> None:
    """No identity in both parts."""
    both = set(seen.classes) & set(unseen.classes)
    if both:
        raise InputError(f"{sorted(both)[0]!r} is in the training part and among the unseen: split by identity")
