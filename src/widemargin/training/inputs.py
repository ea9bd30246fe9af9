"""What a run learns from and is evaluated on: images of a named set or of a folder, in parts and augmented batches.

The images of a folder are divided as the manifest of a run says, or as it is drawn when the run begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from ..data.images.changes import (
    FolderChanges,
    describe_cross_class_duplicates,
    diff_manifest,
    format_paths,
    update_manifest,
)
from ..data.images.decode import hash_files
from ..data.images.folder import (
    FolderImages,
    FolderSet,
    ImageFolderTree,
    create_manifest,
    images_from_rows,
    scan_folder,
    split_folder_by_count,
)
from ..data.images.identities import check_two_images_per_class
from ..data.images.index_file import scan_index_file
from ..data.images.long_tail import long_tailed_subset
from ..data.images.manifest import EXCLUDED, PARTS, TEST, TRAIN, UNUSED, VAL, Manifest, ManifestRow
from ..data.images.sets import SamplesT, stratified_split, stratified_subset
from ..data.images.splits import (
    SplitConfig,
    contents_of_two_labels,
    describe_duplicates,
    hold_out_classes,
    rows_to_test,
)
from ..io.errors import InputError
from ..models.attach import MarginModel
from .config import TrainConfig

if TYPE_CHECKING:
    from ..data.images.augment import Augment
    from ..data.images.batches import TensorBatches
    from ..data.images.changes import FolderChanges
    from ..data.images.folder import FolderBatches, FolderImages, FolderSet
    from ..data.images.manifest import Manifest
    from ..data.images.sets import Images, ImageSet

    Samples: TypeAlias = Images | FolderImages


_NUM_WHITENING_IMAGES, _EVAL_BATCH_SIZE = 5000, 500
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
    """Images of the training classes that choose `best`; never those of `test`."""
    test: Samples
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

    @cached_property
    def batches(self) -> TensorBatches | FolderBatches:
        """Augmented batches of the training images, this process's part of each."""
        from ..data.images.batches import TensorBatches
        from ..data.images.folder import FolderBatches, FolderImages

        config, batch_size = self.config, self.batch_size // self.world_size
        options: dict[str, Any] = {"rank": self.rank, "world_size": self.world_size, "sampling": config.sampling}
        options |= {"repeated_augmentation": config.repeated_augmentation, "per_class": config.per_class}
        if isinstance(self.train, FolderImages):
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
    def is_multilabel(self) -> bool:
        """Whether an image has any number of labels: `y` is [N, C]."""
        return self.train.y.ndim == 2

    @property
    def label_spec(self) -> dict[str, bool]:
        """What the input spec says of the labels: something only where images have several."""
        return {"multilabel": True} if self.is_multilabel else {}

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
        from ..data.images.folder import FolderBatches, FolderImages

        batch_size = eval_batch_size(batch_size, self.input_spec["channels"], self.input_spec["size"])
        starts = range(rank * batch_size, len(images), world_size * batch_size)
        if isinstance(images, FolderImages):
            if not starts:
                return
            rows = torch.split(torch.arange(len(images)), batch_size)[rank::world_size]
            images = images.take(torch.cat(rows)) if world_size > 1 else images
            plain = self.augment.for_evaluation()
            for x, y, _ in FolderBatches(images, batch_size, plain, 0, drop_last=False, shuffle=False).iter_epoch(0):
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


