"""What a run learns from and is judged on: images by name or of a folder, augmented batches, the held-out part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from ..classifier import MarginModel
from ..errors import InputError
from ..run import Run

if TYPE_CHECKING:
    from ..data.augment import Augment
    from ..data.batches import TensorBatches
    from ..data.folder import FolderBatches, FolderImages, FolderSet
    from ..data.images import Images, ImageSet

    Samples: TypeAlias = Images | FolderImages

_WHITEN, _AT_ONCE = 5000, 500
_NUMBERS_AT_ONCE = 1 << 27  # of a batch that is judged: half a gibibyte; 500 images of 299 × 299 pixels in colour


def at_once(batch: int, channels: int, size: int) -> int:
    """How many images of this size are judged at once: a batch, or fewer where that would fill the memory.

    >>> at_once(500, 3, 224), at_once(500, 3, 1024), at_once(500, 3, 4096)
    (500, 42, 2)
    """
    return max(1, min(batch, _NUMBERS_AT_ONCE // (channels * size * size)))


@dataclass(eq=False)
class Inputs:
    """The images of a run."""

    train: Samples
    held_out: Samples | None
    test: Samples
    batches: TensorBatches | FolderBatches
    augment: Augment

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.train.classes

    @property
    def native(self) -> int:
        """Pixels along a side of the images as they are stored; 0 for files, each of its own size."""
        x = getattr(self.train, "x", None)
        return 0 if x is None else int(x.shape[2])

    @property
    def sees(self) -> dict[str, Any]:
        """What must be known of the images to build the network and to show it others, as JSON takes it."""
        x = getattr(self.train, "x", None)
        return {
            "classes": list(self.classes),
            "channels": 3 if x is None else int(x.shape[1]),
            "size": int(self.augment.size or self.native),
            "native": self.native,
            "augment": asdict(self.augment),
        }

    def judged(self, images: Samples, batch: int = _AT_ONCE) -> Iterator[tuple[Tensor, Tensor]]:
        """Images in their order as the network sees them in evaluation, and their labels."""
        from ..data.folder import FolderBatches, FolderImages

        batch = at_once(batch, self.sees["channels"], self.sees["size"])
        if isinstance(images, FolderImages):
            plain = self.augment.for_evaluation()
            for x, y, _ in FolderBatches(images, batch, plain, 0, drop_last=False, shuffle=False).epoch(0):
                yield x, y
            return
        for start in range(0, len(images), batch):
            yield self.augment.evaluated(images.x[start : start + batch]), images.y[start : start + batch]

    def prepare_network(self, model: MarginModel) -> None:
        """What a backbone wants to see of the training images before the first step.

        They are taken from everywhere in the set: a folder's stand class by class.
        """
        backbone: nn.Module = getattr(model.backbone, "backbone", model.backbone)  # behind a neck
        whiten = getattr(backbone, "whiten", None)
        if whiten is not None:
            rows = torch.arange(0, len(self.train), max(1, len(self.train) // _WHITEN))[:_WHITEN]
            whiten(torch.cat([x for x, _ in self.judged(self.train.take(rows))]))


def inputs_of(run: Run, data_dir: str | None, rank: int = 0, world: int = 1) -> Inputs:
    """Load what a run names."""
    from ..data.augment import augment_of
    from ..data.batches import TensorBatches
    from ..data.folder import FolderBatches, FolderImages
    from ..data.identities import joined, split_identities
    from ..data.stratified import split_off, subset

    found = _found(run, data_dir)
    train: Samples = found.train
    test: Samples = found.test
    if run.unseen:
        train, test = split_identities(joined(train, test), run.unseen, run.seed)
    held_out: Samples | None = None
    if run.hold_out:
        train, held_out = split_off(train, run.hold_out, run.seed)
        if not len(held_out):
            raise InputError(f"hold_out={run.hold_out:g} leaves no image to choose by: one image per class is too few")
    if run.share < 1.0:
        train = subset(train, run.share, run.seed)
    augment = augment_of(run.augment, found, size=run.input_size, **run.augment_options)
    options: dict[str, Any] = {"rank": rank, "world": world, "repeats": run.repeats, "per_class": run.per_class}
    batches: TensorBatches | FolderBatches
    if isinstance(train, FolderImages):
        batches = FolderBatches(train, run.batch_size // world, augment, run.seed, **options)
    else:
        batches = TensorBatches(train, run.batch_size // world, augment, run.seed, **options)
    return Inputs(train, held_out, test, batches, augment)


def _found(run: Run, data_dir: str | None) -> ImageSet | FolderSet:
    """A set by its name, or a folder: decoded once if it fits into memory and no crop wants its full resolution.

    A known name is the set even where a folder of that name lies about; `./mnist` is the folder.
    """
    from ..data.augment import augment_of
    from ..data.folder import load_folder
    from ..data.images import known_set, load_images

    if known_set(run.data) or not os.path.isdir(os.path.expanduser(run.data)):
        if not known_set(run.data) and os.sep in run.data:
            raise InputError(f"{run.data} is no folder of images, and no image set has this name")
        return load_images(run.data, data_dir)
    folder = load_folder(run.data, seed=run.seed)
    augment = augment_of(run.augment, folder, size=run.input_size, **run.augment_options)
    size = run.input_size
    if not size:
        raise InputError("images of a folder differ in size: say how large they are to be, with --input-size")
    if augment.scale is None and folder.train.fits(size) and folder.test.fits(size):
        return folder.in_memory(size, augment.interpolation)
    return folder
