"""What a run learns from and is judged on: images by name or of a folder, augmented batches, the held-out part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from ..classifier import MarginModel
from ..errors import InputError
from ..run import TrainConfig

if TYPE_CHECKING:
    from ..data.augment import Augment
    from ..data.batches import TensorBatches
    from ..data.changes import FolderChanges
    from ..data.folder import FolderBatches, FolderImages, FolderSet
    from ..data.images import Images, ImageSet
    from ..data.manifest import Manifest

    Samples: TypeAlias = Images | FolderImages

_NUM_WHITENING_IMAGES, _EVAL_BATCH_SIZE = 5000, 500
_MAX_BATCH_VALUES = 1 << 27  # of a batch that is judged: half a gibibyte; 500 images of 299 × 299 pixels in colour


def eval_batch_size(batch_size: int, channels: int, size: int) -> int:
    """How many images of this size are judged at once: a batch, or fewer where that would fill the memory.

    >>> at_once(500, 3, 224), at_once(500, 3, 1024), at_once(500, 3, 4096)
    (500, 42, 2)
    """
    return max(1, min(batch_size, _MAX_BATCH_VALUES // (channels * size * size)))


@dataclass(eq=False)
class Inputs:
    """The images of a run."""

    train: Samples
    val: Samples | None
    """Images of the training classes that choose `best`; never those of `test`."""
    test: Samples
    augment: Augment
    config: TrainConfig
    rank: int = 0
    world_size: int = 1
    manifest: Manifest | None = None
    """Which file is in which part; None for a set by its name."""
    changes: FolderChanges | None = None
    """What became of the folder since its manifest was drawn; None where that is this moment."""
    notes: tuple[str, ...] = ()
    """Lines for whoever started this."""
    has_new_manifest: bool = False
    """Whether the manifest is not the one in the run folder, and is to be written there."""
    is_legacy_split: bool = False
    """Whether the parts were drawn as version 0.1.0 did, for want of a manifest."""

    @cached_property
    def batches(self) -> TensorBatches | FolderBatches:
        """Augmented batches of the training images, this process's part of each."""
        from ..data.batches import TensorBatches
        from ..data.folder import FolderBatches, FolderImages

        run = self.config
        options: dict[str, Any] = {"rank": self.rank, "world": self.world_size}
        options |= {"repeats": run.repeated_augmentation, "per_class": run.per_class}
        if isinstance(self.train, FolderImages):
            return FolderBatches(self.train, run.batch_size // self.world_size, self.augment, run.seed, **options)
        return TensorBatches(self.train, run.batch_size // self.world_size, self.augment, run.seed, **options)

    def manifest_summary(self) -> dict[str, Any]:
        """What the manifest says, as JSON takes it; nothing where there is none."""
        if self.manifest is None:
            return {"missing": self.notes[0]} if self.is_legacy_split else {}
        facts = {"images": self.manifest.counts()}
        return facts if self.changes is None else {**facts, **self.changes.to_dict()}

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.train.class_names

    @property
    def native_size(self) -> int:
        """Pixels along a side of the images as they are stored; 0 for files, each of its own size."""
        x = getattr(self.train, "x", None)
        return 0 if x is None else int(x.shape[2])

    @property
    def input_spec(self) -> dict[str, Any]:
        """What must be known of the images to build the network and to show it others, as JSON takes it."""
        x = getattr(self.train, "x", None)
        return {
            "classes": list(self.class_names),
            "channels": 3 if x is None else int(x.shape[1]),
            "size": int(self.augment.size or self.native_size),
            "native": self.native_size,
            "augment": asdict(self.augment),
        }

    def eval_batches(self, images: Samples, batch_size: int = _EVAL_BATCH_SIZE) -> Iterator[tuple[Tensor, Tensor]]:
        """Images in their order as the network sees them in evaluation, and their labels."""
        from ..data.folder import FolderBatches, FolderImages

        batch_size = eval_batch_size(batch_size, self.input_spec["channels"], self.input_spec["size"])
        if isinstance(images, FolderImages):
            plain = self.augment.for_evaluation()
            for x, y, _ in FolderBatches(images, batch_size, plain, 0, drop_last=False, shuffle=False).iter_epoch(0):
                yield x, y
            return
        for start in range(0, len(images), batch_size):
            yield (
                self.augment.transform_for_evaluation(images.x[start : start + batch_size]),
                images.y[start : start + batch_size],
            )

    def whiten_backbone(self, model: MarginModel) -> None:
        """What a backbone wants to see of the training images before the first step.

        They are taken from everywhere in the set: a folder's stand class by class.
        """
        backbone: nn.Module = getattr(model.backbone, "backbone", model.backbone)  # behind a neck
        whiten = getattr(backbone, "whiten", None)
        if whiten is not None:
            rows = torch.arange(0, len(self.train), max(1, len(self.train) // _NUM_WHITENING_IMAGES))[
                :_NUM_WHITENING_IMAGES
            ]
            whiten(torch.cat([x for x, _ in self.eval_batches(self.train.take(rows))]))


def load_inputs(
    config: TrainConfig,
    data_dir: str | None,
    rank: int = 0,
    world_size: int = 1,
    *,
    manifest: Manifest | None = None,
    has_started: bool = False,
    assign_new: bool = False,
    test_only: bool = False,
    is_finished: bool = False,
) -> Inputs:
    """Load what a run names.

    Of a folder of images `manifest` says which file belongs to which part; without one the parts are drawn, for a run
    that has `begun` before as version 0.1.0 drew them. `assign_new` takes the folder as it is now (`data.changes`),
    for a run that has `ended` without training on any of it.
    `only_test` loads no training images where that can be: none of them can then stand in the way of an evaluation.
    """
    root = image_folder(config)
    if root is not None:
        from .folder_inputs import load_folder_inputs

        found = load_folder_inputs(config, root, manifest, has_started, assign_new, test_only, is_finished)
    else:
        from ..data.images import load_images

        if assign_new:
            raise InputError(f"--assign-new is for folders of images; {config.data} is a fixed set")
        image_set = load_images(config.data, data_dir)
        found = Inputs(*split_images(config, image_set), build_run_augment(config, image_set), config)
    found.rank, found.world_size = rank, world_size
    return found


def image_folder(config: TrainConfig) -> Path | None:
    """The folder of images that a run names; None where it names a set.

    A known name is the set even where a folder of that name lies about; `./mnist` is the folder.
    """
    from ..data.images import canonical_set_name

    path = os.path.expanduser(config.data)
    if canonical_set_name(config.data):
        return None
    if os.path.isdir(path):
        return Path(path)
    if os.sep in config.data:
        raise InputError(f"{config.data} is no folder of images, and no image set has this name")
    return None


def read_run_manifest(config: TrainConfig, folder: Path) -> Manifest | None:
    """The manifest in a run folder; None where there is none, or the run is on no folder of images."""
    from ..data.manifest import MANIFEST_NAME, Manifest

    path = folder / MANIFEST_NAME
    return Manifest.read(path) if image_folder(config) is not None and (path.exists() or path.is_symlink()) else None


def split_images(config: TrainConfig, image_set: ImageSet | FolderSet) -> tuple[Samples, Samples | None, Samples]:
    """Training, held-out and test images of a set whose files never change, drawn from their number."""
    from ..data.identities import concat_images, split_identities
    from ..data.stratified import stratified_split, stratified_subset

    train: Samples = image_set.train
    test: Samples = image_set.test
    if config.unseen_classes:
        train, test = split_identities(concat_images(train, test), config.unseen_classes, config.seed)
    val: Samples | None = None
    if config.val_fraction:
        train, val = stratified_split(train, config.val_fraction, config.seed)
        check_val_split(config, val)
    if config.train_fraction < 1.0:
        train = stratified_subset(train, config.train_fraction, config.seed)
    return train, val, test


def check_val_split(config: TrainConfig, val: Samples) -> None:
    """Refuse a held-out part without images."""
    if not len(val):
        raise InputError(
            f"hold_out={config.val_fraction:g} leaves no image to choose by: one image per class is too few"
        )


def build_run_augment(config: TrainConfig, image_set: ImageSet | FolderSet) -> Augment:
    """The run's augmentation, with the z-score of its images."""
    from ..data.augment import build_augment

    return build_augment(config.augment, image_set, size=config.input_size, **config.augment_options)
