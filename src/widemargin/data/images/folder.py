"""Any folder of images: `root/train/CLASS/*.png` with `root/test` or `root/val`, or `root/CLASS/*.png` alone.

Images are decoded when they are needed, by threads: decoding leaves Python's lock alone, and threads need no second
process that imports everything again (only `timm_transforms` does). A folder that fits into memory is faster
still as `Images` (`load_into_memory`).
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...io.errors import InputError
from ...numerics.random import integers
from ..label_sets import encode_label_sets
from .augment import Augment
from .batches import Batch, collate_batch, make_sampler, prefetch
from .decode import IMAGE_SUFFIXES, crop_and_resize, hash_files, open_decoded_image, resize_and_centre_crop
from .manifest import TEST, TRAIN, VAL, Manifest, ManifestRow
from .sets import Images, ImageSet, stratified_split
from .splits import (
    TEST_FRACTION,
    SplitConfig,
    UnassignedFile,
    assign_parts,
    contents_of_two_labels,
    describe_duplicates,
    unseen_classes,
)
from .timm_transforms import TimmImageLoader
from .transforms import compute_crop_boxes, draw_crop_uniforms

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, the field's for photographs
MAX_IN_MEMORY_BYTES = 2 << 30  # bytes
TEST_FOLDER_NAMES = ("test", "val", "valid", "validation")


@dataclass(frozen=True, eq=False)
class FolderImages:
    """Paths of images, their labels y, int64 [N] or booleans [N, C] of several each, and the class names."""

    name: str
    paths: tuple[Path, ...]
    y: Tensor
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: Tensor) -> FolderImages:
        """These rows, in this order."""
        paths = tuple(self.paths[row] for row in rows.tolist())
        return FolderImages(self.name, paths, self.y.index_select(0, rows), self.class_names)

    def fits_in_memory(self, size: int, max_bytes: int = MAX_IN_MEMORY_BYTES) -> bool:
        """Whether the images at this size need no more than so many bytes."""
        return len(self) * 3 * size * size <= max_bytes

    def load_into_memory(self, size: int, interpolation: str = "bicubic") -> Images:
        """Every image decoded, its shorter side made `size` pixels and its middle kept."""
        x = torch.empty((len(self), 3, size, size), dtype=torch.uint8)

        def read(row: int) -> None:
            with open_decoded_image(self.paths[row]) as image:
                x[row] = _channels_first(resize_and_centre_crop(image, size, 1.0, interpolation))

        with ThreadPoolExecutor(_default_num_workers()) as pool:
            for _ in pool.map(read, range(len(self))):
                pass
        return Images(self.name, x, self.y, self.class_names)


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


@dataclass(frozen=True)
class ImageFolderTree:
    """The files of a folder by class, as they lie: those to train on, or all, and those to test on where given."""

    root: Path
    train: dict[str, list[Path]]
    test: dict[str, list[Path]] | None
    train_folder: Path
    test_folder: Path | None
    index_file: Path | None = None
    """The file that lists the images, where one does (`index_file`); it stands for both folders then."""
    label_separator: str | None = None
    """Joins the labels of an image with any number of them; None where each has one."""
    has_split: bool = False
    """Whether the index file says what is trained on."""
    held_out: frozenset[str] = frozenset()
    """Paths that the index file keeps back to choose the checkpoint by."""
    missing: tuple[str, ...] = ()
    """Paths in the index file that are not there."""

    @property
    def name(self) -> str:
        """The folder's own name, or that of the index file."""
        return self.root.resolve().name if self.index_file is None else self.index_file.stem

    def split_label(self, label: str) -> tuple[str, ...]:
        """The labels that one text stands for."""
        return split_label(label, self.label_separator)

    def labelled_files(self) -> dict[str, tuple[Path, str, str]]:
        """File, class and side ("train", "test", or "" where nothing says) by path below the root, in order."""
        side = "" if self.test is None and not self.has_split else "train"
        found = {self._relative_path(path): (path, word, side) for word, paths in self.train.items() for path in paths}
        for word, paths in (self.test or {}).items():
            found |= {self._relative_path(path): (path, word, "test") for path in paths}
        return found

    def check(self) -> None:
        """Refuse, in one line, a folder that no run can begin with."""
        if self.index_file is not None:
            self._check_index()
            return
        if len(self.train) < 2:
            what = "no folder per class" if not self.train else f"only one class, {next(iter(self.train))!r},"
            place = self.train_folder
            raise InputError(f"{place}: {what} in it; images are expected at {place}/CLASS/*.png or train/CLASS/*.png")
        _check_no_empty_class(self.train_folder, self.train)
        if self.test_folder is None or self.test is None:
            return
        if not self.test:
            place = self.test_folder
            raise InputError(f"{place}: no folder per class in it; images are expected at {place}/CLASS/*.png")
        for word in self.test:
            if word not in self.train:
                number = len(self.train)
                raise InputError(f"{self.test_folder}: class {word!r} is not among the {number} classes to train on")
        _check_no_empty_class(self.test_folder, self.test)

    def _check_index(self) -> None:
        """The same for an index file."""
        place = self.index_file
        if self.missing:
            more = f" and {len(self.missing) - 1:,} more" if len(self.missing) > 1 else ""
            raise InputError(f"{place}: {self.missing[0]}{more} is not there; paths are relative to {self.root}")
        known = {part for label in self.train for part in self.split_label(label)}
        if len(known) < 2:
            raise InputError(f"{place}: {len(known)} label among its training images; at least two are needed")
        strange = sorted({part for label in self.test or {} for part in self.split_label(label)} - known)
        if strange:
            raise InputError(f"{place}: the label {strange[0]!r} stands only at images to test on")

    def _relative_path(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def scan_folder(root: str | Path) -> ImageFolderTree:
    """What lies in a folder of images."""
    root = Path(root).expanduser()
    if not root.is_dir():
        raise InputError(f"{root} is no folder of images")
    train = root / "train" if (root / "train").is_dir() else root
    tests = [root / test for test in TEST_FOLDER_NAMES if (root / test).is_dir()] if train != root else []
    test = tests[0] if tests else None
    return ImageFolderTree(
        root, _image_paths_by_class(train), None if test is None else _image_paths_by_class(test), train, test
    )


def split_label(label: str, separator: str | None) -> tuple[str, ...]:
    """The labels that one text stands for; one where there is no separator.

    >>> split_label("red;round", ";"), split_label(";", ";"), split_label("red;round", None)
    (('red', 'round'), (), ('red;round',))
    """
    return (label,) if separator is None else tuple(word for word in label.split(separator) if word)


def images_from_rows(
    root: Path, name: str, rows: Sequence[ManifestRow], class_names: tuple[str, ...], separator: str | None = None
) -> FolderImages:
    """The images of some rows of a manifest; with a `separator` each has any number of labels."""
    if separator is None:
        place = {word: k for k, word in enumerate(class_names)}
        labels = torch.tensor([place[row.label] for row in rows], dtype=torch.int64)
    else:
        sets = [frozenset(split_label(row.label, separator)) for row in rows]
        labels = encode_label_sets(sets, class_names, name)
    return FolderImages(name, tuple(root / row.path for row in rows), labels, class_names)


def load_folder(root: str | Path, *, test_fraction: float = TEST_FRACTION, seed: int = 0) -> FolderSet:
    """The images of a folder; without a test folder `test_fraction` of each class becomes the test part.

    Which images these are follows from their contents and the seed (see `splits`).
    """
    tree = scan_folder(root)
    manifest, notes = create_manifest(tree, SplitConfig(test_fraction=test_fraction, seed=seed))
    for note in notes:
        warnings.warn(f"{tree.root}: {note}", stacklevel=2)
    train, test = (
        images_from_rows(tree.root, tree.name, manifest.rows_in(part), manifest.class_names) for part in (TRAIN, TEST)
    )
    return FolderSet(tree.name, train, test)


def create_manifest(tree: ImageFolderTree, split_config: SplitConfig) -> tuple[Manifest, list[str]]:
    """Divide a folder for the first time; and lines about pictures that lie in it more than once."""
    tree.check()
    _check_index_split(tree, split_config)
    labelled_files = tree.labelled_files()
    unseen = unseen_classes(tree.train, split_config, tree.name) if split_config.unseen_class_fraction else None
    contents = hash_files(path for path, _, _ in labelled_files.values())
    files = [
        UnassignedFile(path, label, side if unseen is None else "test" if label in unseen else "train", *content)
        for (path, (_, label, side)), content in zip(labelled_files.items(), contents, strict=True)
    ]
    rows = assign_parts((), _divide_by_rarest_label(tree, files), split_config)
    rows = [
        replace(
            row,
            label=labelled_files[row.path][1],
            part=VAL if row.path in tree.held_out and row.part == TRAIN else row.part,
        )
        for row in rows
    ]
    notes = describe_duplicates(rows)
    if not any(row.part == TEST for row in rows):
        if tree.test_folder is not None or unseen is not None:
            raise InputError(f"{tree.root}: no image is left to test on, for {notes[0] if notes else 'there is none'}")
        why = "one image per class leaves none to test on; add images or a folder"
        raise InputError(f"{tree.train_folder}: {why} {tree.root}/test")
    return Manifest(tuple(rows)), notes


def _check_index_split(tree: ImageFolderTree, split_config: SplitConfig) -> None:
    """Refuse settings that do not go with an index file or with several labels per image."""
    if tree.held_out and split_config.val_fraction:
        raise InputError(f"{tree.index_file}: its split val and --val-fraction both hold images out; leave one out")
    if tree.has_split and tree.test is None:
        raise InputError(f"{tree.index_file}: its column split names no image to test on; add test, or leave it empty")
    if tree.label_separator is None:
        return
    for option, is_set in (
        ("--unseen-classes", split_config.unseen_class_fraction > 0.0),
        ("--imbalance", split_config.imbalance > 1.0),
    ):
        if is_set:
            raise InputError(f"{option} wants images of one label each; those of {tree.index_file} have several")


def _divide_by_rarest_label(tree: ImageFolderTree, files: list[UnassignedFile]) -> list[UnassignedFile]:
    """The files with their rarest label in place of all, so that each label is divided alike.

    Contents that stand under two sets of labels keep these, so that they are seen to be in conflict.
    """
    if tree.label_separator is None:
        return files
    counts = Counter(part for file in files for part in tree.split_label(file.label))
    conflicting = contents_of_two_labels(files)
    rarest = (min(tree.split_label(file.label), key=lambda part: (counts[part], part), default="") for file in files)
    return [
        file if file.sha256 in conflicting else replace(file, label=label)
        for file, label in zip(files, rarest, strict=True)
    ]


def split_folder_by_count(tree: ImageFolderTree, seed: int) -> FolderSet:
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
    return FolderSet(tree.name, *stratified_split(images(tree.train), TEST_FRACTION, seed))


def _image_paths_by_class(folder: Path) -> dict[str, list[Path]]:
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    return {word: sorted(_iter_image_files(folder / word)) for word in classes}


def _check_no_empty_class(folder: Path, files: dict[str, list[Path]]) -> None:
    for word, found in files.items():
        if not found:
            endings = ", ".join(suffix[1:] for suffix in IMAGE_SUFFIXES)
            raise InputError(f"{folder}: class {word!r} has no images ({endings}); add some or remove its folder")


def _iter_image_files(folder: Path) -> Iterator[Path]:
    for place, _, files in os.walk(folder):
        for file in files:
            if not file.startswith(".") and file.lower().endswith(IMAGE_SUFFIXES):
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
        world_size: int = 1,
        repeated_augmentation: int = 1,
        drop_last: bool = True,
        shuffle: bool = True,
        workers: int | None = None,
        per_class: int = 0,
        sampling: str = "uniform",
    ) -> None:
        if not augment.size:
            raise InputError("images of a folder differ in size: say how large they are to be, with --input-size")
        self.images, self.augment, self.workers = images, augment, workers or _default_num_workers()
        # Processes of a machine share its cores, and a decoding process is memory.
        local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        self._timm_loader = (
            TimmImageLoader(augment, workers or max(1, _default_num_workers() // local_world_size))
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
        """The batches of an epoch from step `start` on; the next one is made while the last one is used."""
        return self._iter_batches(epoch, self.sampler.steps_from(start))

    def _iter_batches(self, epoch: int, steps: range) -> Iterator[Batch]:
        order = self.sampler.epoch_indices(epoch)
        if self._timm_loader is not None:
            yield from prefetch(partial(self._make_timm_batch, self._timm_loader, order, epoch), steps)
            return
        with ThreadPoolExecutor(self.workers, thread_name_prefix="decode") as pool:
            yield from prefetch(lambda step: self._make_batch(pool, order, epoch, step), steps)

    def _make_batch(self, pool: ThreadPoolExecutor, order: Tensor, epoch: int, step: int) -> Batch:
        rows, source = self.sampler.step_indices(order, epoch, step, shuffle_batch=self.augment.has_mixing)
        crop_uniforms: list[Tensor | None] = [None] * len(rows)
        if self.augment.scale is not None:
            crop_uniforms = list(draw_crop_uniforms(source, len(rows)))
        x = torch.empty((len(rows), 3, self.augment.size, self.augment.size), dtype=torch.uint8)
        for place, image in enumerate(pool.map(self._load_image, rows.tolist(), crop_uniforms)):
            x[place] = image
        x, mix = self._batch_augment(x, rows, epoch, source)
        return collate_batch(x, self.images.y.index_select(0, rows), mix)

    def _make_timm_batch(self, timm_loader: TimmImageLoader, order: Tensor, epoch: int, step: int) -> Batch:
        rows, source = self.sampler.step_indices(order, epoch, step, shuffle_batch=self.augment.has_mixing)
        seeds = integers(source, len(rows), 2**31)
        x = timm_loader([self.images.paths[row] for row in rows.tolist()], seeds.tolist())
        x, mix = self.augment.mix(x, source)
        return collate_batch(x, self.images.y.index_select(0, rows), mix)

    def _load_image(self, row: int, crop_uniforms: Tensor | None) -> Tensor:
        augment = self.augment
        with open_decoded_image(self.images.paths[row]) as image:
            if crop_uniforms is None or augment.scale is None:
                return _channels_first(
                    resize_and_centre_crop(image, augment.size, augment.zoom(0), augment.interpolation)
                )
            sides = compute_crop_boxes(crop_uniforms[None], image.height, image.width, augment.scale, augment.ratio)
            top, left, tall, wide = (int(side) for side in sides)
            return _channels_first(crop_and_resize(image, (top, left, tall, wide), augment.size, augment.interpolation))


def _channels_first(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.tensor(pixels).permute(2, 0, 1)


def _default_num_workers() -> int:
    return min(16, os.cpu_count() or 1)
