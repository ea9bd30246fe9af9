"""A folder of images compared with the manifest of a run: what was added, changed or removed; the updated manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...io.errors import InputError, shorten, spell_option
from .decode import hash_file, hash_files
from .folder import ImageFolderTree
from .manifest import (
    EXCLUDED,
    MANIFEST_NAME,
    PARTS,
    REMOVED_PARTS,
    REMOVED_TEST,
    REMOVED_TRAIN,
    TEST,
    TRAIN,
    UNREADABLE,
    UNUSED,
    VAL,
    Manifest,
    ManifestRow,
)
from .splits import (
    SplitConfig,
    UnassignedFile,
    assign_parts,
    describe_duplicates,
    find_cross_class_duplicates,
    part_of_changed,
    rows_by_content,
)

_MAX_PATHS_SHOWN, _MAX_PATHS_STORED = 3, 100  # paths that a line names, and that a file keeps, of each kind
# The part under which a content is remembered once its file is gone.
_PART_AFTER_REMOVAL = {TRAIN: REMOVED_TRAIN, VAL: REMOVED_TRAIN, TEST: REMOVED_TEST}


@dataclass(frozen=True)
class FolderChanges:
    """Differences between a folder and its manifest; of files that were not hashed only a new size is detected."""

    num_test: int
    """Test images of the manifest; `num_usable_test` of them are there, unchanged, and in one class."""
    num_usable_test: int
    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    new_classes: tuple[str, ...] = ()
    """Classes that the run does not know; their images can belong to no part of it."""
    duplicates: tuple[str, ...] = ()
    """Test images whose picture lies in another class too, each with its copy there; no change by itself."""

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.removed or self.new_classes)

    def summary(self) -> str:
        """The numbers in plain words.

        >>> print(FolderChanges(80, 80).summary())
        manifest: 80 test images; nothing in the folder was added, changed or removed
        >>> print(FolderChanges(80, 78, new=("cat/9.png",), changed=("cat/1.png",), removed=("dog/2.png",)).summary())
        manifest: 78 of 80 test images, 1 new (unassigned), 1 changed (left out), 1 removed
        """
        tested = (
            f"{self.num_usable_test:,}"
            if self.num_usable_test == self.num_test
            else f"{self.num_usable_test:,} of {self.num_test:,}"
        )
        said = f"manifest: {tested} test image{'' if self.num_test == 1 else 's'}"
        said += f", {len(self.duplicates):,} in two classes (left out)" if self.duplicates else ""
        if not self:
            return f"{said}; nothing in the folder was added, changed or removed"
        kinds = (("new (unassigned)", self.new), ("changed (left out)", self.changed), ("removed", self.removed))
        said += "".join(f", {len(paths):,} {what}" for what, paths in kinds if paths)
        if self.new_classes:
            number = len(self.new_classes)
            said += f", {number:,} new class{'es' if number > 1 else ''} that the run does not know"
        return said

    def details(self) -> list[str]:
        """A line with paths for each kind."""
        kinds = {"in two classes": self.duplicates, "new": self.new, "changed": self.changed, "removed": self.removed}
        kinds["new classes"] = self.new_classes
        ends = {
            "new": f"; {spell_option('assign_new')} gives each a part",
            "in two classes": "; not tested on until one is removed",
        }
        return [f"  {kind}: {format_paths(paths)}{ends.get(kind, '')}" for kind, paths in kinds.items() if paths]

    def to_dict(self) -> dict[str, Any]:
        """The same for a file in JSON: numbers, and the first paths of each kind."""
        kinds = {"new": self.new, "changed": self.changed, "removed": self.removed, "in_two_classes": self.duplicates}
        found: dict[str, Any] = {"test": self.num_test, "tested": self.num_usable_test}
        found |= {kind: len(paths) for kind, paths in kinds.items()}
        found["new_classes"] = list(self.new_classes[:_MAX_PATHS_STORED])
        found["paths"] = {kind: list(paths[:_MAX_PATHS_STORED]) for kind, paths in kinds.items() if paths}
        return found


@dataclass(frozen=True)
class ManifestDiff:
    """Rows of a manifest whose files are as they were, rows whose files have changed or are gone, and new files."""

    unchanged: list[ManifestRow]
    changed: list[ManifestRow]
    removed: list[ManifestRow]
    new: list[str]
    changes: FolderChanges

    @property
    def lost_training_rows(self) -> list[ManifestRow]:
        """Training and validation images that have changed or are missing."""
        return [row for row in (*self.removed, *self.changed) if row.part in (TRAIN, VAL)]


def diff_manifest(manifest: Manifest, tree: ImageFolderTree, hashed_parts: Collection[str] = PARTS) -> ManifestDiff:
    """Compare a folder with its manifest; files of `hashed_parts` are hashed, of others only the size is compared."""
    labelled_files = tree.labelled_files()
    rows = [row for row in manifest.rows if row.part not in REMOVED_PARTS]
    for row in rows:
        if row.path in labelled_files and labelled_files[row.path][1] != row.label:
            said = f"{row.path} is of class {shorten(row.label)!r}"
            where = "lies in the folder of another" if tree.index_file is None else f"of another in {tree.index_file}"
            raise InputError(
                f"{MANIFEST_NAME}: {said}, but {where}; it does not belong to {tree.index_file or tree.root}"
            )
    there = [row for row in rows if row.path in labelled_files]
    sizes = [_file_size(labelled_files[row.path][0]) for row in there]
    read = [row for row, size in zip(there, sizes, strict=True) if row.part in hashed_parts and size == row.size]
    contents = hash_files(labelled_files[row.path][0] for row in read)
    hashes = {row.path: content.sha256 for row, content in zip(read, contents, strict=True)}
    same, changed = list[ManifestRow](), list[ManifestRow]()
    for row, size in zip(there, sizes, strict=True):
        is_unchanged = size == row.size and hashes.get(row.path, row.sha256) == row.sha256
        (same if is_unchanged else changed).append(row)
    removed = [row for row in rows if row.path not in labelled_files]
    listed = {row.path for row in rows}
    classes = {part for label in manifest.class_names for part in tree.split_label(label)}
    parts = {label: set(tree.split_label(label)) for _, label, _ in labelled_files.values()}
    fresh = [path for path, (_, label, _) in labelled_files.items() if path not in listed and parts[label] <= classes]
    doubled = describe_cross_class_duplicates(same)
    changes = FolderChanges(
        len(manifest.rows_in(TEST)),
        sum(row.part == TEST for row in same) - len(doubled),
        tuple(fresh),
        tuple(row.path for row in changed),
        tuple(row.path for row in removed),
        tuple(sorted({part for some in parts.values() for part in some} - classes)),
        doubled,
    )
    return ManifestDiff(same, changed, removed, fresh, changes)


def describe_cross_class_duplicates(rows: Sequence[ManifestRow]) -> tuple[str, ...]:
    """Test images that are left out because their picture lies in another class too, with where that is."""
    return tuple(f"{row.path} and {other.path}" for row, other in find_cross_class_duplicates(rows))


def update_manifest(
    manifest: Manifest, tree: ImageFolderTree, diff: ManifestDiff, split_config: SplitConfig, is_finished: bool = False
) -> tuple[Manifest, list[str]]:
    """The manifest of the folder as it is now, and lines that say which image went where; no other image moves.

    New files are assigned by the ranking of `splits`, and so are excluded ones whose content no other image has any
    more. A changed file keeps its part, unless its content is now that of another image. Contents that were trained on,
    chosen by or tested on are remembered when they are gone. If `is_finished`, nothing more is trained on.
    """
    labelled_files = tree.labelled_files()
    before = {row.path: row for row in manifest.rows if row.part not in REMOVED_PARTS}
    lost = (row for row in (*diff.removed, *diff.changed) if row.part in _PART_AFTER_REMOVAL)
    trained = set(manifest.train_class_names)
    removed_rows = list(
        dict.fromkeys(
            [
                *manifest.rows_in(*REMOVED_PARTS),
                # Images of classes that only select `best` are never trained on, like test images.
                *(replace(row, part=_PART_AFTER_REMOVAL[row.part if row.label in trained else TEST]) for row in lost),
            ]
        )
    )
    kept = _current_rows(diff, labelled_files, removed_rows)
    old = [kept[path] for path in before if path in kept]
    free = _no_longer_excluded_paths(old, before)
    unseen = (
        set(manifest.class_names) - set(manifest.train_class_names) if split_config.unseen_class_fraction else set()
    )
    former = {row.path: "test" if row.part == REMOVED_TEST else "train" for row in removed_rows}

    def file_of(path: str, size: int, sha256: str) -> UnassignedFile:
        _, label, side = labelled_files[path]
        if split_config.unseen_class_fraction:
            side = "test" if label in unseen else "train"
        return UnassignedFile(path, label, side or former.get(path, ""), size, sha256)  # a path keeps its side

    files = [file_of(row.path, row.size, row.sha256) for row in old if row.path in free]
    contents = hash_files(labelled_files[path][0] for path in diff.new)
    files += [file_of(path, *content) for path, content in zip(diff.new, contents, strict=True)]
    known = [*(row for row in old if row.path not in free), *removed_rows]
    assigned = {row.path: row for row in assign_parts(known, files, split_config)}
    rows = [assigned.get(row.path, row) for row in old] + [assigned[path] for path in diff.new]
    other = {row.path: row for row in rows if before.get(row.path) != row}
    too_late_paths = {path for path, row in other.items() if is_finished and row.part in (TRAIN, VAL)}
    rows = [replace(row, part=UNUSED) if row.path in too_late_paths else row for row in rows]
    said = _describe_update(rows, before, len(diff.removed)) + (
        "; the run has ended, none is trained on" if too_late_paths else ""
    )
    return Manifest((*rows, *removed_rows)), [said, *describe_duplicates([*rows, *removed_rows], other)]


def _current_rows(
    diff: ManifestDiff, labelled_files: Mapping[str, tuple[Path, str, str]], removed_rows: Sequence[ManifestRow]
) -> dict[str, ManifestRow]:
    """Rows of the files that are there, by path: those that have changed with their new contents and parts."""
    kept = {row.path: row for row in diff.unchanged}
    seen = rows_by_content([*diff.unchanged, *removed_rows])
    for row in sorted(diff.changed, key=lambda row: row.part == TEST):  # training images come first
        content = hash_file(labelled_files[row.path][0])
        now = replace(row, size=content.size, sha256=content.sha256)
        if row.part not in (EXCLUDED, UNREADABLE):
            now = replace(now, part=part_of_changed(now, seen[now.sha256]))
            seen[now.sha256].append(now)
        kept[row.path] = now
    return kept


def _no_longer_excluded_paths(rows: Sequence[ManifestRow], before: Mapping[str, ManifestRow]) -> set[str]:
    """Files that were excluded or unreadable and have changed, or were excluded for a content that is gone."""
    groups = rows_by_content(rows)

    def has_no_conflict(row: ManifestRow) -> bool:
        return all(other.part == EXCLUDED and other.label == row.label for other in groups[row.sha256])

    excluded = [row for row in rows if before[row.path].part == EXCLUDED]
    mended = {row.path for row in rows if before[row.path].part == UNREADABLE and row != before[row.path]}
    return mended | {row.path for row in excluded if row != before[row.path] or has_no_conflict(row)}


def _describe_update(rows: Sequence[ManifestRow], before: Mapping[str, ManifestRow], removed: int) -> str:
    """Lines on what happened to new, changed, formerly excluded and removed images."""
    new = [row for row in rows if row.path not in before]
    pairs = [(row, before[row.path]) for row in rows if row.path in before]
    changed = [(row, was) for row, was in pairs if row.sha256 != was.sha256]
    free = [row for row, was in pairs if row.sha256 == was.sha256 and row.part != was.part]
    said = f"{len(new):,} new image{'' if len(new) == 1 else 's'} assigned"
    said += _format_counts(row.part for row in new)
    if changed:
        what = _format_counts("kept" if row.part == was.part else f"now {row.part}" for row, was in changed)
        said += f", {len(changed):,} changed{what}"
    if free:
        said += f", {len(free):,} no longer excluded{_format_counts(row.part for row in free)}"
    return said + (f", {removed:,} removed taken out" if removed else "")


def _format_counts(words: Iterable[str]) -> str:
    """The count of each word, in parentheses; empty without words."""
    found = Counter(sorted(words))
    return f" ({', '.join(f'{count:,} {word}' for word, count in found.items())})" if found else ""


def format_paths(paths: Sequence[str], max_shown: int = _MAX_PATHS_SHOWN) -> str:
    """The first of some paths, and how many more there are."""
    more = f" and {len(paths) - max_shown:,} more" if len(paths) > max_shown else ""
    return ", ".join(shorten(path, 200) for path in paths[:max_shown]) + more


def _file_size(path: Any) -> int:
    try:
        return int(path.stat().st_size)
    except OSError:  # a broken link, or a file that was deleted meanwhile: counts as changed
        return -1
