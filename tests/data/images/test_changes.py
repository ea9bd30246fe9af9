"""A folder that has changed since its manifest was drawn: what is reported, and who goes where."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from image_folders import class_counts, draw_manifest, fill_folder, paths_in, take_in_changes, write_image
from widemargin.data.images.changes import FolderChanges, diff_manifest
from widemargin.data.images.folder import scan_folder
from widemargin.data.images.manifest import PARTS, REMOVED_PARTS, Manifest, ManifestRow
from widemargin.data.images.splits import rows_to_test
from widemargin.io.errors import InputError


def test_what_was_added_changed_and_removed_is_told(tmp_path):
    fill_folder(tmp_path, cat=10, dog=10)
    manifest = draw_manifest(tmp_path)
    assert not diff_manifest(manifest, scan_folder(tmp_path)).changes
    tested = sorted(paths_in(manifest, "test"))
    write_image(tmp_path, "cat/new.png", "new")
    write_image(tmp_path, "ant/1.png", "ant")
    (tmp_path / tested[0]).write_text("cat x")  # as long as before
    (tmp_path / tested[-1]).unlink()
    (tmp_path / sorted(paths_in(manifest, "train"))[0]).unlink()
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
    assert changes.details()[0] == "  new: cat/new.png; assign_new gives each a part"
    assert changes.to_dict()["paths"]["changed"] == [tested[0]]


def test_long_lists_are_cut_in_lines_and_files():
    changes = FolderChanges(9, 9, new=tuple(f"cat/{number}.png" for number in range(500)))
    assert changes.details() == ["  new: cat/0.png, cat/1.png, cat/2.png and 497 more; assign_new gives each a part"]
    assert (changes.to_dict()["new"], len(changes.to_dict()["paths"]["new"])) == (500, 100)


def test_new_images_are_assigned_and_nobody_else_moves(tmp_path):
    fill_folder(tmp_path, cat=100, dog=100)
    manifest = draw_manifest(tmp_path, val_fraction=0.1)
    fill_folder(tmp_path, cat=200, dog=101)
    _, now, notes = take_in_changes(tmp_path, manifest, val_fraction=0.1)
    assert now.rows[: len(manifest.rows)] == manifest.rows
    assert 10 <= class_counts(now, "test")["cat"] - 20 <= 32
    assert 2 <= class_counts(now, "val")["cat"] - 8 <= 15
    assert "101 new images assigned (" in notes[0]
    assert not diff_manifest(now, scan_folder(tmp_path)).changes
    assert take_in_changes(tmp_path, now)[1] == now


def test_a_class_without_a_test_image_gets_one(tmp_path):
    fill_folder(tmp_path, cat=1, dog=30)
    manifest = draw_manifest(tmp_path)
    fill_folder(tmp_path, cat=2)
    assert paths_in(take_in_changes(tmp_path, manifest)[1], "test") >= {"cat/001.png"}


def test_a_known_content_joins_its_part_under_a_new_name(tmp_path):
    fill_folder(tmp_path, cat=20, dog=20)
    manifest = draw_manifest(tmp_path, val_fraction=0.2, train_fraction=0.5)
    for row in manifest.rows:
        write_image(tmp_path, f"{row.label}/copy of {Path(row.path).name}", (tmp_path / row.path).read_text())
    now = take_in_changes(tmp_path, manifest, val_fraction=0.2, train_fraction=0.5)[1]
    parts = {row.sha256: row.part for row in manifest.rows}
    assert all(row.part == parts[row.sha256] for row in now.rows)


def test_what_was_trained_on_is_never_tested_on_wherever_it_turns_up(tmp_path):
    fill_folder(tmp_path, cat=20, dog=20)
    manifest = draw_manifest(tmp_path)
    trained, tested = sorted(paths_in(manifest, "train")), sorted(paths_in(manifest, "test"))
    old = (tmp_path / trained[0]).read_text()
    (tmp_path / trained[0]).write_text("quite another")  # trained on under its old content
    compared, now, _ = take_in_changes(tmp_path, manifest)
    assert [row.path for row in compared.lost_training_rows] == [trained[0]]
    assert trained[0] in paths_in(now, "train")
    assert paths_in(now, "removed_train") == {trained[0]}
    (tmp_path / tested[0]).write_text(old)  # what was trained on comes back in a test image
    write_image(tmp_path, "dog/again.png", old)  # and under a new name
    _, now, notes = take_in_changes(tmp_path, now)
    assert paths_in(now, "excluded") == {tested[0]}
    assert notes == [
        "1 new image assigned (1 train), 1 changed (1 now excluded)",
        "an image has the content of an image on the other side of the split, so that it is not used: "
        f"{tested[0]} is dog/again.png",
        "an image has the content of an image of another class, which was trained on: "
        f"dog/again.png is what {trained[0]} was when the run was trained",  # that path holds something else now
    ]
    assert "dog/again.png" in paths_in(now, "train")
    (tmp_path / trained[1]).rename(tmp_path / "dog" / "moved.png")
    now = take_in_changes(tmp_path, now)[1]
    assert "dog/moved.png" in paths_in(now, "train")


def test_a_changed_test_image_stays_one_if_its_content_is_new(tmp_path):
    fill_folder(tmp_path, cat=20, dog=20)
    manifest = draw_manifest(tmp_path)
    tested = sorted(paths_in(manifest, "test"))[0]
    (tmp_path / tested).write_text("a better picture")
    compared, now, _ = take_in_changes(tmp_path, manifest)
    assert not compared.lost_training_rows
    assert paths_in(now, "test") == paths_in(manifest, "test")
    assert not diff_manifest(now, scan_folder(tmp_path)).changes


@pytest.mark.parametrize("removed", ["old", "copy"])
def test_a_copy_of_a_test_image_in_another_class_leaves_both_out_until_one_is_removed(tmp_path, removed):
    fill_folder(tmp_path, cat=20, dog=20)
    manifest = draw_manifest(tmp_path)
    old = next(path for path in sorted(paths_in(manifest, "test")) if path.startswith("cat"))
    write_image(tmp_path, "dog/copy.png", (tmp_path / old).read_text())
    _, now, notes = take_in_changes(tmp_path, manifest)
    assert now.rows[:40] == manifest.rows  # nobody moves
    assert paths_in(now, "excluded") == {"dog/copy.png"}
    assert paths_in(now, "test") - {row.path for row in rows_to_test(now.rows)} == {old}
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
    compared, now, _ = take_in_changes(tmp_path, now)
    assert compared.changes.duplicates == ()
    assert len(rows_to_test(now.rows)) == len(now.rows_in("test")) == 8
    assert ("dog/copy.png" if removed == "old" else old) in paths_in(now, "test")


def test_a_changed_test_image_with_the_picture_of_another_class_is_excluded(tmp_path):
    fill_folder(tmp_path, cat=20, dog=20)
    manifest = draw_manifest(tmp_path)
    tested = sorted(paths_in(manifest, "test"))
    (tmp_path / tested[-1]).write_text((tmp_path / tested[0]).read_text())
    _, now, _ = take_in_changes(tmp_path, manifest)
    assert paths_in(now, "excluded") == {tested[-1]}
    assert {row.path for row in rows_to_test(now.rows)} == set(tested[1:-1])


def test_a_former_test_image_is_not_trained_on_under_another_name(tmp_path):
    fill_folder(tmp_path, cat=20, dog=20)
    manifest = draw_manifest(tmp_path)
    old = sorted(paths_in(manifest, "test"))
    content = (tmp_path / old[0]).read_text()
    for path in old:
        (tmp_path / path).rename(tmp_path / path.replace("/", "/renamed"))
    for number in range(40):  # some of them rank before it, and would take its place
        write_image(tmp_path, f"cat/new{number}.png", f"new {number}")
    _, now, notes = take_in_changes(tmp_path, manifest)
    assert {path.replace("/", "/renamed") for path in old} <= paths_in(now, "test")
    assert paths_in(now, "removed_test") == set(old)
    assert notes[1:] == [
        "8 images have the content of a former test image, and are tested on again: "
        f"{old[0].replace('/', '/renamed')} is what {old[0]} was when it was a test image"
    ]
    for path in old:
        (tmp_path / path.replace("/", "/renamed")).unlink()
    now = take_in_changes(tmp_path, now)[1]
    write_image(tmp_path, "dog/back.png", content)  # a cat before
    now = take_in_changes(tmp_path, now)[1]
    assert "dog/back.png" in {row.path for row in rows_to_test(now.rows)}
    trained = sorted(paths_in(now, "train"))[0]
    (tmp_path / "dog" / "back.png").rename(tmp_path / trained)  # a training image that holds it now
    assert paths_in(take_in_changes(tmp_path, now)[1], "excluded") == {trained}


@pytest.mark.parametrize("given", [False, True])
def test_exchanged_contents_of_a_test_and_a_training_image_are_both_excluded(tmp_path, given):
    for side in ("train", "test") if given else ("",):
        for label in ("cat", "dog"):
            for number in range(10):
                write_image(tmp_path / side, f"{label}/{number}.png", f"{side} {label} {number}")
    manifest = draw_manifest(tmp_path)
    trained, tested = (sorted(paths_in(manifest, part))[0] for part in ("train", "test"))
    one, two = (tmp_path / trained).read_text(), (tmp_path / tested).read_text()
    (tmp_path / trained).write_text(two)
    (tmp_path / tested).write_text(one)
    _, now, notes = take_in_changes(tmp_path, manifest)
    assert paths_in(now, "excluded") == {trained, tested}
    assert (paths_in(now, "removed_train"), paths_in(now, "removed_test")) == ({trained}, {tested})
    assert notes[0] == "0 new images assigned, 2 changed (2 now excluded)"
    assert "2 images have the content of an image on the other side of the split, so that they are not used" in notes[1]
    assert take_in_changes(tmp_path, now)[1] == now


def test_an_excluded_file_that_is_repaired_is_assigned_like_a_new_one(tmp_path):
    fill_folder(tmp_path / "train", cat=5, dog=5)
    fill_folder(tmp_path / "test", cat=2)
    write_image(tmp_path, "test/dog/own.png", "own")
    manifest = draw_manifest(tmp_path)
    assert paths_in(manifest, "excluded") == {"test/cat/000.png", "test/cat/001.png"}
    write_image(tmp_path, "test/cat/000.png", "the right picture")
    write_image(tmp_path, "test/cat/001.png", "cat 3")  # wrong still
    _, now, notes = take_in_changes(tmp_path, manifest)
    assert (paths_in(now, "test"), paths_in(now, "excluded")) == (
        {"test/cat/000.png", "test/dog/own.png"},
        {"test/cat/001.png"},
    )
    assert notes[0] == "0 new images assigned, 2 changed (1 kept, 1 now test)"
    assert notes[1].endswith("so that it is not used: test/cat/001.png is train/cat/003.png")


def test_a_path_that_was_trained_on_is_not_tested_on_after_a_detour(tmp_path):
    """It held a test image for a while, or was away; what is in it now may be the old picture saved again."""
    fill_folder(tmp_path, cat=30, dog=30)
    manifest = draw_manifest(tmp_path)
    trained, tested = (sorted(paths_in(manifest, part)) for part in ("train", "test"))
    for number in range(10):
        (tmp_path / trained[number]).write_text((tmp_path / tested[0]).read_text())
        (tmp_path / trained[-number - 1]).unlink()
    now = take_in_changes(tmp_path, manifest)[1]
    assert paths_in(now, "excluded") == set(trained[:10])
    for path in (*trained[:10], *trained[-10:]):
        write_image(tmp_path, path, f"{path} saved again")
    now = take_in_changes(tmp_path, now)[1]
    assert paths_in(now, "train") == set(trained)


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
                    write_image(root / side, f"{label}/{number}.png", f"{side} {label} {number}")
        shares = {
            "val_fraction": 0.2,
            "train_fraction": 0.8,
            "unseen_class_fraction": 0.5 if layout == "unseen" else 0.0,
        }
        manifest = draw_manifest(root, **shares)
        trained, tested = {row.sha256 for row in manifest.rows_in("train", "val")}, set()
        for step in range(12):
            for _ in range(4):
                files = sorted(root.rglob("*.png"))
                source, target = draw.sample(files, 2)
                kind = draw.choice(("add", "copy", "rename", "overwrite", "exchange", "delete"))
                fresh = f"{draw.choice(sides)}/{draw.choice(labels)}/{step}{draw.random()}.png".lstrip("/")
                if kind == "add":
                    write_image(root, fresh, fresh)
                elif kind == "copy":
                    write_image(root, fresh, source.read_text())
                elif kind == "rename":
                    write_image(root, fresh, source.read_text())
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
            _, manifest, _ = take_in_changes(root, manifest, **shares)
            trained |= {row.sha256 for row in manifest.rows_in("train", "val")}
            rows = rows_to_test(manifest.rows)
            tested |= {row.sha256 for row in rows}
            assert not trained & tested
            assert not trained & {row.sha256 for row in manifest.rows_in("test")}
            there = {(row.sha256, row.label) for row in manifest.rows if row.part not in REMOVED_PARTS}
            assert len({row.sha256 for row in rows}) == sum(
                content in {row.sha256 for row in rows} for content, _ in there
            )
            sides_of = {part: "test" if part == "test" else "train" for part in PARTS if part != "excluded"}
            for row in manifest.rows:
                was = moved.get(row.path)
                if row.part not in REMOVED_PARTS and was in sides_of and row.part in sides_of:
                    assert sides_of[row.part] == sides_of[was]
            assert len(paths_in(manifest, "test")) == len(manifest.rows_in("test"))


def test_a_manifest_that_names_files_elsewhere_reads_none_of_them(tmp_path):
    fill_folder(tmp_path / "images", cat=5, dog=5)
    write_image(tmp_path, "secret.png", "secret")
    manifest = draw_manifest(tmp_path / "images")
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
