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
from dataclasses import dataclass
from typing import TypeVar

from ..errors import InputError
from .manifest import EXCLUDED, GONE, GONE_TEST, HELD_OUT, REMEMBERED, TEST, TRAIN, UNUSED, Row

TEST_SHARE = 0.2
_TRAINED = (TRAIN, GONE, HELD_OUT, UNUSED)


@dataclass(frozen=True)
class Shares:
    """What fraction of each class goes where: tested on, of the rest held out, of the rest again used to train.

    `unseen` is the fraction of classes that training never sees.
    """

    test: float = TEST_SHARE
    hold_out: float = 0.0
    used: float = 1.0
    unseen: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.test < 1.0:
            raise InputError(f"held-out share {self.test!r} must lie between 0 and 1, neither included")


Image = TypeVar("Image", "Row", "File")


@dataclass(frozen=True, slots=True)
class File:
    """An image that belongs to no part yet; `side` is "train" or "test" where that is given, else ""."""

    path: str
    label: str
    side: str
    size: int
    sha256: str

    def row(self, part: str) -> Row:
        """The same in a part."""
        return Row(self.path, self.label, part, self.size, self.sha256)


def assign(known: Sequence[Row], files: Sequence[File], shares: Shares) -> list[Row]:
    """Parts for files, in their order; rows that are `known` count in the ranking and keep their parts."""
    parts: dict[str, str] = {}
    before = rows_by_content(known)
    fresh = []
    for file in files:
        if file.sha256 in before:
            row = file.row(_part_of_known(before[file.sha256], file.label, file.side))
            parts[file.path] = row.part
            before[file.sha256].append(row)
        else:
            fresh.append(file)
    there = [row for row in known if row.part not in (*REMEMBERED, EXCLUDED)]
    doubtful = contents_of_two_labels([*there, *fresh])
    here = {file.sha256 for file in fresh if file.side != "test"}
    for file in fresh:
        if file.side == "test":
            parts[file.path] = EXCLUDED if file.sha256 in here or file.sha256 in doubtful else TEST
    given = {file.sha256 for file in fresh if file.side == "train"}
    rest = [file for file in fresh if file.side == "" and file.sha256 not in given]
    taken = _first(there, TEST, rest, shares.test, f"test {shares.seed}", doubtful)
    parts |= dict.fromkeys(taken, TEST)
    inside = [row for row in there if row.part != TEST]
    rest = [file for file in fresh if file.path not in parts]
    if shares.hold_out:
        taken = _first(inside, HELD_OUT, rest, shares.hold_out, f"hold-out {shares.seed}", doubtful)
        parts |= dict.fromkeys(taken, HELD_OUT)
    inside = [row for row in inside if row.part != HELD_OUT]
    rest = [file for file in rest if file.path not in parts]
    parts |= dict.fromkeys(_beyond(inside, rest, shares), UNUSED)
    return [file.row(parts.get(file.path, TRAIN)) for file in files]


def part_of_changed(row: Row, same: Sequence[Row]) -> str:
    """The part of a file whose content is another than it was; `same` are the rows that have this content already.

    A file that was trained on stays on that side, whatever is in it now.
    """
    return _part_of_known(same, row.label, "test" if row.part == TEST else "train") if same else row.part


def rows_by_content(rows: Iterable[Row]) -> defaultdict[str, list[Row]]:
    """The rows that have each content, by its hash."""
    found = defaultdict[str, list[Row]](list)
    for row in rows:
        found[row.sha256].append(row)
    return found


def rows_to_test(rows: Sequence[Row]) -> list[Row]:
    """The rows that are tested on: the test images without those that `doubled_test_images` names."""
    left_out = {row.path for row, _ in doubled_test_images(rows)}
    return [row for row in rows if row.part == TEST and row.path not in left_out]


