"""A folder of images beside the manifest of a run: what was added, changed or removed, and how it is taken in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError, short
from .content import content_of, contents_of
from .folder import Tree
from .manifest import GONE, HELD_OUT, NAME, PARTS, TEST, TRAIN, Manifest, Row
from .splits import File, Shares, assign, part_of_changed, parts_by_content, repeated

_SHOWN, _KEPT = 3, 100  # paths that a line names, and that a file keeps, of each kind


@dataclass(frozen=True)
class Changes:
    """What differs from the manifest. Of images that have changed only sizes are known where hashes were not asked."""

    test: int
    """Test images of the manifest; `tested` of them are there, unchanged."""
    tested: int
    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    new_classes: tuple[str, ...] = ()
    """Classes that the run does not know; their images can belong to no part of it."""

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
        kinds = {"new": self.new, "changed": self.changed, "removed": self.removed, "new classes": self.new_classes}
        ends = {"new": "; --assign-new gives each a part"}
        return [f"  {kind}: {some(paths)}{ends.get(kind, '')}" for kind, paths in kinds.items() if paths]

    def facts(self) -> dict[str, Any]:
        """The same for a file in JSON: numbers, and the first paths of each kind."""
        kinds = {"new": self.new, "changed": self.changed, "removed": self.removed}
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
    rows = [row for row in manifest.rows if row.part != GONE]
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
    changes = Changes(
        len(manifest.of(TEST)),
        sum(row.part == TEST for row in same),
        tuple(fresh),
        tuple(row.path for row in changed),
        tuple(row.path for row in removed),
        tuple(sorted({label for _, label, _ in found.values()} - classes)),
    )
    return Compared(same, changed, removed, fresh, changes)


def take_in(manifest: Manifest, tree: Tree, compared: Compared, shares: Shares) -> tuple[Manifest, list[str]]:
    """The manifest of the folder as it is now, and lines that say who went where; nobody else moves.

    New files are assigned by the ranking of `splits`. A changed file keeps its part, unless its content is now that of
    another image. Contents that were trained on or chosen by are remembered when they are gone.
    """
    found = tree.labels()
    removed, changed = {row.path for row in compared.removed}, {row.path for row in compared.changed}
    kept = {row.path: row for row in compared.same}
    gone = [*manifest.of(GONE), *(replace(row, part=GONE) for row in compared.lost)]
    seen = parts_by_content([*kept.values(), *gone])
    for row in sorted(compared.changed, key=lambda row: row.part == TEST):  # what is trained on is known first
        content = content_of(found[row.path][0])
        now = replace(row, size=content.size, sha256=content.sha256, part=part_of_changed(row, seen[content.sha256]))
        seen[content.sha256].add(now.part)
        kept[row.path] = now
    unseen = set(manifest.classes) - set(manifest.trained_classes)
    new = [(path, *found[path][1:]) for path in compared.new]
    if shares.unseen:
        new = [(path, label, "test" if label in unseen else "train") for path, label, _ in new]
    contents = contents_of(found[path][0] for path in compared.new)
    files = [File(*file, *content) for file, content in zip(new, contents, strict=True)]
    old = [kept[row.path] for row in manifest.rows if row.part != GONE and row.path not in removed]
    fresh = assign([*old, *gone], files, shares)
    result = Manifest((*old, *fresh, *gone))
    notes = repeated(result.rows, changed | {row.path for row in fresh})
    return result, [_taken_in(fresh, len(changed), len(removed)), *notes]


def _taken_in(fresh: Sequence[Row], changed: int, removed: int) -> str:
    counts = Counter(row.part for row in fresh)
    where = ", ".join(f"{counts[part]:,} {part}" for part in PARTS if counts[part])
    said = f"{len(fresh):,} new image{'' if len(fresh) == 1 else 's'} assigned{f' ({where})' if where else ''}"
    said += f", {changed:,} changed taken as now" if changed else ""
    return said + (f", {removed:,} removed taken out" if removed else "")


def some(paths: Sequence[str], shown: int = _SHOWN) -> str:
    """The first of some paths, and how many more there are."""
    more = f" and {len(paths) - shown:,} more" if len(paths) > shown else ""
    return ", ".join(short(path, 200) for path in paths[:shown]) + more


def _size(path: Any) -> int:
    try:
        return int(path.stat().st_size)
    except OSError:  # a link that leads nowhere, a file that went this moment: not what it was
        return -1
