"""Any folder of images: `root/train/CLASS/*.png` with `root/test` or `root/val`, or `root/CLASS/*.png` alone.

The classes of the test folder are those of training (a closed set), or none of them (an open set: identities that were
never trained on, as in CUB, Cars, SOP and sets of faces). Where both `root/test` and `root/val` are there, the images
of `root/val` choose the checkpoint, and may be of either kind as well.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...io.errors import InputError, spell_option
from ..label_sets import encode_label_sets
from .decode import IMAGE_SUFFIXES, UNREAD_SUFFIXES, find_images, hash_files, is_hidden
from .image_files import FolderImages, FolderSet
from .manifest import TEST, TRAIN, UNREADABLE, UNUSED, VAL, Manifest, ManifestRow
from .sets import stratified_split
from .splits import (
    TEST_FRACTION,
    SplitConfig,
    UnassignedFile,
    assign_parts,
    contents_of_two_labels,
    describe_duplicates,
    unseen_classes,
)

TRAIN_FOLDER_NAMES = ("train", "training")
TEST_FOLDER_NAMES = ("test", "testing", "val", "valid", "validation")  # also capitalized, such as Test/


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
    """Paths below the root of images that choose the checkpoint and are not trained on: of `val/`, or so listed."""
    missing: tuple[str, ...] = ()
    """Paths in the index file that are not there."""
    unread: tuple[str, ...] = ()
    """Paths of images in formats that are not read."""
    repeated_row: str = ""
    """Where an index file gives an image a second label in a row of its own, the first place of that kind."""

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
        """Raise InputError if no run can start on this folder."""
        if self.index_file is not None:
            self._check_index()
            return
        if len(self.train) < 2:
            what = "no folder per class" if not self.train else f"only one class, {next(iter(self.train))!r},"
            place = self.train_folder
            layouts = f"{place}/CLASS/*.png" + ("" if place != self.root else f" or {place}/train/CLASS/*.png")
            raise InputError(f"{place}: {what} in it; images are expected at {layouts}")
        _check_no_empty_class(self.train_folder, self.train)
        if self.test_folder is None or self.test is None:
            return
        if not self.test:
            place = self.test_folder
            raise InputError(f"{place}: no folder per class in it; images are expected at {place}/CLASS/*.png")
        _check_no_empty_class(self.test_folder, self.test)
        self._check_class_sets(self.test_folder)

    def describe_unread(self) -> list[str]:
        """A line about images that are left out because of their format; nothing without any."""
        if not self.unread:
            return []
        formats = ", ".join(sorted({Path(path).suffix.lower() for path in self.unread}))
        what = "1 image is" if len(self.unread) == 1 else f"{len(self.unread):,} images are"
        return [f"{what} left out, such as {self.unread[0]}: {formats} cannot be read; convert to JPEG or PNG"]

    @property
    def train_labels(self) -> set[str]:
        """The labels of images that are trained on."""
        return {
            label
            for label, paths in self.train.items()
            if not self.held_out or any(self._relative_path(path) not in self.held_out for path in paths)
        }

    @property
    def is_open_set(self) -> bool:
        """Whether the images to test on are of other classes than those to train on."""
        return self.label_separator is None and bool(set(self.test or ()) - self.train_labels)

    def without(self, paths: Collection[str]) -> ImageFolderTree:
        """The same without some files, named by their paths below the root; classes that are left empty are gone."""

        def remaining(files: dict[str, list[Path]]) -> dict[str, list[Path]]:
            kept = {
                word: [path for path in found if self._relative_path(path) not in paths]
                for word, found in files.items()
            }
            return {word: found for word, found in kept.items() if found or not files[word]}

        return replace(self, train=remaining(self.train), test=None if self.test is None else remaining(self.test))

    def _check_class_sets(self, where: Path) -> None:
        """Refuse images to test on or to choose by of which some classes are trained on and some are not."""
        known = self.train_labels
        val = {
            label for label, paths in self.train.items() if any(self._relative_path(p) in self.held_out for p in paths)
        }
        for what, labels in (("to test on", set(self.test or ())), ("to choose by", val)):
            strange = labels - known
            if strange and strange != labels:
                raise InputError(
                    f"{where}: {len(strange):,} of {len(labels):,} classes {what}, such as {min(strange)!r}, are not "
                    f"among the {len(known):,} training classes; either all of them or none must be"
                )

    def _check_index(self) -> None:
        """The same for an index file."""
        place = self.index_file
        if self.missing:
            more = f" and {len(self.missing) - 1:,} more" if len(self.missing) > 1 else ""
            were = "were" if len(self.missing) > 1 else "was"
            raise InputError(f"{place}: {self.missing[0]}{more} {were} not found; paths are relative to {self.root}")
        known = {part for label in self.train for part in self.split_label(label)}
        if self.label_separator is None:
            known = self.train_labels
        if len(known) < 2:
            raise InputError(f"{place}: {len(known)} label among its training images; at least two are needed")
        if self.label_separator is None:
            assert place is not None
            self._check_class_sets(place)
            return
        strange = sorted({part for label in self.test or {} for part in self.split_label(label)} - known)
        if strange:
            raise InputError(f"{place}: the label {strange[0]!r} occurs only in test images")

    def _relative_path(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def scan_folder(root: str | Path) -> ImageFolderTree:
    """List the images of a folder by class."""
    root = Path(root).expanduser()
    if not root.is_dir():
        raise InputError(f"{root} is not a folder of images")
    train = next(iter(_named_folders(root, TRAIN_FOLDER_NAMES)), root)
    if train != root and _is_class_folder(train):
        train = root
    others = _named_folders(root, TEST_FOLDER_NAMES) if train != root else []
    files, unread = images_by_class(train)
    test, unread_test = images_by_class(others[0]) if others else (None, [])
    held_out = []
    if len(others) > 1 and others[0].name.lower().startswith("test"):
        val, unread_val = images_by_class(others[1])
        for word, paths in val.items():
            files.setdefault(word, []).extend(paths)
            held_out += [path.relative_to(root).as_posix() for path in paths]
        unread_test += unread_val
    return ImageFolderTree(
        root,
        dict(sorted(files.items())),
        test,
        train,
        others[0] if others else None,
        held_out=frozenset(held_out),
        unread=tuple(path.relative_to(root).as_posix() for path in (*unread, *unread_test)),
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


def create_manifest(
    tree: ImageFolderTree, split_config: SplitConfig, unreadable: Mapping[str, Path] | None = None
) -> tuple[Manifest, list[str]]:
    """Divide a folder for the first time; and lines about pictures that lie in it more than once.

    `unreadable` are files by their paths below the root that cannot be read as images and belong to no other part.
    """
    unreadable = unreadable or {}
    labels = {path: tree.labelled_files()[path][1] for path in unreadable} if unreadable else {}
    tree = tree.without(unreadable) if unreadable else tree
    tree.check()
    _check_given_split(tree, split_config)
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
            part=VAL if row.path in tree.held_out and row.part in (TRAIN, UNUSED) else row.part,
        )
        for row in rows
    ]
    notes = describe_duplicates(rows)
    if not any(row.part == TEST for row in rows):
        if tree.test_folder is not None or unseen is not None:
            raise InputError(f"{tree.root}: no test images are left{f': {notes[0]}' if notes else ''}")
        why = "one image per class leaves no test images; add images or a folder"
        raise InputError(f"{tree.train_folder}: {why} {tree.root}/test")
    contents = hash_files(unreadable.values())
    rows += [
        ManifestRow(path, labels[path], UNREADABLE, *content) for path, content in zip(labels, contents, strict=True)
    ]
    return Manifest(tuple(rows)), notes


def _check_given_split(tree: ImageFolderTree, split_config: SplitConfig) -> None:
    """Refuse settings that contradict the given parts, or that need one label per image."""
    if tree.held_out and split_config.val_fraction:
        where = f"{tree.root}/val" if tree.index_file is None else f"{tree.index_file}: its split val"
        raise InputError(f"{where} and {spell_option('val_fraction')} both hold images out; omit one of them")
    if tree.is_open_set and split_config.unseen_class_fraction:
        raise InputError(
            f"{tree.test_folder}: its classes differ from the training classes already; omit "
            f"{spell_option('unseen_classes')}"
        )
    if tree.has_split and tree.test is None:
        raise InputError(
            f"{tree.index_file}: its column split marks no row as test; mark some, or leave the column empty"
        )
    if tree.label_separator is None:
        return
    for option, is_set in (
        ("unseen_classes", split_config.unseen_class_fraction > 0.0),
        ("imbalance", split_config.imbalance > 1.0),
    ):
        if is_set:
            raise InputError(
                f"{spell_option(option)} needs one label per image; those of {tree.index_file} have several"
            )


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
    if tree.is_open_set:
        raise InputError(
            f"{tree.test_folder}: contains classes without training images, which a run of version 0.1.0 cannot have"
        )
    classes = tuple(tree.train)
    place = {word: number for number, word in enumerate(classes)}  # a list would be searched for every image

    def images(files: dict[str, list[Path]]) -> FolderImages:
        paths = tuple(path for found in files.values() for path in found)
        labels = [place[word] for word, found in files.items() for _ in found]
        return FolderImages(tree.name, paths, torch.tensor(labels, dtype=torch.int64), classes)

    if tree.test is not None:
        return FolderSet(tree.name, images(tree.train), images(tree.test))
    return FolderSet(tree.name, *stratified_split(images(tree.train), TEST_FRACTION, seed))


def images_by_class(folder: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """The images of each folder in a folder, by its name, and those in formats that are not read (`.heic`)."""
    files: dict[str, list[Path]] = {}
    unread: list[Path] = []
    for word in sorted(name for name in _folder_names(folder) if not is_hidden(name)):
        found = find_images(folder / word, (*IMAGE_SUFFIXES, *UNREAD_SUFFIXES))
        files[word] = [path for path in found if path.suffix.lower() not in UNREAD_SUFFIXES]
        unread += [path for path in found if path.suffix.lower() in UNREAD_SUFFIXES]
    return files, unread


def _named_folders(root: Path, names: Sequence[str]) -> list[Path]:
    """Folders in `root` with one of these names, in this order; capital letters make no difference."""
    present = sorted(_folder_names(root), reverse=True)  # `test` before `Test`
    return [root / found for name in names for found in present if found.lower() == name]


def _is_class_folder(folder: Path) -> bool:
    """Whether a folder named `train` is a class among others, such as pictures of trains beside `bus/`."""
    siblings = {name.lower() for name in _folder_names(folder.parent) if not is_hidden(name)}
    return not _folder_names(folder) and bool(siblings.difference(TRAIN_FOLDER_NAMES, TEST_FOLDER_NAMES))


def _folder_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir()]


def _check_no_empty_class(folder: Path, files: dict[str, list[Path]]) -> None:
    for word, found in files.items():
        if not found:
            endings = ", ".join(suffix[1:] for suffix in IMAGE_SUFFIXES)
            raise InputError(f"{folder}: class {word!r} has no images ({endings}); add some or remove its folder")
