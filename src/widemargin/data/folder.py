"""Any folder of images: `root/train/CLASS/*.png` with `root/test` or `root/val` beside it, or `root/CLASS/*.png`.

Images are decoded when they are needed, by threads: decoding leaves Python's lock alone, and threads need no second
process that imports everything again (only timm's transforms do, see there). A folder that fits into memory is faster
still as `Images` (`in_memory`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from .augment import Augment
from .batches import Batch, ahead, batch_of, order_of
from .decode import SUFFIXES, cut, fitted, read_image
from .draws import integers
from .geometry import draw_boxes, random_boxes
from .images import Images, ImageSet
from .stratified import split_off
from .timm_transforms import TimmImages

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, the field's for photographs
FITS = 2 << 30  # bytes
TESTS = ("test", "val", "valid", "validation")


@dataclass(frozen=True, eq=False)
class FolderImages:
    """Paths of images, their labels y, int64 [N], and the class names."""

    name: str
    paths: tuple[Path, ...]
    y: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: Tensor) -> FolderImages:
        """These rows, in this order."""
        paths = tuple(self.paths[row] for row in rows.tolist())
        return FolderImages(self.name, paths, self.y.index_select(0, rows), self.classes)

    def fits(self, size: int, limit: int = FITS) -> bool:
        """Whether the images at this size need no more than so many bytes."""
        return len(self) * 3 * size * size <= limit

    def in_memory(self, size: int, interpolation: str = "bicubic") -> Images:
        """Every image decoded, its shorter side made `size` pixels and its middle kept."""
        x = torch.empty((len(self), 3, size, size), dtype=torch.uint8)

        def read(row: int) -> None:
            x[row] = _channels_first(fitted(read_image(self.paths[row]), size, 1.0, interpolation))

        with ThreadPoolExecutor(_workers()) as pool:
            for _ in pool.map(read, range(len(self))):
                pass
        return Images(self.name, x, self.y, self.classes)


@dataclass(frozen=True, eq=False)
class FolderSet:
    """A training and a test part of a folder, and the z-score of photographs."""

    name: str
    train: FolderImages
    test: FolderImages
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    def in_memory(self, size: int, interpolation: str = "bicubic") -> ImageSet:
        """Both parts in memory."""
        train, test = self.train.in_memory(size, interpolation), self.test.in_memory(size, interpolation)
        return ImageSet(self.name, train, test, self.mean, self.std)


def load_folder(root: str | Path, *, held_out: float = 0.2, seed: int = 0) -> FolderSet:
    """The images of a folder; without a test folder `held_out` of each class becomes the test part."""
    root = Path(root).expanduser()
    if not root.is_dir():
        raise InputError(f"{root} is no folder of images")
    name = root.resolve().name
    train = root / "train" if (root / "train").is_dir() else root
    images = _scanned(name, train)
    tests = [root / test for test in TESTS if (root / test).is_dir()] if train != root else []
    if not tests:
        rest, held = split_off(images, held_out, seed)
        if not len(held):
            raise InputError(f"{train}: one image per class leaves none to test on; add images or a folder {root}/test")
        return FolderSet(name, rest, held)
    return FolderSet(name, images, _scanned(name, tests[0], images.classes))


def _scanned(name: str, folder: Path, known: tuple[str, ...] | None = None) -> FolderImages:
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if known is None and len(classes) < 2:
        found = "no folder per class" if not classes else f"only one class, {classes[0]!r},"
        raise InputError(f"{folder}: {found} in it; images are expected at {folder}/CLASS/*.png or train/CLASS/*.png")
    if not classes:
        raise InputError(f"{folder}: no folder per class in it; images are expected at {folder}/CLASS/*.png")
    allowed = set(known or classes)
    for word in classes:
        if known is not None and word not in allowed:
            raise InputError(f"{folder}: class {word!r} is not among the {len(known)} classes to train on")
    order = known or tuple(classes)
    number = {word: place for place, word in enumerate(order)}  # a list would be searched for every class
    paths, labels = [], []
    for word in classes:
        found_here = sorted(_images_in(folder / word))
        if not found_here:
            endings = ", ".join(suffix[1:] for suffix in SUFFIXES)
            raise InputError(f"{folder}: class {word!r} has no images ({endings}); add some or remove its folder")
        paths += found_here
        labels += [number[word]] * len(found_here)
    return FolderImages(name, tuple(paths), torch.tensor(labels, dtype=torch.int64), order)


def _images_in(folder: Path) -> Iterator[Path]:
    for place, _, files in os.walk(folder):
        for file in files:
            if not file.startswith(".") and file.lower().endswith(SUFFIXES):
                yield Path(place, file)


class FolderBatches:
    """Augmented batches of images that are decoded as they are needed; otherwise as `TensorBatches`."""

    def __init__(
        self,
        images: FolderImages,
        batch_size: int,
        augment: Augment,
        seed: int,
        *,
        rank: int = 0,
        world: int = 1,
        repeats: int = 1,
        drop_last: bool = True,
        shuffle: bool = True,
        workers: int | None = None,
        per_class: int = 0,
    ) -> None:
        if not augment.size:
            raise InputError("images of a folder differ in size: say how large they are to be, with --input-size")
        self.images, self.augment, self.workers = images, augment, workers or _workers()
        here = int(os.environ.get("LOCAL_WORLD_SIZE", world))  # they share the cores, and a decoding process is memory
        self._timm = TimmImages(augment, workers or max(1, _workers() // here)) if augment.timm else None
        self.order = order_of(images.y, per_class, batch_size, seed, rank, world, repeats, drop_last, shuffle)
        # PIL crops and resizes each image at its own size; what comes after is the batch's.
        pad = augment.pad if augment.scale is None else 0
        self._after = replace(augment, timm=False, size=0, scale=None, pad=pad, eval_zoom=1.0)

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `start` on; the next one is made while the last one is used."""
        return self._batches(epoch, self.order.steps_from(start))

    def _batches(self, epoch: int, steps: range) -> Iterator[Batch]:
        order = self.order.of_epoch(epoch)
        if self._timm is not None:
            yield from ahead(partial(self._timm_batch, self._timm, order, epoch), steps)
            return
        with ThreadPoolExecutor(self.workers, thread_name_prefix="decode") as pool:
            yield from ahead(lambda step: self._batch(pool, order, epoch, step), steps)

    def _batch(self, pool: ThreadPoolExecutor, order: Tensor, epoch: int, step: int) -> Batch:
        rows, source = self.order.of_step(order, epoch, step, paired=self.augment.mixes)
        boxes: list[Tensor | None] = [None] * len(rows)
        if self.augment.scale is not None:
            boxes = list(draw_boxes(source, len(rows)))
        x = torch.empty((len(rows), 3, self.augment.size, self.augment.size), dtype=torch.uint8)
        for place, image in enumerate(pool.map(self._one, rows.tolist(), boxes)):
            x[place] = image
        x, mix = self._after(x, rows, epoch, source)
        return batch_of(x, self.images.y.index_select(0, rows), mix)

    def _timm_batch(self, timm: TimmImages, order: Tensor, epoch: int, step: int) -> Batch:
        rows, source = self.order.of_step(order, epoch, step, paired=self.augment.mixes)
        seeds = integers(source, len(rows), 2**31)
        x = timm([self.images.paths[row] for row in rows.tolist()], seeds.tolist())
        x, mix = self.augment.mixed(x, source)
        return batch_of(x, self.images.y.index_select(0, rows), mix)

    def _one(self, row: int, drawn: Tensor | None) -> Tensor:
        augment, image = self.augment, read_image(self.images.paths[row])
        if drawn is None or augment.scale is None:
            return _channels_first(fitted(image, augment.size, augment.zoom(0), augment.interpolation))
        box = [int(side) for side in random_boxes(drawn[None], image.height, image.width, augment.scale, augment.ratio)]
        return _channels_first(cut(image, (box[0], box[1], box[2], box[3]), augment.size, augment.interpolation))


def _channels_first(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.tensor(pixels).permute(2, 0, 1)


def _workers() -> int:
    return min(16, os.cpu_count() or 1)
