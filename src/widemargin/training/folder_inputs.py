"""The images of a folder, divided as the manifest of a run says, or as it is drawn when the run begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ..data.changes import FolderChanges, describe_cross_class_duplicates, diff_manifest, format_paths, update_manifest
from ..data.content import hash_files
from ..data.folder import (
    FolderImages,
    FolderSet,
    ImageFolderTree,
    create_manifest,
    images_from_rows,
    scan_folder,
    split_folder_by_count,
)
from ..data.identities import check_pairs
from ..data.manifest import EXCLUDED, PARTS, TEST, TRAIN, UNUSED, VAL, Manifest, ManifestRow
from ..data.splits import SplitConfig, contents_of_two_labels, describe_duplicates, rows_to_test
from ..errors import InputError
from ..run import TrainConfig
from .inputs import Inputs, build_run_augment, check_val_split, split_images

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
    tree = scan_folder(root)
    if not config.input_size:
        raise InputError("images of a folder differ in size: say how large they are to be, with --input-size")
    split_config = SplitConfig(
        val_fraction=config.val_fraction,
        train_fraction=config.train_fraction,
        unseen_class_fraction=config.unseen_classes,
        seed=config.seed,
    )
    if manifest is not None:
        found = _inputs_from_manifest(config, tree, manifest, split_config, assign_new, test_only, is_finished)
    elif has_started:
        found = _inputs_from_legacy_split(config, tree, test_only)
    else:
        manifest, notes = create_manifest(tree, split_config)
        found = _inputs_from_rows(config, tree, manifest, manifest)
        found.notes, found.has_new_manifest = tuple(notes), True
        if config.unseen_classes:
            check_pairs(found.test)
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
    """Images of the rows that are `there`, with the classes of the whole manifest."""
    train_classes = manifest.train_class_names
    test_classes = (
        tuple(sorted(set(manifest.class_names) - set(train_classes))) if config.unseen_classes else train_classes
    )
    train = images_from_rows(tree.root, tree.name, [] if test_only else present.rows_in(TRAIN), train_classes)
    val = (
        images_from_rows(tree.root, tree.name, present.rows_in(VAL), train_classes)
        if config.val_fraction and not test_only
        else None
    )
    test = images_from_rows(tree.root, tree.name, rows_to_test(present.rows), test_classes)
    return Inputs(
        train, val, test, build_run_augment(config, FolderSet(tree.name, train, test)), config, manifest=manifest
    )


def _inputs_from_legacy_split(config: TrainConfig, tree: ImageFolderTree, test_only: bool) -> Inputs:
    """The images of a run that has no manifest; with one from now on, unless it is only tested."""
    drawn = split_folder_by_count(tree, config.seed)
    note = _LEGACY_SPLIT_NOTE if tree.test is None or config.unseen_classes else _CURRENT_TEST_FOLDER_NOTE
    if test_only:
        config = replace(config, train_fraction=1.0, val_fraction=0.0)
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
    names = ("train", "held_out", "test")
    parts = {name: part for name in names if isinstance(part := getattr(inputs, name), FolderImages)}
    if inputs.augment.scale is None and all(part.fits_in_memory(size) for part in parts.values()):
        for name, part in parts.items():
            setattr(inputs, name, part.load_into_memory(size, how))
    return inputs
