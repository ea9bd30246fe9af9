"""Parts of a labelled set in which every class keeps its share: a held-out part, or a fraction to learn from."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ..errors import InputError
from .draws import permutation


class Labelled(Protocol):
    """Samples with labels `y` [N], of which rows can be taken."""

    @property
    def y(self) -> Tensor: ...

    def take(self: Self, rows: Tensor) -> Self: ...


Self = TypeVar("Self", bound=Labelled)


def split_off(images: Self, share: float, seed: int) -> tuple[Self, Self]:
    """The rest and a held-out part with `share` of every class; a class of one sample stays in the rest."""
    if not 0.0 < share < 1.0:
        raise InputError(f"held-out share {share!r} must lie between 0 and 1, neither included")
    place, count = _places(images.y, seed)
    wanted = _part(count, share).minimum(count - 1)
    held = place < wanted
    return images.take(torch.nonzero(~held).squeeze(1)), images.take(torch.nonzero(held).squeeze(1))


def subset(images: Self, share: float, seed: int) -> Self:
    """`share` of every class, at least one sample each; of one seed the smaller shares lie within the larger ones."""
    if not 0.0 < share <= 1.0:
        raise InputError(f"share {share!r} of the data must be above 0 and at most 1")
    place, count = _places(images.y, seed)
    return images.take(torch.nonzero(place < _part(count, share)).squeeze(1))


def _part(count: Tensor, share: float) -> Tensor:
    """How many samples that is of each class, at least one; in float32, whatever the process's default dtype is."""
    return (count.to(torch.float32) * share).round().clamp(min=1)


def _places(y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """For each sample its place in a random order of its class, and how many the class has."""
    shuffled = permutation(torch.Generator().manual_seed(seed), len(y))
    grouped = shuffled[torch.argsort(y[shuffled], stable=True)]
    counts = torch.bincount(y)
    before = counts.cumsum(0) - counts
    place = torch.empty_like(grouped)
    place[grouped] = torch.arange(len(y), device=y.device) - before[y[grouped]]
    return place, counts[y]
