"""P×K batches: P classes with K images each, so that every image has partners and strangers in its batch.

An epoch goes in rounds: in each, classes come in a random order with K of their images that were not yet seen, P
classes to a batch. So classes of a batch differ, every class comes as often as it has K images, and as everywhere
order follows from (seed, epoch) alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .batches import ORDER_STREAM, EpochSampler
from .draws import make_generator, permutation


@dataclass(frozen=True, kw_only=True)
class PKSampler(EpochSampler):
    """An order in P×K batches of images with labels `y`; `batch_size` is that of one process, P·K/world."""

    y: Tensor
    per_class: int

    def __post_init__(self) -> None:
        whole = self.batch_size * self.world_size
        if self.per_class < 2:
            raise InputError(f"per_class={self.per_class} must be at least 2: an image needs a partner of its class")
        if whole % self.per_class:
            raise InputError(f"a batch of {whole} images cannot hold {self.per_class} of each of its classes evenly")
        if self.repeated_augmentation > 1:
            raise InputError("repeated augmentation does not go with batches of so many images per class")
        super().__post_init__()

    @property
    def classes_per_batch(self) -> int:
        """P."""
        return self.batch_size * self.world_size // self.per_class

    def __len__(self) -> int:
        groups = torch.bincount(self.y) // self.per_class
        steps = sum(int((groups > turn).sum()) // self.classes_per_batch for turn in range(int(groups.max())))
        if not steps:
            able = int((groups > 0).sum())
            raise InputError(
                f"a batch wants {self.classes_per_batch} classes of at least {self.per_class} images; {able} have them"
            )
        return steps

    def epoch_indices(self, epoch: int) -> Tensor:
        """Samples in the order of the epoch, batch after batch."""
        generator = make_generator(ORDER_STREAM, self.seed, epoch)
        shuffled = permutation(generator, self.num_samples)
        grouped = shuffled[torch.argsort(self.y[shuffled], stable=True)]  # class by class, within each at random
        counts = torch.bincount(self.y)
        first = counts.cumsum(0) - counts
        groups = counts // self.per_class
        found = []
        for turn in range(int(groups.max())):
            able = (groups > turn).nonzero().squeeze(1)
            some = able[permutation(generator, len(able))]
            some = some[: len(some) - len(some) % self.classes_per_batch]
            within = torch.arange(self.per_class, device="cpu")
            places = (first[some] + turn * self.per_class).unsqueeze(1) + within
            found.append(grouped[places.flatten()])
        return torch.cat(found)
