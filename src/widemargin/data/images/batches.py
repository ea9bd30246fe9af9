"""Batches of images in memory: the order of an epoch, a part of each batch for every process, augmentation in a thread.

Order and augmentation follow from (seed, epoch, step) alone. So a run that goes on at any step sees the same batches
bit for bit, and the parts of several processes are together the batch of one.

Batches are in random order (`EpochSampler`), with classes drawn equally often (`ClassSampler`), or P×K: P classes with
K images each, so that every image has images of its own and of other classes in its batch (`PKSampler`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...io.errors import InputError, spell_option
from ...numerics.random import BatchSlice, make_generator, permutation
from .augment import Augment
from .sets import Images

T = TypeVar("T")

Batch = tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]
"""Images float32 [N, C, H, W] channels last, labels [N], and if images are mixed the other labels and the share λ."""
ORDER_STREAM, STEP_STREAM = 0, 1  # purposes of generators: the order of an epoch, the augmentation of a step


@dataclass(frozen=True)
class EpochSampler:
    """Assigns samples to processes and steps; `batch_size` is that of one process."""

    num_samples: int
    batch_size: int
    seed: int
    rank: int = 0
    world_size: int = 1
    repeated_augmentation: int = 1
    drop_last: bool = True
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name, low in (("batch_size", 1), ("seed", 0), ("rank", 0), ("world_size", 1), ("repeated_augmentation", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InputError(f"{name}={value!r} must be a whole number of at least {low}")
        if self.rank >= self.world_size:
            raise InputError(f"rank={self.rank} must be below the number of processes, {self.world_size}")
        if len(self) == 0:
            share = f" in each of {self.world_size} processes" if self.world_size > 1 else ""
            raise InputError(
                f"{self.num_samples} images are fewer than a batch of {self.batch_size}{share}; lower the batch size"
            )

    def __len__(self) -> int:
        """Steps of an epoch."""
        steps, rest = divmod(self.num_samples * self.repeated_augmentation, self.batch_size * self.world_size)
        return steps + (rest > 0 and not self.drop_last)

    def epoch_indices(self, epoch: int) -> Tensor:
        """All samples in the order of the epoch, each as often in a row as it is repeated."""
        order = torch.arange(self.num_samples, device="cpu")
        if self.shuffle:
            order = permutation(make_generator(ORDER_STREAM, self.seed, epoch), self.num_samples)
        return order.repeat_interleave(self.repeated_augmentation)

    def step_indices(self, order: Tensor, epoch: int, step: int, *, shuffle_batch: bool) -> tuple[Tensor, BatchSlice]:
        """This process's samples of a step, and its rows of the random numbers.

        Where neighbours will be mixed the batch is shuffled first: repeated samples stand side by side in the order.
        """
        generator = make_generator(STEP_STREAM, self.seed, epoch, step)
        size = self.batch_size * self.world_size
        batch = order[step * size : (step + 1) * size]
        if shuffle_batch:
            batch = batch[permutation(generator, len(batch))]
        start, stop = (len(batch) * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return batch[start:stop], BatchSlice(generator, len(batch), start)

    def steps_from(self, start: int) -> range:
        if not 0 <= start <= len(self):
            raise InputError(f"step {start} is not one of the {len(self)} steps of an epoch")
        return range(start, len(self))


def make_sampler(y: Tensor, per_class: int, *sampler_args: Any, sampling: str = "uniform") -> EpochSampler:
    """The order of samples with labels `y`: each once, by class, or P×K; `sampler_args` are `EpochSampler`'s."""
    if sampling != "uniform":
        if per_class or y.ndim == 2:
            why = "images have several labels" if y.ndim == 2 else f"{spell_option('per_class')} already does"
            raise InputError(f"{spell_option('sampling', sampling)} draws images by their class: {why}")
        return ClassSampler(len(y), *sampler_args, y=y, power=0.5 if sampling == "square_root" else 0.0)
    if per_class and y.ndim == 2:
        raise InputError(f"{spell_option('per_class', per_class)} needs one label per image; these images have several")
    if per_class:
        return PKSampler(len(y), *sampler_args, y=y, per_class=per_class)
    return EpochSampler(len(y), *sampler_args)


class TensorBatches:
    """Augmented batches of images that are in memory; `len` is the number of steps of an epoch."""

    def __init__(
        self,
        images: Images,
        batch_size: int,
        augment: Augment,
        seed: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        repeated_augmentation: int = 1,
        drop_last: bool = True,
        shuffle: bool = True,
        per_class: int = 0,
        sampling: str = "uniform",
    ) -> None:
        if augment.timm:
            ours = "none, paper, fast or seed"
            raise InputError(
                f"{spell_option('augment', 'timm')} is for folders of image files; {images.name} is in memory: use "
                f"{ours}"
            )
        self.images, self.augment = images, augment
        options = (batch_size, seed, rank, world_size, repeated_augmentation, drop_last, shuffle)
        self.sampler = make_sampler(images.y, per_class, *options, sampling=sampling)

    def __len__(self) -> int:
        return len(self.sampler)

    def iter_epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `start` on; the next one is made while the last one is used."""
        steps, order = self.sampler.steps_from(start), self.sampler.epoch_indices(epoch)
        return prefetch(lambda step: self._make_batch(order, epoch, step), steps)

    def _make_batch(self, order: Tensor, epoch: int, step: int) -> Batch:
        rows, source = self.sampler.step_indices(order, epoch, step, shuffle_batch=self.augment.has_mixing)
        x, mix = self.augment(self.images.x.index_select(0, rows), rows, epoch, source)
        return collate_batch(x, self.images.y.index_select(0, rows), mix)


def collate_batch(x: Tensor, y: Tensor, mix: tuple[Tensor, Tensor] | None) -> Batch:
    """The batch with the partners' labels in place of their rows."""
    pair = None if mix is None else (y.index_select(0, mix[0]), mix[1])
    return x.contiguous(memory_format=torch.channels_last), y, pair