def load_inputs(
    config: TrainConfig,
    data_dir: str | Path | None,
    rank: int = 0,
    world_size: int = 1,
    *,
    manifest: Manifest | None = None,
    has_started: bool = False,
    assign_new: bool = False,
    test_only: bool = False,
    is_finished: bool = False,
) -> Inputs:
    """Load the images that a run names.

    Of a folder of images `manifest` says which file belongs to which part; without one the parts are drawn, for a run
    that `has_started` before as version 0.1.0 drew them. `assign_new` takes the folder as it is now
    (`data.images.changes`), for a run that `is_finished` without training on any of it.
    `test_only` loads no training images where it can, so that a missing or damaged one cannot prevent an evaluation.
    """
    root = image_folder(config)
    if config.label_separator is not None and (root is None or root.is_dir()):
        raise InputError(f"--label-separator goes with an index file of images; {config.data} is none")
    if root is not None:
        found = load_folder_inputs(config, root, manifest, has_started, assign_new, test_only, is_finished)
    else:
        from ..data.images.sets import load_images

        if assign_new:
            raise InputError(f"--assign-new is for folders of images; {config.data} is a fixed set")
        image_set = load_images(config.data, data_dir)
        found = Inputs(*split_images(config, image_set), build_run_augment(config, image_set), config)
    found.rank, found.world_size = rank, world_size
    return found


def image_folder(config: TrainConfig) -> Path | None:
    """The folder or index file of images that a run names; None where it names a set.

    A known name is the set even where a folder of that name lies about; `./mnist` is the folder.
    """
    from ..data.images.sets import canonical_set_name

    path = os.path.expanduser(config.data)
    if canonical_set_name(config.data):
        return None
    if os.path.isdir(path) or os.path.isfile(path):
        return Path(path)
    if os.sep in config.data:
        raise InputError(f"{config.data} is no folder of images, no index file of some, and no image set has this name")
    return None


def scan_images(config: TrainConfig, root: Path) -> ImageFolderTree:
    """What lies in the folder of images, or what the index file lists, that a run names."""
    if root.is_dir():
        return scan_folder(root)
    return scan_index_file(root, config.label_separator)


def read_run_manifest(config: TrainConfig, folder: Path) -> Manifest | None:
    """The manifest in a run folder; None where there is none, or the run is on no folder of images."""
    from ..data.images.manifest import MANIFEST_NAME, Manifest

    path = folder / MANIFEST_NAME
    return Manifest.read(path) if image_folder(config) is not None and (path.exists() or path.is_symlink()) else None


def split_images(config: TrainConfig, image_set: ImageSet | FolderSet) -> tuple[Samples, Samples | None, Samples]:
    """Training, held-out and test images of a set whose files never change, drawn from their number."""
    from ..data.images.identities import concat_images, split_identities, without_classes

    train: Samples = image_set.train
    test: Samples = image_set.test
    if config.unseen_classes:
        train, test = split_identities(concat_images(train, test), config.unseen_classes, config.seed)
    val: Samples | None = None
    if config.val_classes:  # of what is left without the unseen classes, so that no class is in two parts
        train, val = split_identities(train, config.val_classes, config.seed)
        test = test if config.unseen_classes else without_classes(test, val.class_names, train.class_names)
    if config.val_fraction:
        train, val = stratified_split(train, config.val_fraction, config.seed)
        check_val_split(config, val)
    return select_train_samples(config, train, train.class_names), val, test


def select_train_samples(config: TrainConfig, train: SamplesT, class_names: Sequence[str]) -> SamplesT:
    """The training samples that are used: a fraction of every class, and of that a long-tailed part."""
    if config.train_fraction < 1.0:
        train = stratified_subset(train, config.train_fraction, config.seed)
    if config.imbalance > 1.0:
        train = long_tailed_subset(train, config.imbalance, config.seed, class_names)
    return train


def check_val_split(config: TrainConfig, val: Samples) -> None:
    """Refuse a held-out part without images."""
    if not len(val):
        raise InputError(
            f"val_fraction={config.val_fraction:g} leaves no image to choose by: one image per class is too few"
        )


def build_run_augment(config: TrainConfig, image_set: ImageSet | FolderSet) -> Augment:
    """The run's augmentation, with the z-score of its images."""
    from ..data.images.augment import build_augment

    return build_augment(config.augment, image_set, size=config.input_size, **config.augment_options)