def doubled_test_images(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Test images whose picture lies in another class too, each with one that lies there.

    No image moves to another part because a copy of it is added, but one of the two labels is wrong.
    """
    there = [row for row in rows if row.part not in REMEMBERED]
    doubtful = contents_of_two_labels(there)
    groups = rows_by_content(row for row in there if row.sha256 in doubtful)
    return [
        (row, next(other for other in groups[row.sha256] if other.label != row.label))
        for row in there
        if row.part == TEST and row.sha256 in doubtful
    ]


def unseen_classes(names: Collection[str], shares: Shares, where: str) -> frozenset[str]:
    """The classes that training never sees: first in a ranking by their names, so that a new class moves few."""
    count = count_unseen(len(names), shares.unseen, where)
    order = sorted(names, key=lambda name: _key(f"unseen {shares.seed}", name.encode("utf-8", "surrogateescape")))
    return frozenset(order[:count])


def count_unseen(total: int, share: float, where: str) -> int:
    """How many of so many classes are unseen: two at least, and two at least are seen."""
    if not 0.0 < share < 1.0:
        raise InputError(f"unseen={share!r} must lie between 0 and 1, neither included")
    if total < 4:
        raise InputError(f"{where} has {total} classes: too few to keep some unseen (at least 4)")
    return min(max(round(share * total), 2), total - 2)


def repeated(rows: Iterable[Row], new: Collection[str] | None = None) -> list[str]:
    """Lines about contents that stand more than once, one of each kind; or nothing.

    With `new` only the rows of these paths are told about, beside whichever row has the same content.
    """
    both, neither, excluded, again, moved = (list[tuple[Row, Row]]() for _ in range(5))
    for group in rows_by_content(rows).values():
        there = [row for row in group if row.part not in REMEMBERED]
        there.sort(key=lambda row: (row.part == EXCLUDED, new is not None and row.path in new))
        gone = [row for row in group if row.part in REMEMBERED]
        trained = any(row.part in _TRAINED for row in group)
        one_label = len({row.label for row in there}) == 1
        for row in there:
            if new is not None and row.path not in new:
                continue
            if row.label != there[0].label and (row.part != EXCLUDED or not trained):
                (both if trained else neither).append((row, there[0]))
            elif row.part == EXCLUDED:
                excluded += [(row, other) for other in (there[0], *gone) if other.part != EXCLUDED][:1]
            elif row.part == TEST and gone and one_label:
                again.append((row, gone[0]))
            elif row.part != TEST and gone and gone[0].label != row.label:
                moved.append((row, gone[0]))
    notes = []
    for pairs, end in ((both, ", and one of its classes is wrong"), (neither, " until one of them is removed")):
        if pairs:
            row, other = pairs[0]
            more = f" ({len(pairs):,} such files)" if len(pairs) > 1 else ""
            said = f"the same picture stands in two classes: {other.path} and {row.path}{more}"
            notes.append(f"{said}; it is not tested on{end}")
    if excluded:
        end = "so that it is not used" if len(excluded) == 1 else "so that they are not used"
        notes.append(_same_contents(excluded, "an image on the other side of the split", end))
    if again:
        end = "and is tested on again" if len(again) == 1 else "and are tested on again"
        notes.append(_same_contents(again, "a former test image", end))
    if moved:
        notes.append(_same_contents(moved, "an image of another class", "which was trained on"))
    return notes


def _same_contents(pairs: Sequence[tuple[Row, Row]], what: str, end: str) -> str:
    """A line about rows that have the contents of others, of which the first is named."""
    row, other = pairs[0]
    whose = other.path
    if other.part in REMEMBERED:  # its path is free, or holds something else
        whose = f"what {other.path} was when {'the run was trained' if other.part == GONE else 'it was a test image'}"
    have = "an image has" if len(pairs) == 1 else f"{len(pairs):,} images have"
    return f"{have} the content of {what}, {end}: {row.path} is {whose}"


def _part_of_known(same: Sequence[Row], label: str, side: str) -> str:
    """The part of a file whose content other rows have, or had."""
    seen = {row.part for row in same}
    trained = next((part for part in _TRAINED if part in seen), None)
    if trained is None and side != "train" and not seen.isdisjoint((TEST, GONE_TEST)):
        return EXCLUDED if any(row.part == TEST and row.label != label for row in same) else TEST
    if trained is None or side == "test":
        return EXCLUDED
    return TRAIN if trained == GONE else trained


def contents_of_two_labels(images: Iterable[Row | File]) -> set[str]:
    """Hashes of the contents that stand under more than one label."""
    label: dict[str, str] = {}
    return {image.sha256 for image in images if label.setdefault(image.sha256, image.label) != image.label}


def _first(
    known: Sequence[Row], part: str, files: Sequence[File], share: float, purpose: str, doubtful: set[str]
) -> set[str]:
    """Paths of the files that are within the first `share` of their class; `known` rows rank, but stay."""
    chosen: set[str] = set()
    classes = {file.label for file in files}
    rows, fresh = _by_label(known, classes), _by_label(files, classes)
    for label, mine in fresh.items():
        there = rows.get(label, [])
        sizes: dict[str, int] = defaultdict(int)
        for content in [row.sha256 for row in there] + [file.sha256 for file in mine]:
            sizes[content] += 1
        new = {file.sha256 for file in mine}
        order = sorted(sizes.keys() - doubtful, key=lambda content: _key(purpose, bytes.fromhex(content)))
        inside = _within(order, sizes, share) & new
        taken = {row.sha256 for row in there if row.part == part}
        if not taken and not inside and len(sizes) > 1:
            inside = set([content for content in order if content in new][:1])
        if inside and not sizes.keys() - inside - taken:  # a class keeps something to train on
            inside.remove(next(content for content in reversed(order) if content in inside))
        chosen |= {file.path for file in mine if file.sha256 in inside}
    return chosen


def _within(order: list[str], sizes: dict[str, int], share: float) -> set[str]:
    """The first contents whose files together are at most the share; the smallest of all where none is so small."""
    total = sum(sizes.values())
    wanted = min(max(round(total * share), 1), total - 1)
    found, count = set(), 0
    for content in order:
        if count + sizes[content] <= wanted:
            found.add(content)
            count += sizes[content]
    if not found and len(sizes) > 1 and order:
        found.add(min(order, key=lambda content: sizes[content]))
    return found


def _beyond(known: Sequence[Row], files: Sequence[File], shares: Shares) -> set[str]:
    """Paths of the files that a smaller training part leaves over; smaller shares lie within larger ones."""
    if shares.used >= 1.0:
        return set()
    found: set[str] = set()
    classes = {file.label for file in files}
    rows, fresh = _by_label(known, classes), _by_label(files, classes)
    for label, mine in fresh.items():
        images: list[Row | File] = [*rows.get(label, []), *mine]
        ranked = sorted(
            images, key=lambda image: (_key(f"share {shares.seed}", bytes.fromhex(image.sha256)), image.path)
        )
        left = {image.path for image in ranked[max(1, round(len(images) * shares.used)) :]}
        found |= {file.path for file in mine if file.path in left}
    return found


def _by_label(images: Iterable[Image], labels: set[str]) -> dict[str, list[Image]]:
    found = defaultdict[str, list[Image]](list)
    for image in images:
        if image.label in labels:
            found[image.label].append(image)
    return dict(found)


def _key(purpose: str, content: bytes) -> bytes:
    """Where something stands in a ranking: a number that depends on itself, the purpose and the seed alone."""
    return hashlib.blake2b(content, key=purpose.encode(), digest_size=16).digest()
