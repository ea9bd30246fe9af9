"""How images of a folder are divided into parts: by the hash of their content, so that no other file has a say.

Within a class contents are ranked by a keyed hash, whose key is the purpose and the seed, and the first of them, as
many as the fraction wants, form the part. Adding or removing a file therefore moves at most the file at the boundary,
and with a manifest (see `manifest`) not even that: only files that are in no part yet are assigned.

- Identical contents stay together. A content under two labels is trained on under both, or else excluded: it is never
  tested on.
- Every class keeps an image to train on, and has one to test on where it has two different contents.
- Sides that the folder gives (`train/` and `test/`), or classes that are unseen, are kept. A content that is on both
  sides is trained on, and its images on the test side are excluded.
- What was trained on once is never tested on, and what was a test image is never trained on, under any name.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ...io.errors import InputError
from .long_tail import long_tailed_counts
from .manifest import (
    EXCLUDED,
    REMOVED_PARTS,
    REMOVED_TEST,
    REMOVED_TRAIN,
    TEST,
    TRAIN,
    UNUSED,
    VAL,
    Manifest,
    ManifestRow,
)

TEST_FRACTION = 0.2
_TRAIN_SIDE_PARTS = (TRAIN, REMOVED_TRAIN, VAL, UNUSED)


@dataclass(frozen=True)
class SplitConfig:
    """What fraction of each class goes where: tested on, of the rest held out, of the rest again used to train.

    With an `imbalance` the classes keep fewer and fewer of their training images (see `long_tail`).
    `unseen_class_fraction` is the fraction of classes that training never sees.
    """

    test_fraction: float = TEST_FRACTION
    val_fraction: float = 0.0
    train_fraction: float = 1.0
    imbalance: float = 1.0
    unseen_class_fraction: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.test_fraction < 1.0:
            raise InputError(f"test_fraction={self.test_fraction!r} must lie between 0 and 1, neither included")


RowOrFileT = TypeVar("RowOrFileT", "ManifestRow", "UnassignedFile")


@dataclass(frozen=True, slots=True)
class UnassignedFile:
    """An image that belongs to no part yet; `side` is "train" or "test" where that is given, else ""."""

    path: str
    label: str
    side: str
    size: int
    sha256: str

    def to_row(self, part: str) -> ManifestRow:
        """The same in a part."""
        return ManifestRow(self.path, self.label, part, self.size, self.sha256)


def assign_parts(
    known_rows: Sequence[ManifestRow], files: Sequence[UnassignedFile], split_config: SplitConfig
) -> list[ManifestRow]:
    """Parts for files, in their order; `known_rows` count in the ranking and keep their parts."""
    parts: dict[str, str] = {}
    before = rows_by_content(known_rows)
    fresh = []
    for file in files:
        if file.sha256 in before:
            row = file.to_row(_part_of_known(before[file.sha256], file.label, file.side))
            parts[file.path] = row.part
            before[file.sha256].append(row)
        else:
            fresh.append(file)
    present_rows = [row for row in known_rows if row.part not in (*REMOVED_PARTS, EXCLUDED)]
    conflicting = contents_of_two_labels([*present_rows, *fresh])
    here = {file.sha256 for file in fresh if file.side != "test"}
    for file in fresh:
        if file.side == "test":
            parts[file.path] = EXCLUDED if file.sha256 in here or file.sha256 in conflicting else TEST
    given = {file.sha256 for file in fresh if file.side == "train"}
    rest = [file for file in fresh if file.side == "" and file.sha256 not in given]
    taken = _choose_by_rank(
        present_rows, TEST, rest, split_config.test_fraction, f"test {split_config.seed}", conflicting
    )
    parts |= dict.fromkeys(taken, TEST)
    inside = [row for row in present_rows if row.part != TEST]
    rest = [file for file in fresh if file.path not in parts]
    if split_config.val_fraction:
        taken = _choose_by_rank(
            inside, VAL, rest, split_config.val_fraction, f"hold-out {split_config.seed}", conflicting
        )
        parts |= dict.fromkeys(taken, VAL)
    inside = [row for row in inside if row.part != VAL]
    rest = [file for file in rest if file.path not in parts]
    parts |= dict.fromkeys(_choose_unused(inside, rest, split_config), UNUSED)
    return [file.to_row(parts.get(file.path, TRAIN)) for file in files]


def part_of_changed(row: ManifestRow, same: Sequence[ManifestRow]) -> str:
    """The part of a file whose content is another than it was; `same` are the rows that have this content already.

    A file that was trained on stays on that side, whatever is in it now.
    """
    return _part_of_known(same, row.label, "test" if row.part == TEST else "train") if same else row.part


def rows_by_content(rows: Iterable[ManifestRow]) -> defaultdict[str, list[ManifestRow]]:
    """The rows that have each content, by its hash."""
    found = defaultdict[str, list[ManifestRow]](list)
    for row in rows:
        found[row.sha256].append(row)
    return found


def rows_to_test(rows: Sequence[ManifestRow]) -> list[ManifestRow]:
    """The rows that are tested on: the test images without those that `find_cross_class_duplicates` names."""
    left_out = {row.path for row, _ in find_cross_class_duplicates(rows)}
    return [row for row in rows if row.part == TEST and row.path not in left_out]


def find_cross_class_duplicates(rows: Sequence[ManifestRow]) -> list[tuple[ManifestRow, ManifestRow]]:
    """Test images whose picture lies in another class too, each with one that lies there.

    No image moves to another part because a copy of it is added, but one of the two labels is wrong.
    """
    there = [row for row in rows if row.part not in REMOVED_PARTS]
    conflicting = contents_of_two_labels(there)
    groups = rows_by_content(row for row in there if row.sha256 in conflicting)
    return [
        (row, next(other for other in groups[row.sha256] if other.label != row.label))
        for row in there
        if row.part == TEST and row.sha256 in conflicting
    ]


def unseen_classes(names: Collection[str], split_config: SplitConfig, where: str) -> frozenset[str]:
    """Draw the unseen classes by a keyed hash of their names, so that adding a class changes few of them."""
    count = count_unseen(len(names), split_config.unseen_class_fraction, where)
    order = sorted(
        names, key=lambda name: _rank_key(f"unseen {split_config.seed}", name.encode("utf-8", "surrogateescape"))
    )
    return frozenset(order[:count])


def count_unseen(total: int, fraction: float, where: str, name: str = "unseen_classes") -> int:
    """Number of unseen classes: at least two, and at least two remain seen."""
    if not 0.0 < fraction < 1.0:
        raise InputError(f"{name}={fraction!r} must lie between 0 and 1, neither included")
    if total < 4:
        raise InputError(f"{where} has {total} classes: too few to hold some out (at least 4)")
    return min(max(round(fraction * total), 2), total - 2)


def hold_out_classes(manifest: Manifest, fraction: float, seed: int, where: str) -> Manifest:
    """The manifest with all images of a fraction of the training classes held out, under their own identities.

    The classes are first in a ranking by their names; their test images are held out too, since no class weight knows
    them. Without a fraction it stays as it is.
    """
    if not fraction:
        return manifest
    names = manifest.train_class_names
    order = sorted(names, key=lambda name: _rank_key(f"val {seed}", name.encode("utf-8", "surrogateescape")))
    chosen = frozenset(order[: count_unseen(len(names), fraction, where, "val_classes")])
    parts = (TRAIN, UNUSED, TEST, VAL)
    return Manifest(tuple(replace(r, part=VAL) if r.label in chosen and r.part in parts else r for r in manifest.rows))


def describe_duplicates(rows: Iterable[ManifestRow], new_paths: Collection[str] | None = None) -> list[str]:
    """Lines on contents that occur more than once, one line per kind of duplicate.

    With `new_paths` only the rows of these paths are described, with whichever row has the same content.
    """
    conflicting_trained, conflicting_untrained, excluded, returned_tests, relabelled = (
        list[tuple[ManifestRow, ManifestRow]]() for _ in range(5)
    )
    for group in rows_by_content(rows).values():
        there = [row for row in group if row.part not in REMOVED_PARTS]
        there.sort(key=lambda row: (row.part == EXCLUDED, new_paths is not None and row.path in new_paths))
        removed = [row for row in group if row.part in REMOVED_PARTS]
        trained = any(row.part in _TRAIN_SIDE_PARTS for row in group)
        one_label = len({row.label for row in there}) == 1
        for row in there:
            if new_paths is not None and row.path not in new_paths:
                continue
            if row.label != there[0].label and (row.part != EXCLUDED or not trained):
                (conflicting_trained if trained else conflicting_untrained).append((row, there[0]))
            elif row.part == EXCLUDED:
                excluded += [(row, other) for other in (there[0], *removed) if other.part != EXCLUDED][:1]
            elif row.part == TEST and removed and one_label:
                returned_tests.append((row, removed[0]))
            elif row.part != TEST and removed and removed[0].label != row.label:
                relabelled.append((row, removed[0]))
    notes = []
    for pairs, end in (
        (conflicting_trained, ", and one of its classes is wrong"),
        (conflicting_untrained, " until one of them is removed"),
    ):
        if pairs:
            row, other = pairs[0]
            more = f" ({len(pairs):,} such files)" if len(pairs) > 1 else ""
            said = f"the same picture stands in two classes: {other.path} and {row.path}{more}"
            notes.append(f"{said}; it is not tested on{end}")
    if excluded:
        end = "so that it is not used" if len(excluded) == 1 else "so that they are not used"
        notes.append(_describe_same_content(excluded, "an image on the other side of the split", end))
    if returned_tests:
        end = "and is tested on again" if len(returned_tests) == 1 else "and are tested on again"
        notes.append(_describe_same_content(returned_tests, "a former test image", end))
    if relabelled:
        notes.append(_describe_same_content(relabelled, "an image of another class", "which was trained on"))
    return notes


def _describe_same_content(pairs: Sequence[tuple[ManifestRow, ManifestRow]], what: str, end: str) -> str:
    """A line about rows that have the contents of others, of which the first is named."""
    row, other = pairs[0]
    whose = other.path
    if other.part in REMOVED_PARTS:  # its path is unused now, or has another content
        when = "the run was trained" if other.part == REMOVED_TRAIN else "it was a test image"
        whose = f"what {other.path} was when {when}"
    have = "an image has" if len(pairs) == 1 else f"{len(pairs):,} images have"
    return f"{have} the content of {what}, {end}: {row.path} is {whose}"


def _part_of_known(same: Sequence[ManifestRow], label: str, side: str) -> str:
    """The part of a file whose content other rows have, or had."""
    seen = {row.part for row in same}
    trained = next((part for part in _TRAIN_SIDE_PARTS if part in seen), None)
    if trained is None and side != "train" and not seen.isdisjoint((TEST, REMOVED_TEST)):
        return EXCLUDED if any(row.part == TEST and row.label != label for row in same) else TEST
    if trained is None or side == "test":
        return EXCLUDED
    return TRAIN if trained == REMOVED_TRAIN else trained


def contents_of_two_labels(images: Iterable[ManifestRow | UnassignedFile]) -> set[str]:
    """Hashes of contents that occur under more than one label."""
    label: dict[str, str] = {}
    return {image.sha256 for image in images if label.setdefault(image.sha256, image.label) != image.label}


def _choose_by_rank(
    known_rows: Sequence[ManifestRow],
    part: str,
    files: Sequence[UnassignedFile],
    fraction: float,
    purpose: str,
    conflicting: set[str],
) -> set[str]:
    """Paths of the files that are within the first `fraction` of their class; `known_rows` rank, but stay."""
    chosen: set[str] = set()
    classes = {file.label for file in files}
    rows, fresh = _group_by_label(known_rows, classes), _group_by_label(files, classes)
    for label, mine in fresh.items():
        there = rows.get(label, [])
        sizes: dict[str, int] = defaultdict(int)
        for content in [row.sha256 for row in there] + [file.sha256 for file in mine]:
            sizes[content] += 1
        new = {file.sha256 for file in mine}
        order = sorted(sizes.keys() - conflicting, key=lambda content: _rank_key(purpose, bytes.fromhex(content)))
        inside = _choose_within_fraction(order, sizes, fraction) & new
        taken = {row.sha256 for row in there if row.part == part}
        if not taken and not inside and len(sizes) > 1:
            inside = set([content for content in order if content in new][:1])
        if inside and not sizes.keys() - inside - taken:  # every class keeps a training image
            inside.remove(next(content for content in reversed(order) if content in inside))
        chosen |= {file.path for file in mine if file.sha256 in inside}
    return chosen


def _choose_within_fraction(order: list[str], sizes: dict[str, int], fraction: float) -> set[str]:
    """The first contents whose files together are at most `fraction` of all; where none is so small, the smallest."""
    total = sum(sizes.values())
    wanted = min(max(round(total * fraction), 1), total - 1)
    found, count = set(), 0
    for content in order:
        if count + sizes[content] <= wanted:
            found.add(content)
            count += sizes[content]
    if not found and len(sizes) > 1 and order:
        found.add(min(order, key=lambda content: sizes[content]))
    return found


def _choose_unused(
    known_rows: Sequence[ManifestRow], files: Sequence[UnassignedFile], split_config: SplitConfig
) -> set[str]:
    """Paths of the files that a smaller training part leaves over; smaller fractions lie within larger ones."""
    if split_config.train_fraction >= 1.0 and split_config.imbalance <= 1.0:
        return set()
    found: set[str] = set()
    classes = {row.label for row in known_rows} | {file.label for file in files}
    rows, fresh = _group_by_label(known_rows, classes), _group_by_label(files, classes)
    names = sorted(classes)
    counts = [len(rows.get(label, [])) + len(fresh.get(label, [])) for label in names]
    counts = [max(1, round(n * split_config.train_fraction)) for n in counts]
    if split_config.imbalance > 1.0:
        counts = long_tailed_counts(counts, split_config.imbalance, names)
    wanted = dict(zip(names, counts, strict=True))
    for label, mine in fresh.items():
        images: list[ManifestRow | UnassignedFile] = [*rows.get(label, []), *mine]
        ranked = sorted(
            images, key=lambda image: (_rank_key(f"share {split_config.seed}", bytes.fromhex(image.sha256)), image.path)
        )
        left = {image.path for image in ranked[wanted[label] :]}
        found |= {file.path for file in mine if file.path in left}
    return found


def _group_by_label(images: Iterable[RowOrFileT], labels: set[str]) -> dict[str, list[RowOrFileT]]:
    found = defaultdict[str, list[RowOrFileT]](list)
    for image in images:
        if image.label in labels:
            found[image.label].append(image)
    return dict(found)


def _rank_key(purpose: str, content: bytes) -> bytes:
    """Sort key of a ranking: a hash that depends on the content, the purpose and the seed only.

    A different `purpose` gives a different ranking.
    """
    return hashlib.blake2b(content, key=purpose.encode(), digest_size=16).digest()