_MAX_HASHED_BYTES = 2 << 30  # bytes that are hashed in seconds; of a larger folder only those files that are used
_LEGACY_SPLIT_NOTE = (
    "no manifest: the run is of version 0.1.0, and its parts are drawn again from the number of files; "
    "if any was added or removed since, some test images were trained on"
)
_CURRENT_TEST_FOLDER_NOTE = (
    "no manifest: the run is of version 0.1.0, and the test images are those of its test folder as it is now"
)


def load_folder_inputs(
    config: TrainConfig,
    root: Path,
    manifest: Manifest | None,
    has_started: bool,
    assign_new: bool,
    test_only: bool,
    is_finished: bool,
) -> Inputs:
    """The images of a folder, decoded once if they fit into memory and no crop wants their full resolution."""
    tree = scan_images(config, root)
    if assign_new and tree.index_file is not None:
        raise InputError(f"--assign-new is for folders of images; {root} lists the images of a run: begin another run")
    if not config.input_size:
        raise InputError("images of a folder differ in size: say how large they are to be, with --input-size")
    split_config = SplitConfig(
        val_fraction=config.val_fraction,
        train_fraction=config.train_fraction,
        imbalance=config.imbalance,
        unseen_class_fraction=config.unseen_classes,
        seed=config.seed,
    )
    if assign_new and config.val_classes:
        raise InputError("--assign-new does not go with val_classes: begin another run")
    if manifest is not None:
        found = _inputs_from_manifest(config, tree, manifest, split_config, assign_new, test_only, is_finished)
    elif has_started:
        found = _inputs_from_legacy_split(config, tree, test_only)
    else:
        manifest, notes = create_manifest(tree, split_config)
        manifest = hold_out_classes(manifest, config.val_classes, config.seed, tree.name)
        found = _inputs_from_rows(config, tree, manifest, manifest)
        found.notes, found.has_new_manifest = tuple(notes), True
        if config.unseen_classes:
            check_two_images_per_class(found.test)
    if found.val is not None and not test_only:
        check_val_split(config, found.val)
    return _decode_into_memory(found)


def _inputs_from_manifest(
    config: TrainConfig,
    tree: ImageFolderTree,
    manifest: Manifest,
    split_config: SplitConfig,
    assign_new: bool,
    test_only: bool,
    is_finished: bool,
) -> Inputs:
    """The images that the manifest names, as far as they are still there and the same."""
    quick = sum(row.size for row in manifest.rows) <= _MAX_HASHED_BYTES
    hashed = PARTS if assign_new or quick else (TEST,) if test_only else (TRAIN, VAL, TEST)
    compared = diff_manifest(manifest, tree, hashed)
    changes = compared.changes
    if assign_new and changes:
        manifest, notes = update_manifest(manifest, tree, compared, split_config, is_finished)
        count, doubled = len(manifest.rows_in(TEST)), describe_cross_class_duplicates(manifest.rows)
        found = _inputs_from_rows(config, tree, manifest, manifest, test_only)
        found.changes = FolderChanges(count, count - len(doubled), new_classes=changes.new_classes, duplicates=doubled)
        if changes.new_classes and not test_only:  # an evaluation says so beside the number of test images
            one = len(changes.new_classes) == 1
            what = "a new class" if one else f"{len(changes.new_classes):,} new classes"
            notes.append(
                f"{what} that the run does not know ({format_paths(changes.new_classes)}): "
                f"{'its' if one else 'their'} images belong to no part"
            )
        found.has_new_manifest, found.notes = True, tuple(notes)
        return found
    if compared.lost_training_rows and not test_only:
        what = format_paths([row.path for row in compared.lost_training_rows])
        raise InputError(
            f"{tree.root}: images that the run was trained on or chosen by were changed or removed since it began "
            f"({what}), so it would go on as another; put them back, or give --assign-new to go on with what is there"
        )
    found = _inputs_from_rows(config, tree, manifest, Manifest(tuple(compared.unchanged)), test_only)
    found.changes = changes
    found.notes = (changes.summary(),) if changes or changes.duplicates else ()
    return found


