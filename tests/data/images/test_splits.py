"""Parts of a folder of images: drawn from contents, kept in a manifest, and told when the folder has changed."""

import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from widemargin.data.images.changes import FolderChanges, diff_manifest, update_manifest
from widemargin.data.images.folder import create_manifest, load_folder, scan_folder
from widemargin.data.images.manifest import MANIFEST_COLUMNS, PARTS, REMOVED_PARTS, Manifest, ManifestRow
from widemargin.data.images.splits import (
    SplitConfig,
    UnassignedFile,
    assign_parts,
    describe_duplicates,
    rows_to_test,
    unseen_classes,
)
from widemargin.io.errors import InputError


def write(root: Path, name: str, content: str) -> Path:
    """A file that is an image by its name alone: splits look at bytes, and never decode them."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def fill(root: Path, **counts: int) -> Path:
    for label, count in counts.items():
        for number in range(count):
            write(root, f"{label}/{number:03}.png", f"{label} {number}")
    return root


def drawn(root: Path, **shares) -> Manifest:
    return create_manifest(scan_folder(root), SplitConfig(**shares))[0]


def names(manifest: Manifest, part: str) -> set[str]:
    return {row.path for row in manifest.rows_in(part)}


def with_class(manifest: Manifest, part: str) -> Counter:
    return Counter(row.label for row in manifest.rows_in(part))


# ---------------------------------------------------------------- the first draw


def test_one_more_picture_moves_no_other(tmp_path):
    fill(tmp_path, cat=100, dog=100, owl=100, yak=100)
    before = set(load_folder(tmp_path).test.paths)
    write(tmp_path, "cat/new.png", "another")
    after = set(load_folder(tmp_path).test.paths)
    assert len(before) == len(after) == 80
    assert len(before - after) <= 1  # the new one may take the place of the last in its class
    assert not any(path.parent.name != "cat" for path in before ^ after)


def test_names_and_folders_do_not_decide(tmp_path):
    fill(tmp_path / "one", cat=30, dog=30)
    for path in sorted((tmp_path / "one").rglob("*.png")):
        write(tmp_path / "two", f"{path.parent.name}/{random.Random(path.name).random()}.png", path.read_text())
    contents = [{path.read_text() for path in load_folder(tmp_path / name).test.paths} for name in ("one", "two")]
    assert contents[0] == contents[1]


def test_the_seed_draws_another_part(tmp_path):
    fill(tmp_path, cat=30, dog=30)
    one, again, other = (load_folder(tmp_path, seed=seed).test.paths for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_every_class_keeps_a_training_image_and_has_a_test_image_where_it_can(tmp_path, share):
    counts = {"one": 1, "two": 2, "three": 3, "ten": 10, "many": 57}
    fill(tmp_path, **counts)
    found = drawn(tmp_path, test=share)
    train, test = with_class(found, "train"), with_class(found, "test")
    for label, count in counts.items():
        wanted = 0 if count == 1 else min(max(round(count * share), 1), count - 1)
        assert (train[label], test[label]) == (count - wanted, wanted)


def test_identical_contents_stay_together(tmp_path):
    fill(tmp_path, cat=40, dog=40)
    for number in range(40):
        write(tmp_path, f"cat/copy{number}.png", f"cat {number}")
    manifest = drawn(tmp_path)
    parts = {}
    for row in manifest.rows:
        parts.setdefault(row.sha256, set()).add(row.part)
    assert all(len(found) == 1 for found in parts.values())
    assert with_class(manifest, "test") == {"cat": 16, "dog": 8}


def test_many_copies_do_not_swallow_a_class(tmp_path):
    fill(tmp_path, cat=5, dog=5)
    for number in range(95):
        write(tmp_path, f"cat/copy{number}.png", "cat 0")
    for seed in range(10):
        assert with_class(drawn(tmp_path, seed=seed), "test")["cat"] <= 20


def test_copies_alone_leave_nothing_to_test_on(tmp_path):
    for label in ("cat", "dog"):
        for number in range(5):
            write(tmp_path, f"{label}/{number}.png", label)
    with pytest.raises(InputError, match="leaves none to test on"):
        drawn(tmp_path)


def test_a_picture_under_two_labels_is_never_tested_on_and_told(tmp_path):
    fill(tmp_path, cat=20, dog=20)
    for number in range(20):
        write(tmp_path, f"dog/cat{number}.png", f"cat {number}")  # all cats are dogs too
    manifest, notes = create_manifest(scan_folder(tmp_path), SplitConfig(val_fraction=0.2))
    assert with_class(manifest, "test") == {"dog": 8}
    assert not any("cat" in row.path for row in manifest.rows_in("test", "held_out"))
    assert len(notes) == 1
    assert "the same picture stands in two classes: cat/000.png and dog/cat0.png (20 such files)" in notes[0]
    with pytest.warns(UserWarning, match="the same picture stands in two classes"):
        load_folder(tmp_path)


def test_a_test_image_that_is_trained_on_is_excluded_and_told(tmp_path):
    fill(tmp_path / "train", cat=5, dog=5)
    fill(tmp_path / "test", cat=2)  # the first two of the training images
    write(tmp_path, "test/dog/own.png", "own")
    manifest, notes = create_manifest(scan_folder(tmp_path), SplitConfig())
    assert manifest.counts() == {"train": 10, "test": 1, "excluded": 2}
    assert names(manifest, "test") == {"test/dog/own.png"}
    assert notes == [
        "2 images have the content of an image on the other side of the split, so that they are not used: "
        "test/cat/000.png is train/cat/000.png"
    ]
    (tmp_path / "test" / "dog" / "own.png").write_text("dog 1")
    with pytest.raises(InputError, match=r"no image is left to test on, .* test/cat/000.png is train/cat/000.png"):
        drawn(tmp_path)


def test_held_out_and_unused_images_follow_from_contents_too(tmp_path):
    fill(tmp_path, cat=50, dog=50)
    shares = {"hold_out": 0.25, "used": 0.5, "seed": 3}
    before = drawn(tmp_path, **shares)
    assert before.counts() == {"train": 30, "held_out": 20, "unused": 30, "test": 20}
    smaller = drawn(tmp_path, **{**shares, "used": 0.2})
    assert names(smaller, "train") < names(before, "train")
    assert names(smaller, "held_out") == names(before, "held_out")
    write(tmp_path, "cat/new.png", "new")
    after = drawn(tmp_path, **shares)
    for part in ("train", "held_out", "unused", "test"):
        assert len(names(before, part) ^ names(after, part)) <= 4  # of 100, in one class


def test_unseen_classes_follow_from_their_names(tmp_path):
    labels = [f"c{number:02}" for number in range(40)]
    shares = SplitConfig(unseen_class_fraction=0.25, seed=1)
    before = unseen_classes(labels, shares, "here")
    after = unseen_classes([*labels, "another"], shares, "here")
    assert len(before) == len(after) == 10
    assert len(before - after) <= 1
    assert unseen_classes(labels, replace(shares, seed=2), "here") != before
    with pytest.raises(InputError, match="here has 3 classes: too few to keep some unseen"):
        unseen_classes(labels[:3], shares, "here")
    fill(tmp_path, **dict.fromkeys(labels[:6], 5))
    write(tmp_path, "c00/copy.png", "c01 0")
    found = drawn(tmp_path, unseen=0.5, hold_out=0.4)
    assert set(found.train_class_names) == set(labels[:6]) - {row.label for row in found.rows_in("test")}
    assert len(found.train_class_names) == 3


def test_a_content_in_a_seen_and_an_unseen_class_is_not_tested_on(tmp_path):
    fill(tmp_path, **{f"c{number}": 4 for number in range(6)})
    for number in range(6):
        write(tmp_path, f"c{number}/same.png", "same")
    found = drawn(tmp_path, unseen=0.5)
    assert found.counts() == {"train": 15, "test": 12, "excluded": 3}
    assert all(row.path.endswith("same.png") for row in found.rows_in("excluded"))


@pytest.mark.parametrize("side", ["test/", ""])
def test_a_picture_of_two_test_classes_is_tested_on_under_neither(tmp_path, side):
    """In a test folder of its own, and in unseen classes."""
    labels = [f"c{number}" for number in range(6)]
    if side:
        fill(tmp_path / "train", **dict.fromkeys(labels, 4))
    for label in labels:
        for number in range(4):
            write(tmp_path, f"{side}{label}/{number}.png", f"{side}{label} {number}")
    shares = SplitConfig(unseen_class_fraction=0.0 if side else 0.5)
    one, two = [label for label in labels if side or label in unseen_classes(labels, shares, "")][:2]
    write(tmp_path, f"{side}{two}/copy.png", f"{side}{one} 1")
    manifest, notes = create_manifest(scan_folder(tmp_path), shares)
    assert names(manifest, "excluded") == {f"{side}{one}/1.png", f"{side}{two}/copy.png"}
    assert rows_to_test(manifest.rows) == manifest.rows_in("test")
    assert notes == [
        f"the same picture stands in two classes: {side}{one}/1.png and {side}{two}/copy.png; "
        "it is not tested on until one of them is removed"
    ]
    (tmp_path / f"{side}{one}/1.png").unlink()  # whichever it is, the other one is right now
    _, now, notes = changed(tmp_path, manifest, unseen=shares.unseen_class_fraction)
    assert f"{side}{two}/copy.png" in names(now, "test")
    assert notes == ["0 new images assigned, 1 no longer excluded (1 test), 1 removed taken out"]


# ---------------------------------------------------------------- afterwards


def changed(root: Path, manifest: Manifest, **shares):
    tree = scan_folder(root)
    compared = diff_manifest(manifest, tree)
    return compared, *update_manifest(manifest, tree, compared, SplitConfig(**shares))


def test_what_was_added_changed_and_removed_is_told(tmp_path):
    fill(tmp_path, cat=10, dog=10)
    manifest = drawn(tmp_path)
    assert not diff_manifest(manifest, scan_folder(tmp_path)).changes
    tested = sorted(names(manifest, "test"))
    write(tmp_path, "cat/new.png", "new")
    write(tmp_path, "ant/1.png", "ant")
    (tmp_path / tested[0]).write_text("cat x")  # as long as before
    (tmp_path / tested[-1]).unlink()
    (tmp_path / sorted(names(manifest, "train"))[0]).unlink()
    changes = diff_manifest(manifest, scan_folder(tmp_path)).changes
    assert (changes.num_test, changes.num_usable_test) == (4, 2)
    assert changes.new == ("cat/new.png",)
    assert changes.changed == (tested[0],)
    assert len(changes.removed) == 2
    assert changes.new_classes == ("ant",)
    assert changes.summary() == (
        "manifest: 2 of 4 test images, 1 new (unassigned), 1 changed (left out), 2 removed, "
        "1 new class that the run does not know"
    )
    assert changes.details()[0] == "  new: cat/new.png; --assign-new gives each a part"
    assert changes.to_dict()["paths"]["changed"] == [tested[0]]


def test_long_lists_are_cut_in_lines_and_files():
    changes = FolderChanges(9, 9, new=tuple(f"cat/{number}.png" for number in range(500)))
    assert changes.details() == ["  new: cat/0.png, cat/1.png, cat/2.png and 497 more; --assign-new gives each a part"]
    assert (changes.to_dict()["new"], len(changes.to_dict()["paths"]["new"])) == (500, 100)


def test_new_images_are_assigned_and_nobody_else_moves(tmp_path):
    fill(tmp_path, cat=100, dog=100)
    manifest = drawn(tmp_path, hold_out=0.1)
    fill(tmp_path, cat=200, dog=101)
    _, now, notes = changed(tmp_path, manifest, hold_out=0.1)
    assert now.rows[: len(manifest.rows)] == manifest.rows
    assert 10 <= with_class(now, "test")["cat"] - 20 <= 32
    assert 2 <= with_class(now, "held_out")["cat"] - 8 <= 15
    assert "101 new images assigned (" in notes[0]
    assert not diff_manifest(now, scan_folder(tmp_path)).changes
    assert changed(tmp_path, now)[1] == now


def test_a_class_without_a_test_image_gets_one(tmp_path):
    fill(tmp_path, cat=1, dog=30)
    manifest = drawn(tmp_path)
    fill(tmp_path, cat=2)
    assert names(changed(tmp_path, manifest)[1], "test") >= {"cat/001.png"}


def test_a_known_content_joins_its_part_under_a_new_name(tmp_path):
    fill(tmp_path, cat=20, dog=20)
    manifest = drawn(tmp_path, hold_out=0.2, used=0.5)
    for row in manifest.rows:
        write(tmp_path, f"{row.label}/copy of {Path(row.path).name}", (tmp_path / row.path).read_text())
    now = changed(tmp_path, manifest, hold_out=0.2, used=0.5)[1]
    parts = {row.sha256: row.part for row in manifest.rows}
    assert all(row.part == parts[row.sha256] for row in now.rows)


def test_what_was_trained_on_is_never_tested_on_wherever_it_turns_up(tmp_path):
    fill(tmp_path, cat=20, dog=20)
    manifest = drawn(tmp_path)
    trained, tested = sorted(names(manifest, "train")), sorted(names(manifest, "test"))
    old = (tmp_path / trained[0]).read_text()
    (tmp_path / trained[0]).write_text("quite another")  # trained on under its old content
    compared, now, _ = changed(tmp_path, manifest)
    assert [row.path for row in compared.lost] == [trained[0]]
    assert trained[0] in names(now, "train")
    assert names(now, "gone") == {trained[0]}
    (tmp_path / tested[0]).write_text(old)  # what was trained on comes back in a test image
    write(tmp_path, "dog/again.png", old)  # and under a new name
    _, now, notes = changed(tmp_path, now)
    assert names(now, "excluded") == {tested[0]}
    assert notes == [
        "1 new image assigned (1 train), 1 changed (1 now excluded)",
        "an image has the content of an image on the other side of the split, so that it is not used: "
        f"{tested[0]} is dog/again.png",
        "an image has the content of an image of another class, which was trained on: "
        f"dog/again.png is what {trained[0]} was when the run was trained",  # that path holds something else now
    ]
    assert "dog/again.png" in names(now, "train")
    (tmp_path / trained[1]).rename(tmp_path / "dog" / "moved.png")
    now = changed(tmp_path, now)[1]
    assert "dog/moved.png" in names(now, "train")


def test_a_changed_test_image_stays_one_if_its_content_is_new(tmp_path):
    fill(tmp_path, cat=20, dog=20)
    manifest = drawn(tmp_path)
    tested = sorted(names(manifest, "test"))[0]
    (tmp_path / tested).write_text("a better picture")
    compared, now, _ = changed(tmp_path, manifest)
    assert not compared.lost
    assert names(now, "test") == names(manifest, "test")
    assert not diff_manifest(now, scan_folder(tmp_path)).changes


@pytest.mark.parametrize("removed", ["old", "copy"])
def test_a_copy_of_a_test_image_in_another_class_leaves_both_out_until_one_is_removed(tmp_path, removed):
    fill(tmp_path, cat=20, dog=20)
    manifest = drawn(tmp_path)
    old = next(path for path in sorted(names(manifest, "test")) if path.startswith("cat"))
    write(tmp_path, "dog/copy.png", (tmp_path / old).read_text())
    _, now, notes = changed(tmp_path, manifest)
    assert now.rows[:40] == manifest.rows  # nobody moves
    assert names(now, "excluded") == {"dog/copy.png"}
    assert names(now, "test") - {row.path for row in rows_to_test(now.rows)} == {old}
    assert notes[1] == (
        f"the same picture stands in two classes: {old} and dog/copy.png; "
        "it is not tested on until one of them is removed"
    )
    changes = diff_manifest(now, scan_folder(tmp_path)).changes
    assert not changes
    assert changes.summary().startswith(
        "manifest: 7 of 8 test images, 1 in two classes (left out); nothing in the folder"
    )
    assert changes.details() == [f"  in two classes: {old} and dog/copy.png; not tested on until one is removed"]
    assert changes.to_dict()["in_two_classes"] == 1
    (tmp_path / (old if removed == "old" else "dog/copy.png")).unlink()
    compared, now, _ = changed(tmp_path, now)
    assert compared.changes.duplicates == ()
    assert len(rows_to_test(now.rows)) == len(now.of("test")) == 8
    assert ("dog/copy.png" if removed == "old" else old) in names(now, "test")


def test_a_changed_test_image_with_the_picture_of_another_class_is_excluded(tmp_path):
    fill(tmp_path, cat=20, dog=20)
    manifest = drawn(tmp_path)
    tested = sorted(names(manifest, "test"))
    (tmp_path / tested[-1]).write_text((tmp_path / tested[0]).read_text())
    _, now, _ = changed(tmp_path, manifest)
    assert names(now, "excluded") == {tested[-1]}
    assert {row.path for row in rows_to_test(now.rows)} == set(tested[1:-1])


def test_a_former_test_image_is_not_trained_on_under_another_name(tmp_path):
    fill(tmp_path, cat=20, dog=20)
    manifest = drawn(tmp_path)
    old = sorted(names(manifest, "test"))
    content = (tmp_path / old[0]).read_text()
    for path in old:
        (tmp_path / path).rename(tmp_path / path.replace("/", "/renamed"))
    for number in range(40):  # some of them rank before it, and would take its place
        write(tmp_path, f"cat/new{number}.png", f"new {number}")
    _, now, notes = changed(tmp_path, manifest)
    assert {path.replace("/", "/renamed") for path in old} <= names(now, "test")
    assert names(now, "gone_test") == set(old)
    assert notes[1:] == [
        "8 images have the content of a former test image, and are tested on again: "
        f"{old[0].replace('/', '/renamed')} is what {old[0]} was when it was a test image"
    ]
    for path in old:
        (tmp_path / path.replace("/", "/renamed")).unlink()
    now = changed(tmp_path, now)[1]
    write(tmp_path, "dog/back.png", content)  # a cat before
    now = changed(tmp_path, now)[1]
    assert "dog/back.png" in {row.path for row in rows_to_test(now.rows)}
    trained = sorted(names(now, "train"))[0]
    (tmp_path / "dog" / "back.png").rename(tmp_path / trained)  # a training image that holds it now
    assert names(changed(tmp_path, now)[1], "excluded") == {trained}


@pytest.mark.parametrize("given", [False, True])
def test_exchanged_contents_of_a_test_and_a_training_image_are_both_excluded(tmp_path, given):
    for side in ("train", "test") if given else ("",):
        for label in ("cat", "dog"):
            for number in range(10):
                write(tmp_path / side, f"{label}/{number}.png", f"{side} {label} {number}")
    manifest = drawn(tmp_path)
    trained, tested = (sorted(names(manifest, part))[0] for part in ("train", "test"))
    one, two = (tmp_path / trained).read_text(), (tmp_path / tested).read_text()
    (tmp_path / trained).write_text(two)
    (tmp_path / tested).write_text(one)
    _, now, notes = changed(tmp_path, manifest)
    assert names(now, "excluded") == {trained, tested}
    assert (names(now, "gone"), names(now, "gone_test")) == ({trained}, {tested})
    assert notes[0] == "0 new images assigned, 2 changed (2 now excluded)"
    assert "2 images have the content of an image on the other side of the split, so that they are not used" in notes[1]
    assert changed(tmp_path, now)[1] == now


def test_an_excluded_file_that_is_repaired_is_assigned_like_a_new_one(tmp_path):
    fill(tmp_path / "train", cat=5, dog=5)
    fill(tmp_path / "test", cat=2)
    write(tmp_path, "test/dog/own.png", "own")
    manifest = drawn(tmp_path)
    assert names(manifest, "excluded") == {"test/cat/000.png", "test/cat/001.png"}
    write(tmp_path, "test/cat/000.png", "the right picture")
    write(tmp_path, "test/cat/001.png", "cat 3")  # wrong still
    _, now, notes = changed(tmp_path, manifest)
    assert (names(now, "test"), names(now, "excluded")) == (
        {"test/cat/000.png", "test/dog/own.png"},
        {"test/cat/001.png"},
    )
    assert notes[0] == "0 new images assigned, 2 changed (1 kept, 1 now test)"
    assert notes[1].endswith("so that it is not used: test/cat/001.png is train/cat/003.png")


def test_a_path_that_was_trained_on_is_not_tested_on_after_a_detour(tmp_path):
    """It held a test image for a while, or was away; what is in it now may be the old picture saved again."""
    fill(tmp_path, cat=30, dog=30)
    manifest = drawn(tmp_path)
    trained, tested = (sorted(names(manifest, part)) for part in ("train", "test"))
    for number in range(10):
        (tmp_path / trained[number]).write_text((tmp_path / tested[0]).read_text())
        (tmp_path / trained[-number - 1]).unlink()
    now = changed(tmp_path, manifest)[1]
    assert names(now, "excluded") == set(trained[:10])
    for path in (*trained[:10], *trained[-10:]):
        write(tmp_path, path, f"{path} saved again")
    now = changed(tmp_path, now)[1]
    assert names(now, "train") == set(trained)


def test_no_line_names_an_image_beside_itself():
    excluded = ManifestRow("test/cat/1.png", "cat", "excluded", 1, "0" * 64)
    assert describe_duplicates([excluded]) == describe_duplicates([excluded], {excluded.path}) == []


@pytest.mark.parametrize("layout", ["drawn", "given", "unseen"])
def test_no_history_of_a_folder_mixes_what_is_trained_and_what_is_tested(tmp_path, layout):
    """Files are added, copied, renamed, overwritten and deleted at random; every state is taken in."""
    for trial in range(3):
        draw = random.Random(f"{layout} {trial}")
        root = tmp_path / str(trial)
        labels = [f"c{number}" for number in range(6)]
        sides = ("train", "test") if layout == "given" else ("",)
        for side in sides:
            for label in labels:
                for number in range(6):
                    write(root / side, f"{label}/{number}.png", f"{side} {label} {number}")
        shares = {"hold_out": 0.2, "used": 0.8, "unseen": 0.5 if layout == "unseen" else 0.0}
        manifest = drawn(root, **shares)
        trained, tested = {row.sha256 for row in manifest.rows_in("train", "held_out")}, set()
        for step in range(12):
            for _ in range(4):
                files = sorted(root.rglob("*.png"))
                source, target = draw.sample(files, 2)
                kind = draw.choice(("add", "copy", "rename", "overwrite", "exchange", "delete"))
                fresh = f"{draw.choice(sides)}/{draw.choice(labels)}/{step}{draw.random()}.png".lstrip("/")
                if kind == "add":
                    write(root, fresh, fresh)
                elif kind == "copy":
                    write(root, fresh, source.read_text())
                elif kind == "rename":
                    write(root, fresh, source.read_text())
                    source.unlink()
                elif kind == "overwrite":
                    target.write_text(draw.choice((source.read_text(), f"over {fresh}")))
                elif kind == "exchange":
                    one, two = source.read_text(), target.read_text()
                    source.write_text(two)
                    target.write_text(one)
                elif len(files) > 20:
                    source.unlink()
            moved = {row.path: row.part for row in manifest.rows if row.part not in REMOVED_PARTS}
            _, manifest, _ = changed(root, manifest, **shares)
            trained |= {row.sha256 for row in manifest.of("train", "held_out")}
            rows = rows_to_test(manifest.rows)
            tested |= {row.sha256 for row in rows}
            assert not trained & tested
            assert not trained & {row.sha256 for row in manifest.of("test")}
            there = {(row.sha256, row.label) for row in manifest.rows if row.part not in REMOVED_PARTS}
            assert len({row.sha256 for row in rows}) == sum(
                content in {row.sha256 for row in rows} for content, _ in there
            )
            sides_of = {part: "test" if part == "test" else "train" for part in PARTS if part != "excluded"}
            for row in manifest.rows:
                was = moved.get(row.path)
                if row.part not in REMOVED_PARTS and was in sides_of and row.part in sides_of:
                    assert sides_of[row.part] == sides_of[was]
            assert len(names(manifest, "test")) == len(manifest.of("test"))


def test_assigning_in_one_go_or_file_by_file_gives_about_the_same_share():
    known = assign_parts((), [UnassignedFile(f"{n}", "cat", "", 1, f"{n:064x}") for n in range(50)], SplitConfig())
    for number in range(50, 450):
        known += assign_parts(known, [UnassignedFile(f"{number}", "cat", "", 1, f"{number:064x}")], SplitConfig())
    assert 65 <= sum(row.part == "test" for row in known) <= 115


# ---------------------------------------------------------------- the file


def test_any_name_survives_the_file(tmp_path):
    odd = ["a,b", 'quo"te', "line\nend", "re\rturn", " space ", "=1+1", "ümlaut", os.fsdecode(b"\xff\xfe")]
    rows = tuple(ManifestRow(f"c/{name}.png", name, PARTS[k % 7], 10**k, f"{k:064x}") for k, name in enumerate(odd))
    (tmp_path / "manifest.csv").write_bytes(b"".join(Manifest(rows).to_csv()))
    found = Manifest.read(tmp_path / "manifest.csv")
    assert found.rows == rows
    assert found.digest() == Manifest(rows).digest()
    assert found.counts() == {part: 2 if part == "train" else 1 for part in PARTS}


GOOD = "cat/1.png,cat,train,5," + "a" * 64


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 0: the columns of a manifest are path, class, part, size, sha256, not ''"),
        ("path,class\n", "the columns of a manifest are"),
        (f"{','.join(MANIFEST_COLUMNS)}\n", "no images in it"),
        (f"{','.join(MANIFEST_COLUMNS)}\n{GOOD}\ncat/2.png,cat\n", "line 3: 2 cells, not 5"),
        (
            f"{','.join(MANIFEST_COLUMNS)}\n{GOOD.replace('train', 'tset')}\n",
            "line 2: part 'tset' is none of train, held_out",
        ),
        (f"{','.join(MANIFEST_COLUMNS)}\n{GOOD}\n{GOOD}\n", "line 3: 'cat/1.png' stands in it twice"),
        (f"{','.join(MANIFEST_COLUMNS)}\n{GOOD.replace(',5,', ',-5,')}\n", "size is a whole number"),
        (f"{','.join(MANIFEST_COLUMNS)}\n{GOOD.replace(',5,', ',' + '9' * 5000 + ',')}\n", "size is a whole number"),
        (f"{','.join(MANIFEST_COLUMNS)}\n{GOOD[:-1]}\n", "sha256 has 64 digits"),
        (f'{",".join(MANIFEST_COLUMNS)}\n"{GOOD}', "not CSV"),
        (f"{','.join(MANIFEST_COLUMNS)}\n{'x' * 200_000}\n", "not CSV (field larger than field limit"),
    ],
)
def test_a_damaged_manifest_is_one_line(tmp_path, text, says):
    path = tmp_path / "manifest.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        Manifest.read(path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{path}")
    assert "\n" not in str(caught.value)


def test_what_is_no_manifest_at_all_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot be read"):
        Manifest.read(tmp_path / "nowhere.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match="not a file"):
        Manifest.read(tmp_path / "pipe.csv")
    with (tmp_path / "huge.csv").open("wb") as file:
        file.truncate(2 << 30)  # a hole: takes no disk
    with pytest.raises(InputError, match="more than 1 GiB"):
        Manifest.read(tmp_path / "huge.csv")
    monkeypatch.setattr("widemargin.data.images.manifest.MAX_MANIFEST_BYTES", 500)
    with pytest.raises(InputError, match="too many"):
        list(Manifest(tuple(ManifestRow(f"{k}", "cat", "train", 1, "0" * 64) for k in range(10))).to_csv())


def test_a_manifest_that_names_files_elsewhere_reads_none_of_them(tmp_path):
    fill(tmp_path / "images", cat=5, dog=5)
    write(tmp_path, "secret.png", "secret")
    manifest = drawn(tmp_path / "images")
    rows = (
        *manifest.rows,
        ManifestRow("../secret.png", "cat", "test", 6, "0" * 64),
        ManifestRow("/etc/passwd", "cat", "test", 1, "0" * 64),
    )
    compared = diff_manifest(Manifest(rows), scan_folder(tmp_path / "images"))
    assert compared.changes.removed == ("../secret.png", "/etc/passwd")
    wrong = Manifest(tuple(replace(row, label="cat") for row in manifest.rows))
    with pytest.raises(InputError, match=r"dog/000.png is of class 'cat', but lies in the folder of another"):
        diff_manifest(wrong, scan_folder(tmp_path / "images"))


def test_a_pipe_or_a_broken_link_among_the_images_is_one_line(tmp_path):
    fill(tmp_path, cat=5, dog=5)
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    with pytest.raises(InputError, match=r"pipe\.png: not a file but a pipe; remove it from among the images"):
        load_folder(tmp_path)
    (tmp_path / "cat" / "pipe.png").unlink()
    manifest = drawn(tmp_path)
    (tmp_path / "cat" / "link.png").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"link\.png: no such file"):
        load_folder(tmp_path)
    assert diff_manifest(manifest, scan_folder(tmp_path)).changes.new == ("cat/link.png",)
