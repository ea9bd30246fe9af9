"""The images of a folder, divided as the manifest of a run says, or as it is drawn when the run begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ..data.changes import Changes, compare, in_two_classes, some, take_in
from ..data.content import contents_of
from ..data.folder import FolderImages, FolderSet, Tree, draw_manifest, images_of, scan_folder, scanned_by_number
from ..data.identities import check_pairs
from ..data.manifest import EXCLUDED, HELD_OUT, PARTS, TEST, TRAIN, UNUSED, Manifest, Row
from ..data.splits import Shares, contents_of_two_labels, repeated, rows_to_test
from ..errors import InputError
from ..run import Run
from .inputs import Inputs, augment_for, check_held_out, divided

_HASHED = 2 << 30  # bytes that are hashed in seconds; of a larger folder only those files that are used
_BY_NUMBER = (
    "no manifest: the run is of version 0.1.0, and its parts are drawn again from the number of files; "
    "if any was added or removed since, some test images were trained on"
)
_AS_GIVEN = "no manifest: the run is of version 0.1.0, and the test images are those of its test folder as it is now"


def of_folder(
    run: Run, root: Path, manifest: Manifest | None, begun: bool, assign_new: bool, only_test: bool, ended: bool
) -> Inputs:
    """The images of a folder, decoded once if they fit into memory and no crop wants their full resolution."""
    tree = scan_folder(root)
    if not run.input_size:
        raise InputError("images of a folder differ in size: say how large they are to be, with --input-size")
    shares = Shares(hold_out=run.hold_out, used=run.share, unseen=run.unseen, seed=run.seed)
    if manifest is not None:
        found = _as_kept(run, tree, manifest, shares, assign_new, only_test, ended)
    elif begun:
        found = _by_number(run, tree, only_test)
    else:
        manifest, notes = draw_manifest(tree, shares)
        found = _from_rows(run, tree, manifest, manifest)
        found.notes, found.drawn = tuple(notes), True
        if run.unseen:
            check_pairs(found.test)
    if found.held_out is not None and not only_test:
        check_held_out(run, found.held_out)
    return _in_memory(found)


def _as_kept(
    run: Run, tree: Tree, manifest: Manifest, shares: Shares, assign_new: bool, only_test: bool, ended: bool
) -> Inputs:
    """The images that the manifest names, as far as they are still there and the same."""
    quick = sum(row.size for row in manifest.rows) <= _HASHED
    hashed = PARTS if assign_new or quick else (TEST,) if only_test else (TRAIN, HELD_OUT, TEST)
    compared = compare(manifest, tree, hashed)
    changes = compared.changes
    if assign_new and changes:
        manifest, notes = take_in(manifest, tree, compared, shares, ended)
        count, doubled = len(manifest.of(TEST)), in_two_classes(manifest.rows)
        found = _from_rows(run, tree, manifest, manifest, only_test)
        found.changes = Changes(count, count - len(doubled), new_classes=changes.new_classes, doubled=doubled)
        if changes.new_classes and not only_test:  # an evaluation says so beside the number of test images
            one = len(changes.new_classes) == 1
            what = "a new class" if one else f"{len(changes.new_classes):,} new classes"
            notes.append(
                f"{what} that the run does not know ({some(changes.new_classes)}): "
                f"{'its' if one else 'their'} images belong to no part"
            )
        found.drawn, found.notes = True, tuple(notes)
        return found
    if compared.lost and not only_test:
        what = some([row.path for row in compared.lost])
        raise InputError(
            f"{tree.root}: images that the run was trained on or chosen by were changed or removed since it began "
            f"({what}), so it would go on as another; put them back, or give --assign-new to go on with what is there"
        )
    found = _from_rows(run, tree, manifest, Manifest(tuple(compared.same)), only_test)
    found.changes = changes
    found.notes = (changes.line(),) if changes or changes.doubled else ()
    return found


def _from_rows(run: Run, tree: Tree, manifest: Manifest, there: Manifest, only_test: bool = False) -> Inputs:
    """Images of the rows that are `there`, with the classes of the whole manifest."""
    seen = manifest.trained_classes
    judged = tuple(sorted(set(manifest.classes) - set(seen))) if run.unseen else seen
    train = images_of(tree.root, tree.name, [] if only_test else there.of(TRAIN), seen)
    held_out = images_of(tree.root, tree.name, there.of(HELD_OUT), seen) if run.hold_out and not only_test else None
    test = images_of(tree.root, tree.name, rows_to_test(there.rows), judged)
    return Inputs(train, held_out, test, augment_for(run, FolderSet(tree.name, train, test)), run, manifest=manifest)


def _by_number(run: Run, tree: Tree, only_test: bool) -> Inputs:
    """The images of a run that has no manifest; with one from now on, unless it is only tested."""
    drawn = scanned_by_number(tree, run.seed)
    note = _BY_NUMBER if tree.test is None or run.unseen else _AS_GIVEN
    if only_test:
        run = replace(run, share=1.0, hold_out=0.0)
    train, held_out, test = divided(run, drawn)
    found = Inputs(train, held_out, test, augment_for(run, drawn), run, notes=(note,))
    found.by_number = True
    if only_test:
        return found
    parts: dict[Path, str] = {}
    for part, images in ((TRAIN, train), (HELD_OUT, held_out), (TEST, test)):
        assert images is None or isinstance(images, FolderImages)
        parts |= {} if images is None else dict.fromkeys(images.paths, part)
    labels = {path: (below, label) for below, (path, label, _) in tree.labels().items()}
    parts |= {path: UNUSED for path in labels if path not in parts}
    contents = contents_of(parts)
    rows = [Row(*labels[path], part, *content) for (path, part), content in zip(parts.items(), contents, strict=True)]
    trained = {row.sha256 for row in rows if row.part in (TRAIN, HELD_OUT)}
    unfit = trained | contents_of_two_labels(rows)
    copies = [row.part == TEST and row.sha256 in unfit for row in rows]  # which that version tested on
    rows = [replace(row, part=EXCLUDED) if copy else row for row, copy in zip(rows, copies, strict=True)]
    found.test = test.take(
        torch.tensor([row.part == TEST for row in rows if row.part in (TEST, EXCLUDED)]).nonzero()[:, 0]
    )
    found.manifest, found.drawn = Manifest(tuple(rows)), True
    found.notes += tuple(repeated(rows))
    return found


def _in_memory(found: Inputs) -> Inputs:
    """The same with its images decoded, where they fit and are always seen whole."""
    size, how = found.augment.size, found.augment.interpolation
    names = ("train", "held_out", "test")
    parts = {name: part for name in names if isinstance(part := getattr(found, name), FolderImages)}
    if found.augment.scale is None and all(part.fits(size) for part in parts.values()):
        for name, part in parts.items():
            setattr(found, name, part.in_memory(size, how))
    return found
