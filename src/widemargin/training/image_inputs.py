"""`Inputs`: the images of a run, in parts and batches, as its network sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from ..data.images.changes import FolderChanges
from ..data.images.identities import check_some_pairs, describe_singletons
from ..data.images.image_files import FolderBatches, FolderImages
from ..data.images.manifest import Manifest
from ..io.errors import InputError, spell_option
from ..models.attach import MarginModel
from .config import TrainConfig

if TYPE_CHECKING:
    from ..data.images.augment import Augment
    from ..data.images.batches import TensorBatches
    from ..data.images.sets import Images

    Samples: TypeAlias = Images | FolderImages


_NUM_WHITENING_IMAGES, _EVAL_BATCH_SIZE = 5000, 500
_MAX_REASONS = 100  # images that are skipped of which the record says why
_MAX_BATCH_VALUES = 1 << 27  # of a batch that is evaluated: half a gibibyte; 500 images of 299 × 299 pixels in colour


def eval_batch_size(batch_size: int, channels: int, size: int) -> int:
    """How many images of this size are evaluated at once: a batch, or fewer where that would fill the memory.

    >>> eval_batch_size(500, 3, 224), eval_batch_size(500, 3, 1024), eval_batch_size(500, 3, 4096)
    (500, 42, 2)
    """
    return max(1, min(batch_size, _MAX_BATCH_VALUES // (channels * size * size)))


@dataclass(eq=False)
class Inputs:
    """The images of a run."""

    train: Samples
    val: Samples | None
    """Images of the training classes, or of classes of their own, that choose `best`; never those of `test`."""
    test: Samples | None
    """None where there are only pairs to test on."""
    augment: Augment
    config: TrainConfig
    rank: int = 0
    world_size: int = 1
    manifest: Manifest | None = None
    """Which file is in which part; None for a set by its name."""
    changes: FolderChanges | None = None
    """What became of the folder since its manifest was drawn; None where it was drawn just now."""
    notes: tuple[str, ...] = ()
    """Lines to show to the user."""
    has_new_manifest: bool = False
    """Whether the manifest is not the one in the run folder, and is to be written there."""
    is_legacy_split: bool = False
    """Whether the parts were drawn as version 0.1.0 did, for want of a manifest."""
    pair_files: tuple[Path, ...] = ()
    """Files of pairs that lie beside the training images; the run is verified with them at its end."""
    packed_digest: str | None = None
    """SHA-256 of where the training images lie in packed files, and of their labels; None for other images."""
    workers: int | None = None
    """Threads that decode images; None for one per core."""
    bad_images: dict[str, str] = field(default_factory=dict)
    """Images that cannot be read and are skipped, with the reason (`on_bad_image="skip"`)."""

    @cached_property
    def batches(self) -> TensorBatches | FolderBatches:
        """Augmented batches of the training images, this process's part of each."""
        from ..data.images.batches import TensorBatches

        config, batch_size = self.config, self.batch_size // self.world_size
        options: dict[str, Any] = {"rank": self.rank, "world_size": self.world_size, "sampling": config.sampling}
        options |= {"repeated_augmentation": config.repeated_augmentation, "per_class": config.per_class}
        if isinstance(self.train, FolderImages):
            options |= {"workers": self.workers, "bad_images": self.bad_images}
            options["on_bad_image"] = "replace" if config.on_bad_image == "skip" else "stop"
            return FolderBatches(self.train, batch_size, self.augment, config.seed, **options)
        return TensorBatches(self.train, batch_size, self.augment, config.seed, **options)

    @property
    def batch_size(self) -> int:
        """Images per step of all processes: the run's, or as many as there are, where these are fewer."""
        config = self.config
        available = len(self.train) * config.repeated_augmentation
        if config.per_class or available >= config.batch_size:
            return config.batch_size
        return available - available % self.world_size or config.batch_size

    def batch_size_notes(self) -> tuple[str, ...]:
        """A line that says so where a batch is smaller than the run's settings ask for."""
        if self.batch_size == self.config.batch_size:
            return ()
        return (
            f"{len(self.train):,} items to train on make batches of {self.batch_size}, not {self.config.batch_size}",
        )

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
    def test_samples(self) -> Samples:
        """The images to test on; an error where there are only pairs."""
        if self.test is None:
            raise InputError(f"{self.config.data_name} has no test images, only pairs: use {spell_option('pairs')}")
        return self.test

    @property
    def is_multilabel(self) -> bool:
        """Whether an image has any number of labels: `y` is [N, C]."""
        return self.train.y.ndim == 2

    @property
    def is_open_set(self) -> bool:
        """Whether the images to test on are of classes that are not trained on."""
        names = getattr(self.test, "class_names", None)
        return bool(self.config.unseen_classes) or (names is not None and tuple(names) != tuple(self.class_names))

    @property
    def label_spec(self) -> dict[str, bool]:
        """What the input spec says of the labels: something only where images have several, or others are tested on."""
        return {
            name: True for name, value in (("multilabel", self.is_multilabel), ("open_set", self.is_open_set)) if value
        }

    def skipped_images(self) -> dict[str, Any]:
        """How many images were skipped because they cannot be read, and the first of them, as JSON takes it."""
        return {"count": len(self.bad_images), "reasons": sorted(self.bad_images.values())[:_MAX_REASONS]}

    @cached_property
    def class_counts(self) -> list[int]:
        """Training images of each class, for losses and class weights that follow them."""
        if self.is_multilabel:
            return [int(count) for count in self.train.y.sum(0)]
        counts: list[int] = torch.bincount(self.train.y, minlength=len(self.class_names)).tolist()
        return counts

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
            "class_names": list(self.class_names),
            "class_counts": self.class_counts,
            **self.label_spec,
            "channels": 3 if x is None else int(x.shape[1]),
            "size": int(self.augment.size or self.native_size),
            "native_size": self.native_size,
            "augment": asdict(self.augment),
        }

    def eval_batches(
        self, images: Samples, batch_size: int = _EVAL_BATCH_SIZE, rank: int = 0, world_size: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images in their order as the network sees them in evaluation, and their labels.

        Of several processes each has every `world_size`-th batch from batch `rank` on, perhaps none.
        """
        batch_size = eval_batch_size(batch_size, self.input_spec["channels"], self.input_spec["size"])
        starts = range(rank * batch_size, len(images), world_size * batch_size)
        if isinstance(images, FolderImages):
            if not starts:
                return
            rows = torch.split(torch.arange(len(images)), batch_size)[rank::world_size]
            images = images.take(torch.cat(rows)) if world_size > 1 else images
            plain = self.augment.for_evaluation()
            on_bad_image = "drop" if self.config.on_bad_image == "skip" else "stop"
            batches = FolderBatches(
                images,
                batch_size,
                plain,
                0,
                drop_last=False,
                shuffle=False,
                workers=self.workers,
                on_bad_image=on_bad_image,
                bad_images=self.bad_images,
            )
            for x, y, _ in batches.iter_epoch(0):
                yield x, y
            return
        for start in starts:
            yield (
                self.augment.transform_for_evaluation(images.x[start : start + batch_size]),
                images.y[start : start + batch_size],
            )

    @property
    def example(self) -> Tensor:
        """The first two training images, as the network sees them in evaluation."""
        return next(iter(self.eval_batches(self.train.take(torch.arange(min(2, len(self.train)))))))[0]

    def whiten_backbone(self, model: MarginModel) -> None:
        """Pass some training images to the `whiten` method of a backbone that has one, before the first step.

        They are taken from everywhere in the set, since the images of a folder come class by class.
        """
        backbone: nn.Module = getattr(model.backbone, "backbone", model.backbone)  # behind a neck
        whiten = getattr(backbone, "whiten", None)
        if whiten is not None:
            rows = torch.arange(0, len(self.train), max(1, len(self.train) // _NUM_WHITENING_IMAGES))[
                :_NUM_WHITENING_IMAGES
            ]
            whiten(torch.cat([x for x, _ in self.eval_batches(self.train.take(rows))]))


def describe_unseen(inputs: Inputs) -> tuple[str, ...]:
    """A line about classes of one image among unseen ones; an error where there are no others."""
    if not inputs.is_open_set or inputs.test is None:
        return ()
    note = describe_singletons(check_some_pairs(inputs.test))
    return () if note is None else (note,)


def describe_skipped_images(skipped: dict[str, Any]) -> str:
    """What `skipped_images` says, in one line: how many, and the first of them with the reason.

    >>> describe_skipped_images({"count": 2, "reasons": ["a.png: the file is empty", "b.png: the file is empty"]})
    '2 images cannot be read and were left out, such as a.png: the file is empty'
    """
    count, first = skipped["count"], skipped["reasons"][0]
    if count == 1:
        return f"1 image cannot be read and was left out: {first}"
    return f"{count:,} images cannot be read and were left out, such as {first}"