def _inputs_from_rows(
    config: TrainConfig, tree: ImageFolderTree, manifest: Manifest, present: Manifest, test_only: bool = False
) -> Inputs:
    """Images of the rows that are `present`, with the classes of the whole manifest."""
    train_classes = manifest.train_class_names
    if tree.label_separator is not None:
        train_classes = tuple(sorted({part for label in manifest.class_names for part in tree.split_label(label)}))
    val_classes = train_classes
    if config.val_classes:
        val_classes = tuple(sorted({row.label for row in manifest.rows_in(VAL)}))
        train_classes = tuple(name for name in train_classes if name not in val_classes)
    test_classes = (
        tuple(sorted(set(manifest.class_names) - set(train_classes) - set(val_classes)))
        if config.unseen_classes
        else train_classes
    )

    def images_of(rows: Sequence[ManifestRow], class_names: tuple[str, ...]) -> FolderImages:
        return images_from_rows(tree.root, tree.name, rows, class_names, tree.label_separator)

    train = images_of([] if test_only else present.rows_in(TRAIN), train_classes)
    held_out = present.rows_in(VAL)
    val = images_of(held_out, val_classes) if (config.val_fraction or held_out) and not test_only else None
    test = images_of(rows_to_test(present.rows), test_classes)
    return Inputs(
        train, val, test, build_run_augment(config, FolderSet(tree.name, train, test)), config, manifest=manifest
    )


def _inputs_from_legacy_split(config: TrainConfig, tree: ImageFolderTree, test_only: bool) -> Inputs:
    """The images of a run that has no manifest; with one from now on, unless it is only tested."""
    drawn = split_folder_by_count(tree, config.seed)
    note = _LEGACY_SPLIT_NOTE if tree.test is None or config.unseen_classes else _CURRENT_TEST_FOLDER_NOTE
    if test_only:
        config = replace(config, train_fraction=1.0, imbalance=1.0, val_fraction=0.0)
    train, val, test = split_images(config, drawn)
    found = Inputs(train, val, test, build_run_augment(config, drawn), config, notes=(note,))
    found.is_legacy_split = True
    if test_only:
        return found
    parts: dict[Path, str] = {}
    for part, images in ((TRAIN, train), (VAL, val), (TEST, test)):
        assert images is None or isinstance(images, FolderImages)
        parts |= {} if images is None else dict.fromkeys(images.paths, part)
    labels = {path: (below, label) for below, (path, label, _) in tree.labelled_files().items()}
    parts |= {path: UNUSED for path in labels if path not in parts}
    contents = hash_files(parts)
    rows = [
        ManifestRow(*labels[path], part, *content)
        for (path, part), content in zip(parts.items(), contents, strict=True)
    ]
    trained = {row.sha256 for row in rows if row.part in (TRAIN, VAL)}
    unfit = trained | contents_of_two_labels(rows)
    copies = [row.part == TEST and row.sha256 in unfit for row in rows]  # which that version tested on
    rows = [replace(row, part=EXCLUDED) if copy else row for row, copy in zip(rows, copies, strict=True)]
    found.test = test.take(
        torch.tensor([row.part == TEST for row in rows if row.part in (TEST, EXCLUDED)]).nonzero()[:, 0]
    )
    found.manifest, found.has_new_manifest = Manifest(tuple(rows)), True
    found.notes += tuple(describe_duplicates(rows))
    return found


def _decode_into_memory(inputs: Inputs) -> Inputs:
    """The same with its images decoded, where they fit and are always seen whole."""
    size, how = inputs.augment.size, inputs.augment.interpolation
    names = ("train", "val", "test")
    parts = {name: part for name in names if isinstance(part := getattr(inputs, name), FolderImages)}
    if inputs.augment.scale is None and all(part.fits_in_memory(size) for part in parts.values()):
        for name, part in parts.items():
            setattr(inputs, name, part.load_into_memory(size, how))
    return inputs
