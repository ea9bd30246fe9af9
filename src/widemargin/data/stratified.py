"""Parts of a labelled set in which every class keeps its share: a held-out part, or a fraction to learn from."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ..errors import InputError
from .draws import permutation


class LabelledSamples(Protocol):
    """Samples with labels `y` [N], of which rows can be taken."""

    @property
    def y(self) -> Tensor: ...

    def take(self: SamplesT, rows: Tensor) -> SamplesT: ...


SamplesT = TypeVar("SamplesT", bound=LabelledSamples)


def stratified_split(images: SamplesT, fraction: float, seed: int) -> tuple[SamplesT, SamplesT]:
    """The rest and a held-out part with `share` of every class; a class of one sample stays in the rest."""
    if not 0.0 < fraction < 1.0:
        raise InputError(f"held-out share {fraction!r} must lie between 0 and 1, neither included")
    rank, count = _ranks_within_class(images.y, seed)
    wanted = _class_quota(count, fraction).minimum(count - 1)
    held = rank < wanted
    return images.take(torch.nonzero(~held).squeeze(1)), images.take(torch.nonzero(held).squeeze(1))


def stratified_subset(images: SamplesT, fraction: float, seed: int) -> SamplesT:
    """`share` of every class, at least one sample each; of one seed the smaller shares lie within the larger ones."""
    if not 0.0 < fraction <= 1.0:
        raise InputError(f"share {fraction!r} of the data must be above 0 and at most 1")
    rank, count = _ranks_within_class(images.y, seed)
    return images.take(torch.nonzero(rank < _class_quota(count, fraction)).squeeze(1))


def _class_quota(count: Tensor, fraction: float) -> Tensor:
    """How many samples that is of each class, at least one; in float32, whatever the process's default dtype is."""
    return (count.to(torch.float32) * fraction).round().clamp(min=1)


def _ranks_within_class(y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """For each sample its place in a random order of its class, and how many the class has."""
    shuffled = permutation(torch.Generator().manual_seed(seed), len(y))
    grouped = shuffled[torch.argsort(y[shuffled], stable=True)]
    counts = torch.bincount(y)
    before = counts.cumsum(0) - counts
    rank = torch.empty_like(grouped)
    rank[grouped] = torch.arange(len(y), device=y.device) - before[y[grouped]]
    return rank, counts[y]
