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
from ..run import Run

if TYPE_CHECKING:
    from ..data.augment import Augment
    from ..data.batches import TensorBatches
    from ..data.changes import Changes
    from ..data.folder import FolderBatches, FolderImages, FolderSet
    from ..data.images import Images, ImageSet
    from ..data.manifest import Manifest

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
    """Images of the training classes that choose `best`; never those of `test`."""
    test: Samples
    augment: Augment
    run: Run
    rank: int = 0
    world: int = 1
    manifest: Manifest | None = None
    """Which file is in which part; None for a set by its name."""
    changes: Changes | None = None
    """What became of the folder since its manifest was drawn; None where that is this moment."""
    notes: tuple[str, ...] = ()
    """Lines for whoever started this."""
    drawn: bool = False
    """Whether the manifest is not the one in the run folder, and is to be written there."""
    by_number: bool = False
    """Whether the parts were drawn as version 0.1.0 did, for want of a manifest."""

    @cached_property
    def batches(self) -> TensorBatches | FolderBatches:
        """Augmented batches of the training images, this process's part of each."""
        from ..data.batches import TensorBatches
        from ..data.folder import FolderBatches, FolderImages

        run = self.run
        options: dict[str, Any] = {"rank": self.rank, "world": self.world}
        options |= {"repeats": run.repeats, "per_class": run.per_class}
        if isinstance(self.train, FolderImages):
            return FolderBatches(self.train, run.batch_size // self.world, self.augment, run.seed, **options)
        return TensorBatches(self.train, run.batch_size // self.world, self.augment, run.seed, **options)

    def manifest_facts(self) -> dict[str, Any]:
        """What the manifest says, as JSON takes it; nothing where there is none."""
        if self.manifest is None:
            return {"missing": self.notes[0]} if self.by_number else {}
        facts = {"images": self.manifest.counts()}
        return facts if self.changes is None else {**facts, **self.changes.facts()}

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


def inputs_of(
    run: Run,
    data_dir: str | None,
    rank: int = 0,
    world: int = 1,
    *,
    manifest: Manifest | None = None,
    begun: bool = False,
    assign_new: bool = False,
    only_test: bool = False,
    ended: bool = False,
) -> Inputs:
    """Load what a run names.

    Of a folder of images `manifest` says which file belongs to which part; without one the parts are drawn, for a run
    that has `begun` before as version 0.1.0 drew them. `assign_new` takes the folder as it is now (`data.changes`),
    for a run that has `ended` without training on any of it.
    `only_test` loads no training images where that can be: none of them can then stand in the way of an evaluation.
    """
    root = image_folder(run)
    if root is not None:
        from .folder_inputs import of_folder

        found = of_folder(run, root, manifest, begun, assign_new, only_test, ended)
    else:
        from ..data.images import load_images

        if assign_new:
            raise InputError(f"--assign-new is for folders of images; {run.data} is a fixed set")
        given = load_images(run.data, data_dir)
        found = Inputs(*divided(run, given), augment_for(run, given), run)
    found.rank, found.world = rank, world
    return found


def image_folder(run: Run) -> Path | None:
    """The folder of images that a run names; None where it names a set.

    A known name is the set even where a folder of that name lies about; `./mnist` is the folder.
    """
    from ..data.images import known_set

    path = os.path.expanduser(run.data)
    if known_set(run.data):
        return None
    if os.path.isdir(path):
        return Path(path)
    if os.sep in run.data:
        raise InputError(f"{run.data} is no folder of images, and no image set has this name")
    return None


def kept_manifest(run: Run, folder: Path) -> Manifest | None:
    """The manifest in a run folder; None where there is none, or the run is on no folder of images."""
    from ..data.manifest import NAME, Manifest

    path = folder / NAME
    return Manifest.read(path) if image_folder(run) is not None and (path.exists() or path.is_symlink()) else None


def divided(run: Run, found: ImageSet | FolderSet) -> tuple[Samples, Samples | None, Samples]:
    """Training, held-out and test images of a set whose files never change, drawn from their number."""
    from ..data.identities import joined, split_identities
    from ..data.stratified import split_off, subset

    train: Samples = found.train
    test: Samples = found.test
    if run.unseen:
        train, test = split_identities(joined(train, test), run.unseen, run.seed)
    held_out: Samples | None = None
    if run.hold_out:
        train, held_out = split_off(train, run.hold_out, run.seed)
        check_held_out(run, held_out)
    if run.share < 1.0:
        train = subset(train, run.share, run.seed)
    return train, held_out, test


def check_held_out(run: Run, held_out: Samples) -> None:
    """Refuse a held-out part without images."""
    if not len(held_out):
        raise InputError(f"hold_out={run.hold_out:g} leaves no image to choose by: one image per class is too few")


def augment_for(run: Run, found: ImageSet | FolderSet) -> Augment:
    """The run's augmentation, with the z-score of its images."""
    from ..data.augment import augment_of

    return augment_of(run.augment, found, size=run.input_size, **run.augment_options)