def prefetch(make_item: Callable[[int], T], steps: range, ahead: int = 1, threads: int = 1) -> Iterator[T]:
    """Yield `make_item(step)` for every step; threads compute the next `ahead` items, and stop if the loop is left."""
    if not steps:
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="batches") as executor:
        _limit_to_one_thread(executor, threads)
        waiting = iter(steps)
        futures = deque(executor.submit(make_item, step) for step in islice(waiting, ahead))
        try:
            while futures:
                ready = futures.popleft().result()
                futures.extend(executor.submit(make_item, step) for step in islice(waiting, 1))
                yield ready
        finally:
            for future in futures:
                future.cancel()


def _limit_to_one_thread(executor: ThreadPoolExecutor, count: int) -> None:
    """Limit each worker thread to one core, so that it does not compete with the network for the others."""
    barrier = threading.Barrier(count)  # so that each thread runs this once

    def set_one_thread() -> None:
        torch.get_num_threads()  # a thread copies the process's setting when it first asks for it
        torch.set_num_threads(1)
        barrier.wait()

    threads = torch.get_num_threads()
    for future in [executor.submit(set_one_thread) for _ in range(count)]:
        future.result()
    torch.set_num_threads(threads)  # the setting is per thread, but new threads start with the last value set


@dataclass(frozen=True, kw_only=True)
class ClassSampler(EpochSampler):
    """An order in which a class of n images is drawn n^power times as often as one of 1: equally often for power 0.

    An epoch has as many images as there are. Those of a class come in turn, in a random order: of a large class a part,
    of a small one each several times. The last draws that do not divide evenly go to random classes. Order follows from
    (seed, epoch) alone. Kang et al., Decoupling Representation and Classifier (arXiv 1910.09217), section 3.1.
    """

    y: Tensor
    power: float = 0.0

    def epoch_indices(self, epoch: int) -> Tensor:
        """Samples in the order of the epoch."""
        generator = make_generator(ORDER_STREAM, self.seed, epoch)
        shuffled = permutation(generator, self.num_samples)
        grouped = shuffled[torch.argsort(self.y[shuffled], stable=True)]  # class by class, within each at random
        counts = torch.bincount(self.y)
        weights = torch.where(counts > 0, counts.double().pow(self.power), torch.zeros((), dtype=torch.float64))
        wanted = self.num_samples * weights / weights.sum()
        draws = wanted.floor().long()
        order = permutation(generator, len(counts))
        rest = self.num_samples - int(draws.sum())
        draws[order[torch.argsort((wanted - draws)[order], descending=True, stable=True)][:rest]] += 1
        start, first = draws.cumsum(0) - draws, counts.cumsum(0) - counts
        classes = torch.arange(len(counts), device="cpu").repeat_interleave(draws)
        turn = torch.arange(self.num_samples, device="cpu") - start[classes]
        found = grouped[first[classes] + turn % counts[classes]]
        return found[permutation(generator, len(found))].repeat_interleave(self.repeated_augmentation)


@dataclass(frozen=True, kw_only=True)
class PKSampler(EpochSampler):
    """An order in P×K batches of images with labels `y`; `batch_size` is that of one process, P·K/world_size.

    An epoch goes in rounds: in each, classes come in a random order with K of their images that were not yet seen, P
    classes to a batch. So classes of a batch differ, every class comes as often as it has K images, and order follows
    from (seed, epoch) alone.
    """

    y: Tensor
    per_class: int

    def __post_init__(self) -> None:
        whole = self.batch_size * self.world_size
        if self.per_class < 2:
            raise InputError(
                f"{spell_option('per_class')} must be at least 2, because pairs need two images of a class"
            )
        if whole % self.per_class:
            raise InputError(f"a batch of {whole} images is not a multiple of {self.per_class} images per class")
        if self.repeated_augmentation > 1:
            raise InputError(
                f"{spell_option('repeated_augmentation')} cannot be combined with {spell_option('per_class')}"
            )
        super().__post_init__()

    @property
    def classes_per_batch(self) -> int:
        """P, the number of classes in a batch."""
        return self.batch_size * self.world_size // self.per_class

    def __len__(self) -> int:
        groups = torch.bincount(self.y) // self.per_class
        steps = sum(int((groups > turn).sum()) // self.classes_per_batch for turn in range(int(groups.max())))
        if not steps:
            able = int((groups > 0).sum())
            raise InputError(
                f"a batch needs {self.classes_per_batch} classes of at least {self.per_class} images; there are {able}"
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
