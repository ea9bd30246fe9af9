"""A folder of images beside the manifest of a run: what was added, changed or removed, and how it is taken in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError, short
from .content import content_of, contents_of
from .folder import Tree
from .manifest import (
    EXCLUDED,
    GONE,
    GONE_TEST,
    HELD_OUT,
    NAME,
    PARTS,
    REMEMBERED,
    TEST,
    TRAIN,
    UNUSED,
    Manifest,
    Row,
)
from .splits import File, Shares, assign, doubled_test_images, part_of_changed, repeated, rows_by_content

_SHOWN, _KEPT = 3, 100  # paths that a line names, and that a file keeps, of each kind
_MEMORY = {TRAIN: GONE, HELD_OUT: GONE, TEST: GONE_TEST}  # as what a content is remembered when its file is not there


@dataclass(frozen=True)
class Changes:
    """What differs from the manifest. Of images that have changed only sizes are known where hashes were not asked."""

    test: int
    """Test images of the manifest; `tested` of them are there, unchanged, and in one class."""
    tested: int
    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    new_classes: tuple[str, ...] = ()
    """Classes that the run does not know; their images can belong to no part of it."""
    doubled: tuple[str, ...] = ()
    """Test images whose picture lies in another class too, each with its copy there; no change by itself."""

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.removed or self.new_classes)

    def line(self) -> str:
        """The numbers in plain words.

        >>> print(Changes(80, 80).line())
        manifest: 80 test images; nothing in the folder was added, changed or removed
        >>> print(Changes(80, 78, new=("cat/9.png",), changed=("cat/1.png",), removed=("dog/2.png",)).line())
        manifest: 78 of 80 test images, 1 new (unassigned), 1 changed (left out), 1 removed
        """
        tested = f"{self.tested:,}" if self.tested == self.test else f"{self.tested:,} of {self.test:,}"
        said = f"manifest: {tested} test image{'' if self.test == 1 else 's'}"
        said += f", {len(self.doubled):,} in two classes (left out)" if self.doubled else ""
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
        kinds = {"in two classes": self.doubled, "new": self.new, "changed": self.changed, "removed": self.removed}
        kinds["new classes"] = self.new_classes
        ends = {"new": "; --assign-new gives each a part", "in two classes": "; not tested on until one is removed"}
        return [f"  {kind}: {some(paths)}{ends.get(kind, '')}" for kind, paths in kinds.items() if paths]

    def facts(self) -> dict[str, Any]:
        """The same for a file in JSON: numbers, and the first paths of each kind."""
        kinds = {"new": self.new, "changed": self.changed, "removed": self.removed, "in_two_classes": self.doubled}
        found: dict[str, Any] = {"test": self.test, "tested": self.tested}
        found |= {kind: len(paths) for kind, paths in kinds.items()}
        found["new_classes"] = list(self.new_classes[:_KEPT])
        found["paths"] = {kind: list(paths[:_KEPT]) for kind, paths in kinds.items() if paths}
        return found


@dataclass(frozen=True)
class Compared:
    """Rows of a manifest whose files are as they were, rows whose files have changed or are gone, and new files."""

    same: list[Row]
    changed: list[Row]
    removed: list[Row]
    new: list[str]
    changes: Changes

    @property
    def lost(self) -> list[Row]:
        """Images that were trained on or chosen by, and are not what they were."""
        return [row for row in (*self.removed, *self.changed) if row.part in (TRAIN, HELD_OUT)]


def compare(manifest: Manifest, tree: Tree, hashed: Collection[str] = PARTS) -> Compared:
    """What has become of a folder; files of the parts `hashed` are read, of others only the size is looked at."""
    found = tree.labels()
    rows = [row for row in manifest.rows if row.part not in REMEMBERED]
    for row in rows:
        if row.path in found and found[row.path][1] != row.label:
            said = f"{row.path} is of class {short(row.label)!r}"
            raise InputError(
                f"{NAME}: {said}, but lies in the folder of another; it is not the manifest of {tree.root}"
            )
    there = [row for row in rows if row.path in found]
    sizes = [_size(found[row.path][0]) for row in there]
    read = [row for row, size in zip(there, sizes, strict=True) if row.part in hashed and size == row.size]
    contents = contents_of(found[row.path][0] for row in read)
    hashes = {row.path: content.sha256 for row, content in zip(read, contents, strict=True)}
    same, changed = list[Row](), list[Row]()
    for row, size in zip(there, sizes, strict=True):
        kept = size == row.size and hashes.get(row.path, row.sha256) == row.sha256
        (same if kept else changed).append(row)
    removed = [row for row in rows if row.path not in found]
    listed, classes = {row.path for row in rows}, set(manifest.classes)
    fresh = [path for path, (_, label, _) in found.items() if path not in listed and label in classes]
    doubled = in_two_classes(same)
    changes = Changes(
        len(manifest.of(TEST)),
        sum(row.part == TEST for row in same) - len(doubled),
        tuple(fresh),
        tuple(row.path for row in changed),
        tuple(row.path for row in removed),
        tuple(sorted({label for _, label, _ in found.values()} - classes)),
        doubled,
    )
    return Compared(same, changed, removed, fresh, changes)


def in_two_classes(rows: Sequence[Row]) -> tuple[str, ...]:
    """Test images that are left out because their picture lies in another class too, with where that is."""
    return tuple(f"{row.path} and {other.path}" for row, other in doubled_test_images(rows))


def take_in(
    manifest: Manifest, tree: Tree, compared: Compared, shares: Shares, ended: bool = False
) -> tuple[Manifest, list[str]]:
    """The manifest of the folder as it is now, and lines that say who went where; nobody else moves.

    New files are assigned by the ranking of `splits`, and so are excluded ones whose content no other image has any
    more. A changed file keeps its part, unless its content is now that of another image. Contents that were trained on,
    chosen by or tested on are remembered when they are gone. Of a run that has `ended` nothing more is trained on.
    """
    found = tree.labels()
    before = {row.path: row for row in manifest.rows if row.part not in REMEMBERED}
    lost = (row for row in (*compared.removed, *compared.changed) if row.part in _MEMORY)
    gone = list(dict.fromkeys([*manifest.of(*REMEMBERED), *(replace(row, part=_MEMORY[row.part]) for row in lost)]))
    kept = _rows_with_contents_of_now(compared, found, gone)
    old = [kept[path] for path in before if path in kept]
    free = _paths_without_reason(old, before)
    unseen = set(manifest.classes) - set(manifest.trained_classes) if shares.unseen else set()
    former = {row.path: "test" if row.part == GONE_TEST else "train" for row in gone}

    def file_of(path: str, size: int, sha256: str) -> File:
        _, label, side = found[path]
        if shares.unseen:
            side = "test" if label in unseen else "train"
        return File(path, label, side or former.get(path, ""), size, sha256)  # a path keeps its side

    files = [file_of(row.path, row.size, row.sha256) for row in old if row.path in free]
    contents = contents_of(found[path][0] for path in compared.new)
    files += [file_of(path, *content) for path, content in zip(compared.new, contents, strict=True)]
    known = [*(row for row in old if row.path not in free), *gone]
    assigned = {row.path: row for row in assign(known, files, shares)}
    rows = [assigned.get(row.path, row) for row in old] + [assigned[path] for path in compared.new]
    other = {row.path: row for row in rows if before.get(row.path) != row}
    late = {path for path, row in other.items() if ended and row.part in (TRAIN, HELD_OUT)}
    rows = [replace(row, part=UNUSED) if row.path in late else row for row in rows]
    said = _summary(rows, before, len(compared.removed)) + ("; the run has ended, none is trained on" if late else "")
    return Manifest((*rows, *gone)), [said, *repeated([*rows, *gone], other)]


def _rows_with_contents_of_now(
    compared: Compared, found: Mapping[str, tuple[Path, str, str]], gone: Sequence[Row]
) -> dict[str, Row]:
    """Rows of the files that are there, by path: those that have changed with their new contents and parts."""
    kept = {row.path: row for row in compared.same}
    seen = rows_by_content([*compared.same, *gone])
    for row in sorted(compared.changed, key=lambda row: row.part == TEST):  # what is trained on is known first
        content = content_of(found[row.path][0])
        now = replace(row, size=content.size, sha256=content.sha256)
        if row.part != EXCLUDED:
            now = replace(now, part=part_of_changed(now, seen[now.sha256]))
            seen[now.sha256].append(now)
        kept[row.path] = now
    return kept


def _paths_without_reason(rows: Sequence[Row], before: Mapping[str, Row]) -> set[str]:
    """Files that were excluded and have changed, or have the content of no other part and class any more."""
    groups = rows_by_content(rows)

    def alone(row: Row) -> bool:
        return all(other.part == EXCLUDED and other.label == row.label for other in groups[row.sha256])

    excluded = [row for row in rows if before[row.path].part == EXCLUDED]
    return {row.path for row in excluded if row != before[row.path] or alone(row)}


def _summary(rows: Sequence[Row], before: Mapping[str, Row], removed: int) -> str:
    """What became of new, changed, formerly excluded and removed images."""
    new = [row for row in rows if row.path not in before]
    pairs = [(row, before[row.path]) for row in rows if row.path in before]
    changed = [(row, was) for row, was in pairs if row.sha256 != was.sha256]
    free = [row for row, was in pairs if row.sha256 == was.sha256 and row.part != was.part]
    said = f"{len(new):,} new image{'' if len(new) == 1 else 's'} assigned"
    said += _counts(row.part for row in new)
    if changed:
        what = _counts("kept" if row.part == was.part else f"now {row.part}" for row, was in changed)
        said += f", {len(changed):,} changed{what}"
    if free:
        said += f", {len(free):,} no longer excluded{_counts(row.part for row in free)}"
    return said + (f", {removed:,} removed taken out" if removed else "")


def _counts(words: Iterable[str]) -> str:
    """How often each word comes, in brackets; nothing where there is none."""
    found = Counter(sorted(words))
    return f" ({', '.join(f'{count:,} {word}' for word, count in found.items())})" if found else ""


def some(paths: Sequence[str], shown: int = _SHOWN) -> str:
    """The first of some paths, and how many more there are."""
    more = f" and {len(paths) - shown:,} more" if len(paths) > shown else ""
    return ", ".join(short(path, 200) for path in paths[:shown]) + more


def _size(path: Any) -> int:
    try:
        return int(path.stat().st_size)
    except OSError:  # a link that leads nowhere, a file that went this moment: not what it was
        return -1
