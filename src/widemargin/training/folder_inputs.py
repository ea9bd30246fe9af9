"""Images of a folder or of an index file, divided as the manifest of a run says, or drawn when the run begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..data.images.changes import (
    FolderChanges,
    describe_cross_class_duplicates,
    diff_manifest,
    format_paths,
    update_manifest,
)
from ..data.images.decode import hash_files
from ..data.images.folder import (
    ImageFolderTree,
    create_manifest,
    images_from_rows,
    scan_folder,
    split_folder_by_count,
)
from ..data.images.image_files import FolderImages, FolderSet, missing_size_error
from ..data.images.index_file import scan_index_file
from ..data.images.manifest import (
    EXCLUDED,
    MANIFEST_NAME,
    PARTS,
    REMOVED_TEST,
    TEST,
    TRAIN,
    UNUSED,
    VAL,
    Manifest,
    ManifestRow,
)
from ..data.images.sets import canonical_set_name
from ..data.images.splits import (
    SplitConfig,
    contents_of_two_labels,
    describe_duplicates,
    hold_out_classes,
    rows_to_test,
)
from ..io.errors import InputError, spell_option
from ..losses.grammar import parse
from ..losses.multilabel import is_multilabel_loss
from .config import TrainConfig
from .image_inputs import Inputs, describe_unseen
from .input_splits import (
    assign_new_error,
    build_run_augment,
    check_val_split,
    describe_bad_images,
    find_bad_images,
    refuse_identities_of_label_sets,
    split_images,
)

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
        raise assign_new_error(f"{root} is an index file")
    if not config.input_size:
        raise missing_size_error()
    split_config = SplitConfig(
        val_fraction=config.val_fraction,
        train_fraction=config.train_fraction,
        imbalance=config.imbalance,
        unseen_class_fraction=config.unseen_classes,
        seed=config.seed,
    )
    if tree.label_separator is not None:
        refuse_identities_of_label_sets(config, root)
    if assign_new and config.val_classes:
        raise InputError(
            f"{spell_option('assign_new')} cannot be combined with {spell_option('val_classes')}; start another run"
        )
    if manifest is not None:
        found = _inputs_from_manifest(config, tree, manifest, split_config, assign_new, test_only, is_finished)
    elif has_started:
        found = _inputs_from_legacy_split(config, tree, test_only)
    else:
        tree.check()  # before any header is read
        _check_repeated_rows(config, tree)
        files = [(path, file) for path, (file, _, _) in tree.labelled_files().items()]
        problems = find_bad_images(config, [file for _, file in files], workers)
        manifest, notes = create_manifest(tree, split_config, dict(files[row] for row in problems))
        manifest = hold_out_classes(manifest, config.val_classes, config.seed, tree.name)
        found = _inputs_from_rows(config, tree, manifest, manifest)
        found.has_new_manifest = True
        found.bad_images = {str(files[row][1]): problem for row, problem in problems.items()}
        found.notes = (
            *notes,
            *tree.describe_unread(),
            *describe_bad_images(found, len(files)),
            *describe_unseen(found),
        )
    if found.val is not None and not test_only:
        check_val_split(config, found.val)
    return found


def _check_repeated_rows(config: TrainConfig, tree: ImageFolderTree) -> None:
    """Refuse a second label that may be a mistake: with a loss of one label per image."""
    if tree.repeated_row and not is_multilabel_loss(parse(config.loss)):
        raise InputError(
            f"{tree.repeated_row}; {config.loss} needs one label per image: remove one of the rows, or use bce or focal"
        )


def scan_images(config: TrainConfig, root: Path) -> ImageFolderTree:
    """What lies in the folder of images, or what the index file lists, that a run names."""
    if root.is_dir():
        return scan_folder(root)
    return scan_index_file(root, config.label_separator)


def read_run_manifest(config: TrainConfig, folder: Path) -> Manifest | None:
    """The manifest in a run folder; None where there is none, or the run is on no folder of images."""
    if canonical_set_name(config.data):
        return None
    path = folder / MANIFEST_NAME
    return Manifest.read(path) if path.exists() or path.is_symlink() else None


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
        raise InputError(
            f"{tree.root}: contains none of the {len(manifest.rows):,} images of the run; is it the right folder?"
        )
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
            f"{tree.root}: training or held-out images were changed or removed since the run began ({what}); "
            f"restore them, or use {spell_option('assign_new', True)} to continue with the images as they are now"
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
