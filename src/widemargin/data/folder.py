"""Any folder of images: `root/train/CLASS/*.png` with `root/test` or `root/val` beside it, or `root/CLASS/*.png`.

Images are decoded when they are needed, by threads: decoding leaves Python's lock alone, and threads need no second
process that imports everything again (only timm's transforms do, see there). A folder that fits into memory is faster
still as `Images` (`in_memory`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
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
from .content import contents_of
from .decode import SUFFIXES, cut, fitted, image_of
from .draws import integers
from .geometry import draw_boxes, random_boxes
from .images import Images, ImageSet
from .manifest import TEST, TRAIN, Manifest, Row
from .splits import TEST_SHARE, File, Shares, assign, repeated, unseen_classes
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
            with image_of(self.paths[row]) as image:
                x[row] = _channels_first(fitted(image, size, 1.0, interpolation))

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


@dataclass(frozen=True)
class Tree:
    """The files of a folder by class, as they lie: those to train on, or all, and those to test on where given."""

    root: Path
    train: dict[str, list[Path]]
    test: dict[str, list[Path]] | None
    train_folder: Path
    test_folder: Path | None

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.root.resolve().name

    def labels(self) -> dict[str, tuple[Path, str, str]]:
        """File, class and side ("train", "test", or "" where nothing says) by path below the root, in order."""
        side = "" if self.test is None else "train"
        found = {self._below(path): (path, word, side) for word, paths in self.train.items() for path in paths}
        for word, paths in (self.test or {}).items():
            found |= {self._below(path): (path, word, "test") for path in paths}
        return found

    def check(self) -> None:
        """Refuse, in one line, a folder that no run can begin with."""
        if len(self.train) < 2:
            what = "no folder per class" if not self.train else f"only one class, {next(iter(self.train))!r},"
            place = self.train_folder
            raise InputError(f"{place}: {what} in it; images are expected at {place}/CLASS/*.png or train/CLASS/*.png")
        _check_filled(self.train_folder, self.train)
        if self.test_folder is None or self.test is None:
            return
        if not self.test:
            place = self.test_folder
            raise InputError(f"{place}: no folder per class in it; images are expected at {place}/CLASS/*.png")
        for word in self.test:
            if word not in self.train:
                number = len(self.train)
                raise InputError(f"{self.test_folder}: class {word!r} is not among the {number} classes to train on")
        _check_filled(self.test_folder, self.test)

    def _below(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def scan_folder(root: str | Path) -> Tree:
    """What lies in a folder of images."""
    root = Path(root).expanduser()
    if not root.is_dir():
        raise InputError(f"{root} is no folder of images")
    train = root / "train" if (root / "train").is_dir() else root
    tests = [root / test for test in TESTS if (root / test).is_dir()] if train != root else []
    test = tests[0] if tests else None
    return Tree(root, _by_class(train), None if test is None else _by_class(test), train, test)


def images_of(root: Path, name: str, rows: Sequence[Row], classes: tuple[str, ...]) -> FolderImages:
    """The images of some rows of a manifest."""
    place = {word: k for k, word in enumerate(classes)}
    labels = torch.tensor([place[row.label] for row in rows], dtype=torch.int64)
    return FolderImages(name, tuple(root / row.path for row in rows), labels, classes)


def load_folder(root: str | Path, *, held_out: float = TEST_SHARE, seed: int = 0) -> FolderSet:
    """The images of a folder; without a test folder `held_out` of each class becomes the test part.

    Which images these are follows from their contents and the seed (see `splits`).
    """
    tree = scan_folder(root)
    manifest, notes = draw_manifest(tree, Shares(test=held_out, seed=seed))
    for note in notes:
        warnings.warn(f"{tree.root}: {note}", stacklevel=2)
    train, test = (images_of(tree.root, tree.name, manifest.of(part), manifest.classes) for part in (TRAIN, TEST))
    return FolderSet(tree.name, train, test)


def draw_manifest(tree: Tree, shares: Shares) -> tuple[Manifest, list[str]]:
    """Divide a folder for the first time; and lines about pictures that lie in it more than once."""
    tree.check()
    found = tree.labels()
    unseen = unseen_classes(tree.train, shares, tree.name) if shares.unseen else None
    contents = contents_of(path for path, _, _ in found.values())
    files = [
        File(path, label, side if unseen is None else "test" if label in unseen else "train", *content)
        for (path, (_, label, side)), content in zip(found.items(), contents, strict=True)
    ]
    rows = assign((), files, shares)
    notes = repeated(rows)
    if not any(row.part == TEST for row in rows):
        if tree.test_folder is not None or unseen is not None:
            raise InputError(f"{tree.root}: no image is left to test on, for {notes[0] if notes else 'there is none'}")
        why = "one image per class leaves none to test on; add images or a folder"
        raise InputError(f"{tree.train_folder}: {why} {tree.root}/test")
    return Manifest(tuple(rows)), notes


def scanned_by_number(tree: Tree, seed: int) -> FolderSet:
    """The parts as version 0.1.0 drew them, from the number of files: for its runs, which have no manifest."""
    tree.check()
    classes = tuple(tree.train)
    place = {word: number for number, word in enumerate(classes)}  # a list would be searched for every image

    def images(files: dict[str, list[Path]]) -> FolderImages:
        paths = tuple(path for found in files.values() for path in found)
        labels = [place[word] for word, found in files.items() for _ in found]
        return FolderImages(tree.name, paths, torch.tensor(labels, dtype=torch.int64), classes)

    if tree.test is not None:
        return FolderSet(tree.name, images(tree.train), images(tree.test))
    return FolderSet(tree.name, *split_off(images(tree.train), TEST_SHARE, seed))


def _by_class(folder: Path) -> dict[str, list[Path]]:
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    return {word: sorted(_images_in(folder / word)) for word in classes}


def _check_filled(folder: Path, files: dict[str, list[Path]]) -> None:
    for word, found in files.items():
        if not found:
            endings = ", ".join(suffix[1:] for suffix in SUFFIXES)
            raise InputError(f"{folder}: class {word!r} has no images ({endings}); add some or remove its folder")


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
        augment = self.augment
        with image_of(self.images.paths[row]) as image:
            if drawn is None or augment.scale is None:
                return _channels_first(fitted(image, augment.size, augment.zoom(0), augment.interpolation))
            sides = random_boxes(drawn[None], image.height, image.width, augment.scale, augment.ratio)
            top, left, tall, wide = (int(side) for side in sides)
            return _channels_first(cut(image, (top, left, tall, wide), augment.size, augment.interpolation))


def _channels_first(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.tensor(pixels).permute(2, 0, 1)


def _workers() -> int:
    return min(16, os.cpu_count() or 1)
