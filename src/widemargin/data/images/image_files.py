"""Images that are decoded when they are needed, from files of their own or parts of larger ones, and their batches.

Images are decoded by threads: decoding leaves Python's lock alone, and threads need no second process that imports
everything again (only `timm_transforms` does). Images that fit into memory are faster still as `Images`
(`load_into_memory`). An image that cannot be decoded stops what is done, is left out, or is replaced by another
of its batch (`FolderBatches`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...io.errors import InputError, spell_option
from ...numerics.random import integers
from .augment import Augment
from .batches import Batch, collate_batch, make_sampler, prefetch
from .decode import (
    Box,
    ImageFile,
    crop_and_resize,
    default_num_workers,
    open_decoded_image,
    resize_and_centre_crop,
)
from .packed import PackedFiles
from .sets import Images, ImageSet
from .timm_transforms import TimmImageLoader
from .transforms import compute_crop_boxes, draw_crop_uniforms

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, the field's for photographs
MAX_IN_MEMORY_BYTES = 2 << 30  # bytes
_PREFETCHED_BATCHES = 3  # batches prepared ahead, so that a slow file does not stall the network
_IMAGES_PER_TASK = 8  # images a thread decodes per task, because scheduling a task takes time too
_BATCH_THREADS = 2  # threads that prepare batches: one augments while files of the next batch are decoded


def missing_size_error() -> InputError:
    """Return the error for images of a folder without a common size."""
    return InputError(f"images of a folder differ in size: choose their size with {spell_option('input_size')}")


@dataclass(frozen=True, eq=False)
class FolderImages:
    """Files of images, their labels y, int64 [N] or booleans [N, C] of several each, and the class names."""

    name: str
    paths: Sequence[ImageFile]
    y: Tensor
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: Tensor) -> FolderImages:
        """These rows, in this order."""
        paths: Sequence[ImageFile]
        if isinstance(self.paths, PackedFiles):
            paths = self.paths.take(rows.numpy())
        else:
            paths = tuple(self.paths[row] for row in rows.tolist())
        return FolderImages(self.name, paths, self.y.index_select(0, rows), self.class_names)

    def fits_in_memory(self, size: int, max_bytes: int = MAX_IN_MEMORY_BYTES) -> bool:
        """Whether the images at this size need at most `max_bytes`."""
        return len(self) * 3 * size * size <= max_bytes

    def load_into_memory(
        self,
        size: int,
        interpolation: str = "bicubic",
        *,
        workers: int | None = None,
        bad_images: dict[str, str] | None = None,
    ) -> Images:
        """Decode all images, resize their shorter side to `size` pixels and crop the centre.

        With `bad_images` those that cannot be decoded are left out, and named there with the reason.
        """
        x = torch.empty((len(self), 3, size, size), dtype=torch.uint8)

        def read(row: int) -> str | None:
            try:
                with open_decoded_image(self.paths[row]) as image:
                    x[row] = _channels_first(resize_and_centre_crop(image, size, 1.0, interpolation))
            except InputError as error:
                if bad_images is None:
                    raise
                bad_images[str(self.paths[row])] = str(error)
                return str(error)
            return None

        with ThreadPoolExecutor(workers or default_num_workers()) as pool:
            problems = list(pool.map(read, range(len(self))))
        images = Images(self.name, x, self.y, self.class_names)
        good = [row for row, problem in enumerate(problems) if problem is None]
        return images if len(good) == len(self) else images.take(torch.tensor(good, dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class FolderSet:
    """A training and a test part of a folder, and the z-score of photographs."""

    name: str
    train: FolderImages
    test: FolderImages
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names

    def load_into_memory(self, size: int, interpolation: str = "bicubic") -> ImageSet:
        """Both parts in memory."""
        train, test = self.train.load_into_memory(size, interpolation), self.test.load_into_memory(size, interpolation)
        return ImageSet(self.name, train, test, self.mean, self.std)


class FolderBatches:
    """Augmented batches of images that are decoded as they are needed; otherwise as `TensorBatches`.

    An image that cannot be decoded is an error (`on_bad_image="stop"`), is replaced by another image of its batch with
    that one's label, so that training goes on with full batches ("replace"), or is left out ("drop"). Of the last two
    `bad_images` has the names and reasons, `num_bad` how often that happened since an epoch began.
    """

    def __init__(
        self,
        images: FolderImages,
        batch_size: int,
        augment: Augment,
        seed: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        repeated_augmentation: int = 1,
        drop_last: bool = True,
        shuffle: bool = True,
        workers: int | None = None,
        per_class: int = 0,
        sampling: str = "uniform",
        on_bad_image: str = "stop",
        bad_images: dict[str, str] | None = None,
    ) -> None:
        if not augment.size:
            raise missing_size_error()
        self.images, self.augment, self.workers = images, augment, workers or default_num_workers()
        self.on_bad_image, self.num_bad, self._lock = on_bad_image, 0, threading.Lock()
        self.bad_images: dict[str, str] = {} if bad_images is None else bad_images
        # Processes of a machine share its cores, and a decoding process is memory.
        local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        self._timm_loader = (
            TimmImageLoader(augment, workers or max(1, default_num_workers() // local_world_size))
            if augment.timm
            else None
        )
        options = (batch_size, seed, rank, world_size, repeated_augmentation, drop_last, shuffle)
        self.sampler = make_sampler(images.y, per_class, *options, sampling=sampling)
        # PIL crops and resizes each image at its own size; what comes after is the batch's.
        pad = augment.pad if augment.scale is None else 0
        self._batch_augment = replace(augment, timm=False, size=0, scale=None, pad=pad, eval_zoom=1.0)

    def __len__(self) -> int:
        return len(self.sampler)

    def iter_epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `start` on; the next ones are made while the last one is used."""
        return self._iter_batches(epoch, self.sampler.steps_from(start))

    def _iter_batches(self, epoch: int, steps: range) -> Iterator[Batch]:
        self.num_bad = 0
        order = self.sampler.epoch_indices(epoch)
        if self._timm_loader is not None:
            make_timm_batch = partial(self._make_timm_batch, self._timm_loader, order, epoch)
            yield from prefetch(make_timm_batch, steps, _PREFETCHED_BATCHES)
            return
        with ThreadPoolExecutor(self.workers, thread_name_prefix="decode") as pool:
            make_batch = partial(self._make_batch, pool, order, epoch)
            yield from prefetch(make_batch, steps, _PREFETCHED_BATCHES, _BATCH_THREADS)

    def _make_batch(self, pool: ThreadPoolExecutor, order: Tensor, epoch: int, step: int) -> Batch:
        rows, source = self.sampler.step_indices(order, epoch, step, shuffle_batch=self.augment.has_mixing)
        boxes = None if self.augment.scale is None else _CropBoxes(draw_crop_uniforms(source, len(rows)), self.augment)
        size = self.augment.size
        pixels = np.empty((len(rows), size, size, 3), np.uint8)  # channels last, as PIL has them and networks want them

        def load(place: int, row: int) -> str | None:
            try:
                pixels[place] = self._load_image(row, place, boxes)
            except InputError as error:
                if self.on_bad_image == "stop":
                    raise
                return str(error)
            return None

        numbers = rows.tolist()
        chunk = max(1, min(_IMAGES_PER_TASK, len(numbers) // (4 * self.workers)))

        def load_some(start: int) -> list[str | None]:
            return [load(start + k, row) for k, row in enumerate(numbers[start : start + chunk])]

        problems = [problem for some in pool.map(load_some, range(0, len(numbers), chunk)) for problem in some]
        x, rows = self._mend_batch(torch.from_numpy(pixels).permute(0, 3, 1, 2), rows, problems)
        x, mix = self._batch_augment(x, rows, epoch, source)
        return collate_batch(x, self.images.y.index_select(0, rows), mix)

    def _make_timm_batch(self, timm_loader: TimmImageLoader, order: Tensor, epoch: int, step: int) -> Batch:
        rows, source = self.sampler.step_indices(order, epoch, step, shuffle_batch=self.augment.has_mixing)
        seeds = integers(source, len(rows), 2**31)
        x, problems = timm_loader([self.images.paths[row] for row in rows.tolist()], seeds.tolist())
        if self.on_bad_image == "stop" and (first := next(filter(None, problems), None)) is not None:
            raise InputError(first)
        x, rows = self._mend_batch(x, rows, problems)
        x, mix = self.augment.mix(x, source)
        return collate_batch(x, self.images.y.index_select(0, rows), mix)

    def _mend_batch(self, x: Tensor, rows: Tensor, problems: Sequence[str | None]) -> tuple[Tensor, Tensor]:
        """Drop the images that could not be decoded, or replace them by other images of the batch."""
        bad = [place for place, problem in enumerate(problems) if problem is not None]
        if not bad:
            return x, rows
        with self._lock:
            self.num_bad += len(bad)
        for place in bad:
            self.bad_images[str(self.images.paths[int(rows[place])])] = str(problems[place])
        good = [place for place, problem in enumerate(problems) if problem is None]
        if not good:
            raise InputError(f"none of the {len(rows)} images of a batch can be read, such as {problems[0]}")
        if self.on_bad_image == "drop":
            places = torch.tensor(good, dtype=torch.int64)
        else:
            places = torch.arange(len(rows))
            for place in bad:  # the next image of the batch that can be read, cyclically
                places[place] = next((other for other in good if other > place), good[0])
        return x.index_select(0, places), rows.index_select(0, places)

    def _load_image(self, row: int, place: int, boxes: _CropBoxes | None) -> NDArray[np.uint8]:
        augment = self.augment
        with open_decoded_image(self.images.paths[row]) as image:
            if boxes is None:
                return resize_and_centre_crop(image, augment.size, augment.zoom(0), augment.interpolation)
            box = boxes.box(place, image.height, image.width)
            return crop_and_resize(image, box, augment.size, augment.interpolation)


class _CropBoxes:
    """Random boxes of the images of a batch, computed for all of them at once whenever one has a new size."""

    def __init__(self, uniforms: Tensor, augment: Augment) -> None:
        assert augment.scale is not None
        self.uniforms, self.scale, self.ratio = uniforms, augment.scale, augment.ratio
        self.by_size: dict[tuple[int, int], list[list[int]]] = {}

    def box(self, place: int, height: int, width: int) -> Box:
        """Top, left, height and width of the box of an image of this size."""
        found = self.by_size.get((height, width))
        if found is None:
            sides = compute_crop_boxes(self.uniforms, height, width, self.scale, self.ratio)
            found = self.by_size[height, width] = torch.stack(sides, 1).long().tolist()
        top, left, tall, wide = found[place]
        return top, left, tall, wide


def _channels_first(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.tensor(pixels).permute(2, 0, 1)
