"""What a run learns from and is evaluated on: images of a set, a folder or packed files, in parts and batches.

The images of a folder are divided as the manifest of a run says, or as it is drawn when the run begins. Packed files
(`data.images.packed`) do not change, and their images are divided by their number.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from ..data.images.decode import ImageFile, find_header_problems, hash_files
from ..data.images.folder import (
    ImageFolderTree,
    create_manifest,
    images_from_rows,
    scan_folder,
    split_folder_by_count,
)
from ..data.images.identities import (
    check_some_pairs,
    concat_images,
    describe_singletons,
    split_identities,
    without_classes,
)
from ..data.images.image_files import FolderBatches, FolderImages, FolderSet
from ..data.images.index_file import scan_index_file
from ..data.images.long_tail import long_tailed_subset
from ..data.images.manifest import (
    EXCLUDED,
    PARTS,
    REMOVED_TEST,
    TEST,
    TRAIN,
    UNUSED,
    VAL,
    Manifest,
    ManifestRow,
)
from ..data.images.packed import PackedFiles, PackedPart, expand_braces, is_packed_set
from ..data.images.packed_sets import read_packed_set
from ..data.images.sets import SamplesT, stratified_split, stratified_subset
from ..data.images.splits import (
    TEST_FRACTION,
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
    from ..data.images.sets import Images, ImageSet

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
    """Images that cannot be read and are skipped, with the reason (`--on-bad-image skip`)."""

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
            raise InputError(f"{self.config.data_name} has no images to test on, only pairs: use --pairs")
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
    workers: int | None = None,
) -> Inputs:
    """Load the images that a run names; those of a folder or of packed files are looked for in `data_dir` first.

    Of a folder of images `manifest` says which file belongs to which part; without one the parts are drawn, for a run
    that `has_started` before as version 0.1.0 drew them. `assign_new` takes the folder as it is now
    (`data.images.changes`), for a run that `is_finished` without training on any of it.
    `test_only` loads no training images where it can, so that a missing or damaged one cannot prevent an evaluation.
    `workers` threads decode images, by default one per core.
    """
    root = image_folder(config, data_dir)
    if config.label_separator is not None and (root is None or root.is_dir() or is_packed_set(root)):
        raise InputError(f"--label-separator goes with an index file of images; {config.data} is none")
    if root is not None and is_packed_set(root):
        if assign_new:
            raise InputError(f"--assign-new is for folders of images; {root} is packed: begin another run")
        found = _decode_into_memory(load_packed_inputs(config, root, has_started, workers), workers)
    elif root is not None:
        found = load_folder_inputs(config, root, manifest, has_started, assign_new, test_only, is_finished, workers)
    else:
        from ..data.images.sets import load_images

        if assign_new:
            raise InputError(f"--assign-new is for folders of images; {config.data} is a fixed set")
        image_set = load_images(config.data, data_dir)
        found = Inputs(*split_images(config, image_set), build_run_augment(config, image_set), config)
    found.rank, found.world_size, found.workers = rank, world_size, workers
    return found


def image_folder(config: TrainConfig, data_dir: str | Path | None = None) -> Path | None:
    """The folder, index file or packed files of images that a run names; None where it names a set.

    A known name is the set even where a folder of that name lies about; `./mnist` is the folder. A path is looked for
    below `data_dir`, by the whole of it where it is relative or else by its last part, so that a run can be evaluated
    where its images lie elsewhere; `data_dir` may also be the folder of images itself.
    """
    from ..data.images.sets import canonical_set_name

    if canonical_set_name(config.data):
        return None
    given = Path(os.path.expanduser(config.data))
    candidates = [given]
    for root in (data_dir, os.environ.get("WIDEMARGIN_DATA")):
        if not root:
            continue
        place = Path(root).expanduser()
        below = [place / given] if not given.is_absolute() else []
        below += [place / given.name, *([place] if place.name == given.name else [])]
        candidates = [*below, *candidates] if root is data_dir else [*candidates, *below]
    found = next((path for path in candidates if _has_images(path)), None)
    if found is not None:
        return found
    if os.sep in config.data:
        where = f"; it is not in {data_dir} either" if data_dir else "; --data-dir says where its images are now"
        raise InputError(f"{config.data} is not a folder, index file or packed file of images{where}")
    return None


def _has_images(path: Path) -> bool:
    """Whether something lies at a path, of a pattern with braces at the first one it stands for."""
    if path.is_dir() or path.is_file():
        return True
    return "{" in path.name and is_packed_set(path) and Path(expand_braces(str(path))[0]).is_file()


def scan_images(config: TrainConfig, root: Path) -> ImageFolderTree:
    """What lies in the folder of images, or what the index file lists, that a run names."""
    if root.is_dir():
        return scan_folder(root)
    return scan_index_file(root, config.label_separator)


def read_run_manifest(config: TrainConfig, folder: Path) -> Manifest | None:
    """The manifest in a run folder; None where there is none, or the run is on no folder of images."""
    from ..data.images.manifest import MANIFEST_NAME
    from ..data.images.sets import canonical_set_name

    if canonical_set_name(config.data):
        return None
    path = folder / MANIFEST_NAME
    return Manifest.read(path) if path.exists() or path.is_symlink() else None


def split_images(config: TrainConfig, image_set: ImageSet | FolderSet) -> tuple[Samples, Samples | None, Samples]:
    """Training, held-out and test images of a set whose files never change, drawn from their number."""
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
    workers: int | None = None,
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
        tree.check()  # before any header is read
        files = [(path, file) for path, (file, _, _) in tree.labelled_files().items()]
        problems = find_bad_images(config, [file for _, file in files], workers)
        manifest, notes = create_manifest(tree, split_config, dict(files[row] for row in problems))
        manifest = hold_out_classes(manifest, config.val_classes, config.seed, tree.name)
        found = _inputs_from_rows(config, tree, manifest, manifest)
        found.has_new_manifest = True
        found.bad_images = {str(files[row][1]): problem for row, problem in problems.items()}
        found.notes = (*notes, *_describe_bad_images(found, len(files)), *_check_open_set(found))
    if found.val is not None and not test_only:
        check_val_split(config, found.val)
    return _decode_into_memory(found, workers)


def find_bad_images(config: TrainConfig, paths: Sequence[ImageFile], workers: int | None) -> dict[int, str]:
    """The places of images that are skipped because their headers cannot be read; an error unless they may be."""
    problems = find_header_problems(paths, workers)
    if problems and config.on_bad_image == "stop":
        more = f" ({len(problems) - 1:,} more of {len(paths):,} images are as bad)" if len(problems) > 1 else ""
        raise InputError(f"{next(iter(problems.values()))}{more}, or go on without, with --on-bad-image skip")
    return problems


def _describe_bad_images(inputs: Inputs, total: int) -> list[str]:
    if not inputs.bad_images:
        return []
    what = f"{len(inputs.bad_images):,} of {total:,} images cannot be read and are skipped"
    return [f"{what}, such as {next(iter(inputs.bad_images.values()))}"]


def _check_open_set(inputs: Inputs) -> list[str]:
    """A line about classes of one image among unseen ones; an error where there are no others."""
    if not inputs.is_open_set or inputs.test is None:
        return []
    note = describe_singletons(check_some_pairs(inputs.test))
    return [] if note is None else [note]


def load_packed_inputs(config: TrainConfig, root: Path, has_started: bool, workers: int | None) -> Inputs:
    """The images of packed files: in the parts that they give, else divided by their number.

    Where nothing says what to test on, that is the pairs which lie beside the images, or else a fifth of each class.
    Headers are checked when a run begins; an image that cannot be read is skipped when its batch is made.
    """
    if not config.input_size:
        raise InputError("images of a folder differ in size: say how large they are to be, with --input-size")
    packed = read_packed_set(root)
    name = root.resolve().name
    train: FolderImages = FolderImages(
        name, packed.train.images, torch.from_numpy(packed.train.y), packed.train.class_names
    )
    if len(train.class_names) < 2:
        raise InputError(f"{root}: only one class, {train.class_names[0]!r}, in it; at least two are needed")
    test, val = (_align_classes(train, part, root) for part in (packed.test, packed.val))
    if config.unseen_classes:
        if test is not None and test.class_names != train.class_names:
            raise InputError(f"{root}: its classes to test on are not those to train on; leave --unseen-classes out")
        train, test = _split_packed_identities(train if test is None else concat_images(train, test), config)
    elif test is None and not packed.pair_files:
        train, test = stratified_split(train, TEST_FRACTION, config.seed)
        if not len(test):
            raise InputError(f"{root}: one image per class leaves none to test on")
    if config.val_fraction:
        if val is not None:
            raise InputError(f"{root}: its part val and --val-fraction both hold images out; leave one out")
        train, val = stratified_split(train, config.val_fraction, config.seed)
        check_val_split(config, val)
    train = select_train_samples(config, train, train.class_names)
    augment = build_run_augment(config, FolderSet(name, train, train if test is None else test))
    found = Inputs(train, val, test, augment, config, pair_files=packed.pair_files, packed_digest=_hash_places(train))
    if not has_started:
        total = 0
        for images in filter(None, (train, val, test)):
            problems = find_bad_images(config, images.paths, workers)
            found.bad_images |= {str(images.paths[row]): problem for row, problem in problems.items()}
            total += len(images)
        found.notes = (*packed.notes, *_describe_bad_images(found, total), *_check_open_set(found))
    return found


def _hash_places(images: FolderImages) -> str:
    assert isinstance(images.paths, PackedFiles)
    hashed = hashlib.sha256(repr(images.class_names).encode())
    for column in (images.paths.offsets, images.paths.sizes, images.y.numpy()):
        hashed.update(column.astype("<i8").tobytes())
    return hashed.hexdigest()


def _split_packed_identities(images: FolderImages | Images, config: TrainConfig) -> tuple[FolderImages, FolderImages]:
    seen, unseen = split_identities(images, config.unseen_classes, config.seed)
    assert isinstance(seen, FolderImages)
    assert isinstance(unseen, FolderImages)
    return seen, unseen


def _align_classes(train: FolderImages, part: PackedPart | None, root: Path) -> FolderImages | None:
    """A part with the classes of training, or with its own where it shares none of them."""
    if part is None:
        return None
    place = {name: k for k, name in enumerate(train.class_names)}
    strange = [name for name in part.class_names if name not in place]
    y, names = torch.from_numpy(part.y), part.class_names
    if not strange:
        y, names = torch.tensor([place[name] for name in names], dtype=torch.int64)[y], train.class_names
    elif len(strange) < len(names):
        raise InputError(
            f"{root}: of {len(names):,} classes to test on or choose by {len(strange):,}, such as {strange[0]!r}, are "
            f"not among the {len(place):,} to train on and the others are; take all of them from there, or none"
        )
    return FolderImages(train.name, part.images, y, names)


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
    if not compared.unchanged and not compared.changed:
        raise InputError(f"{tree.root}: holds none of the {len(manifest.rows):,} images of the run; is it its folder?")
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
    unseen: tuple[str, ...] = ()
    val_classes: tuple[str, ...] = ()
    if tree.label_separator is None:
        unseen, val_classes = manifest.unseen_class_names(TEST, REMOVED_TEST), manifest.unseen_class_names(VAL)
        unseen = tuple(name for name in unseen if name not in val_classes)

    def images_of(rows: Sequence[ManifestRow], class_names: tuple[str, ...]) -> FolderImages:
        return images_from_rows(tree.root, tree.name, rows, class_names, tree.label_separator)

    train = images_of([] if test_only else present.rows_in(TRAIN), train_classes)
    held_out = present.rows_in(VAL)
    val = None
    if (config.val_fraction or held_out) and not test_only:
        val = images_of(held_out, val_classes or train_classes)
    test = images_of(rows_to_test(present.rows), unseen or train_classes)
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
        parts |= {} if images is None else {path: part for path in images.paths if isinstance(path, Path)}
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


def _decode_into_memory(inputs: Inputs, workers: int | None = None) -> Inputs:
    """The same with its images decoded, where they fit and are always seen whole."""
    size, how = inputs.augment.size, inputs.augment.interpolation
    names = ("train", "val", "test")
    parts = {name: part for name in names if isinstance(part := getattr(inputs, name), FolderImages)}
    if inputs.augment.scale is None and all(part.fits_in_memory(size) for part in parts.values()):
        skipped = inputs.bad_images if inputs.config.on_bad_image == "skip" else None
        for name, part in parts.items():
            setattr(inputs, name, part.load_into_memory(size, how, workers=workers, bad_images=skipped))
    return inputs
