"""Images of packed files (RecordIO, tar shards, Arrow), in the parts that the files give, or in parts that are drawn.

Packed files do not change, so there is no manifest: the seed alone decides the parts (`data.images.packed`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from ..data.images.identities import concat_images, split_identities, without_classes
from ..data.images.image_files import FolderImages, FolderSet, missing_size_error
from ..data.images.packed import PackedFiles, PackedPart
from ..data.images.packed_sets import read_packed_set
from ..data.images.sets import Images, stratified_split
from ..data.images.splits import TEST_FRACTION
from ..io.errors import InputError, spell_option
from .config import TrainConfig
from .image_inputs import Inputs, describe_unseen
from .input_splits import (
    build_run_augment,
    check_val_split,
    describe_bad_images,
    find_bad_images,
    refuse_identities_of_label_sets,
    select_train_samples,
)


def load_packed_inputs(config: TrainConfig, root: Path, has_started: bool, workers: int | None) -> Inputs:
    """The images of packed files: in the parts that they give, else divided by their number.

    Where nothing says what to test on, that is the pairs which lie beside the images, or else a fifth of each class.
    Headers are checked when a run begins; an image that cannot be read is skipped when its batch is made.
    """
    if not config.input_size:
        raise missing_size_error()
    packed = read_packed_set(root, config.label_separator)
    name = root.resolve().name
    train: FolderImages = FolderImages(
        name, packed.train.images, torch.from_numpy(packed.train.y), packed.train.class_names
    )
    if train.y.ndim == 2:
        refuse_identities_of_label_sets(config, root)
    if len(train.class_names) < 2:
        raise InputError(f"{root}: contains only one class, {train.class_names[0]!r}; at least two are needed")
    test, val = (_align_classes(train, part, root) for part in (packed.test, packed.val))
    if config.unseen_classes:
        if test is not None and test.class_names != train.class_names:
            raise InputError(
                f"{root}: its test classes differ from its training classes already; omit "
                f"{spell_option('unseen_classes')}"
            )
        train, test = _split_packed_identities(train if test is None else concat_images(train, test), config)
    elif test is None and not packed.pair_files:
        train, test = stratified_split(train, TEST_FRACTION, config.seed)
        if not len(test):
            raise InputError(f"{root}: one image per class leaves no test images")
    if config.val_fraction:
        if val is not None:
            raise InputError(
                f"{root}: its part val and {spell_option('val_fraction')} both hold images out; omit one of them"
            )
        train, val = stratified_split(train, config.val_fraction, config.seed)
        check_val_split(config, val)
    if config.val_classes:
        if val is not None:
            raise InputError(
                f"{root}: its part val and {spell_option('val_classes')} both hold images out; omit one of them"
            )
        train, val, test = _hold_out_packed_classes(train, test, config)
    train = select_train_samples(config, train, train.class_names)
    augment = build_run_augment(config, FolderSet(name, train, train if test is None else test))
    found = Inputs(train, val, test, augment, config, pair_files=packed.pair_files, packed_digest=_hash_places(train))
    if not has_started:
        total = 0
        for images in filter(None, (train, val, test)):
            problems = find_bad_images(config, images.paths, workers)
            found.bad_images |= {str(images.paths[row]): problem for row, problem in problems.items()}
            total += len(images)
        found.notes = (*packed.notes, *describe_bad_images(found, total), *describe_unseen(found))
    return found


def _hold_out_packed_classes(
    train: FolderImages, test: FolderImages | None, config: TrainConfig
) -> tuple[FolderImages, FolderImages, FolderImages | None]:
    """Training images, those of the classes that are held out, and test images without these classes."""
    seen, val = split_identities(train, config.val_classes, config.seed)
    if test is not None and test.class_names == train.class_names:
        kept = without_classes(test, val.class_names, seen.class_names)
        assert isinstance(kept, FolderImages)
        test = kept
    assert isinstance(seen, FolderImages)
    assert isinstance(val, FolderImages)
    return seen, val, test


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
    if y.ndim == 2:  # the columns of all parts are the same (`data.images.packed_labels`)
        return FolderImages(train.name, part.images, y, names)
    if not strange:
        y, names = torch.tensor([place[name] for name in names], dtype=torch.int64)[y], train.class_names
    elif len(strange) < len(names):
        raise InputError(
            f"{root}: {len(strange):,} of {len(names):,} test or held-out classes, such as {strange[0]!r}, are not "
            f"among the {len(place):,} training classes; either all of them or none must be"
        )
    return FolderImages(train.name, part.images, y, names)


def _hash_places(images: FolderImages) -> str:
    assert isinstance(images.paths, PackedFiles)
    hashed = hashlib.sha256(repr(images.class_names).encode())
    for column in (images.paths.offsets, images.paths.sizes, images.y.numpy()):
        hashed.update(column.astype("<i8").tobytes())
    return hashed.hexdigest()
