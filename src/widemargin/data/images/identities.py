"""Splits by identity: classes that are never seen in training, to be tested on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol, TypeAlias, TypeVar

import torch

from ...io.errors import InputError
from ...numerics.random import permutation
from .image_files import FolderImages
from .packed import PackedFiles
from .sets import Images
from .splits import count_unseen

AnyImages: TypeAlias = Images | FolderImages


class LabelledImages(Protocol):
    """Labels y [N] of images or other items, with the names of their classes."""

    @property
    def name(self) -> str: ...

    @property
    def y(self) -> torch.Tensor: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...


LabelledT = TypeVar("LabelledT", bound=LabelledImages)


def split_identities(images: AnyImages, fraction: float, seed: int) -> tuple[AnyImages, AnyImages]:
    """Images of seen and of unseen classes, each with its own labels from 0 on; `fraction` of the classes is unseen."""
    seen, unseen = draw_identities(len(images.class_names), fraction, seed, images.name)
    return select_classes(images, seen), check_some_pairs(select_classes(images, unseen))


def draw_identities(
    num_classes: int, fraction: float, seed: int, where: str, option: str = "unseen_classes"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the classes that are seen and of those that are not, both in ascending order."""
    count = count_unseen(num_classes, fraction, where, option)
    order = permutation(torch.Generator().manual_seed(seed), num_classes)
    return order[count:].sort().values, order[:count].sort().values


def concat_images(one: AnyImages, other: AnyImages) -> AnyImages:
    """Both parts of a set as one."""
    if isinstance(one, FolderImages) and isinstance(other, FolderImages):
        if isinstance(one.paths, PackedFiles) and isinstance(other.paths, PackedFiles):
            return replace(one, paths=one.paths + other.paths, y=torch.cat((one.y, other.y)))
        return replace(one, paths=(*one.paths, *other.paths), y=torch.cat((one.y, other.y)))
    assert isinstance(one, Images)
    assert isinstance(other, Images)
    return replace(one, x=torch.cat((one.x, other.x)), y=torch.cat((one.y, other.y)))


def select_classes(images: AnyImages, class_indices: torch.Tensor) -> AnyImages:
    """The images of these classes, given in ascending order, with labels from 0 on."""
    rows = torch.isin(images.y, class_indices).nonzero().squeeze(1)
    part = images.take(rows)
    names = tuple(images.class_names[k] for k in class_indices.tolist())
    return replace(part, y=torch.searchsorted(class_indices, part.y), class_names=names)


def without_classes(images: AnyImages, removed: Collection[str], names: tuple[str, ...]) -> AnyImages:
    """The images without those of some classes, with labels in the order of `names`, the classes that stay."""
    kept = torch.tensor([k for k, name in enumerate(images.class_names) if name not in removed], dtype=torch.int64)
    found = select_classes(images, kept)
    assert found.class_names == names
    return found


def check_some_pairs(images: LabelledT) -> LabelledT:
    """Return the images; InputError unless a class has at least two, because there would be no pair of one class."""
    counts = torch.bincount(images.y, minlength=len(images.class_names))
    if not len(counts) or int(counts.max()) < 2:
        raise InputError(f"{images.name}: every unseen class has one image only; at least one class needs two")
    return images


def describe_singletons(images: LabelledImages) -> str | None:
    """One line on test classes with a single image; None if there are none.

    Such an image is a distractor in the gallery: no other image of its class can be retrieved.
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
        raise InputError(f"{sorted(both)[0]!r} is both a training class and an unseen class: split by identity")
