"""Parts of a folder of images, drawn from contents: one more image moves no other, copies stay together."""

import os
import random
from dataclasses import replace

import pytest

from image_folders import class_counts, draw_manifest, fill_folder, paths_in, take_in_changes, write_image
from widemargin.data.images.changes import diff_manifest
from widemargin.data.images.folder import create_manifest, load_folder, scan_folder
from widemargin.data.images.manifest import ManifestRow
from widemargin.data.images.splits import (
    SplitConfig,
    UnassignedFile,
    assign_parts,
    describe_duplicates,
    rows_to_test,
    unseen_classes,
)
from widemargin.io.errors import InputError


def test_one_more_picture_moves_no_other(tmp_path):
    fill_folder(tmp_path, cat=100, dog=100, owl=100, yak=100)
    before = set(load_folder(tmp_path).test.paths)
    write_image(tmp_path, "cat/new.png", "another")
    after = set(load_folder(tmp_path).test.paths)
    assert len(before) == len(after) == 80
    assert len(before - after) <= 1  # the new one may take the place of the last in its class
    assert not any(path.parent.name != "cat" for path in before ^ after)


def test_names_and_folders_do_not_decide(tmp_path):
    fill_folder(tmp_path / "one", cat=30, dog=30)
    for path in sorted((tmp_path / "one").rglob("*.png")):
        write_image(tmp_path / "two", f"{path.parent.name}/{random.Random(path.name).random()}.png", path.read_text())
    contents = [{path.read_text() for path in load_folder(tmp_path / name).test.paths} for name in ("one", "two")]
    assert contents[0] == contents[1]


def test_the_seed_draws_another_part(tmp_path):
    fill_folder(tmp_path, cat=30, dog=30)
    one, again, other = (load_folder(tmp_path, seed=seed).test.paths for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_every_class_keeps_a_training_image_and_has_a_test_image_where_it_can(tmp_path, share):
    counts = {"one": 1, "two": 2, "three": 3, "ten": 10, "many": 57}
    fill_folder(tmp_path, **counts)
    found = draw_manifest(tmp_path, test_fraction=share)
    train, test = class_counts(found, "train"), class_counts(found, "test")
    for label, count in counts.items():
        wanted = 0 if count == 1 else min(max(round(count * share), 1), count - 1)
        assert (train[label], test[label]) == (count - wanted, wanted)


def test_identical_contents_stay_together(tmp_path):
    fill_folder(tmp_path, cat=40, dog=40)
    for number in range(40):
        write_image(tmp_path, f"cat/copy{number}.png", f"cat {number}")
    manifest = draw_manifest(tmp_path)
    parts = {}
    for row in manifest.rows:
        parts.setdefault(row.sha256, set()).add(row.part)
    assert all(len(found) == 1 for found in parts.values())
    assert class_counts(manifest, "test") == {"cat": 16, "dog": 8}


def test_many_copies_do_not_swallow_a_class(tmp_path):
    fill_folder(tmp_path, cat=5, dog=5)
    for number in range(95):
        write_image(tmp_path, f"cat/copy{number}.png", "cat 0")
    for seed in range(10):
        assert class_counts(draw_manifest(tmp_path, seed=seed), "test")["cat"] <= 20


def test_copies_alone_leave_nothing_to_test_on(tmp_path):
    for label in ("cat", "dog"):
        for number in range(5):
            write_image(tmp_path, f"{label}/{number}.png", label)
    with pytest.raises(InputError, match="leaves no test images"):
        draw_manifest(tmp_path)


def test_a_picture_under_two_labels_is_never_tested_on_and_told(tmp_path):
    fill_folder(tmp_path, cat=20, dog=20)
    for number in range(20):
        write_image(tmp_path, f"dog/cat{number}.png", f"cat {number}")  # all cats are dogs too
    manifest, notes = create_manifest(scan_folder(tmp_path), SplitConfig(val_fraction=0.2))
    assert class_counts(manifest, "test") == {"dog": 8}
    assert not any("cat" in row.path for row in manifest.rows_in("test", "val"))
    assert len(notes) == 1
    assert "the same picture stands in two classes: cat/000.png and dog/cat0.png (20 such files)" in notes[0]
    with pytest.warns(UserWarning, match="the same picture stands in two classes"):
        load_folder(tmp_path)


def test_a_test_image_that_is_trained_on_is_excluded_and_told(tmp_path):
    fill_folder(tmp_path / "train", cat=5, dog=5)
    fill_folder(tmp_path / "test", cat=2)  # the first two of the training images
    write_image(tmp_path, "test/dog/own.png", "own")
    manifest, notes = create_manifest(scan_folder(tmp_path), SplitConfig())
    assert manifest.counts() == {"train": 10, "test": 1, "excluded": 2}
    assert paths_in(manifest, "test") == {"test/dog/own.png"}
    assert notes == [
        "2 images have the content of an image on the other side of the split, so that they are not used: "
        "test/cat/000.png is train/cat/000.png"
    ]
    (tmp_path / "test" / "dog" / "own.png").write_text("dog 1")
    with pytest.raises(InputError, match=r"no test images are left: .* test/cat/000.png is train/cat/000.png"):
        draw_manifest(tmp_path)


def test_held_out_and_unused_images_follow_from_contents_too(tmp_path):
    fill_folder(tmp_path, cat=50, dog=50)
    shares = {"val_fraction": 0.25, "train_fraction": 0.5, "seed": 3}
    before = draw_manifest(tmp_path, **shares)
    assert before.counts() == {"train": 30, "val": 20, "unused": 30, "test": 20}
    smaller = draw_manifest(tmp_path, **{**shares, "train_fraction": 0.2})
    assert paths_in(smaller, "train") < paths_in(before, "train")
    assert paths_in(smaller, "val") == paths_in(before, "val")
    write_image(tmp_path, "cat/new.png", "new")
    after = draw_manifest(tmp_path, **shares)
    for part in ("train", "val", "unused", "test"):
        assert len(paths_in(before, part) ^ paths_in(after, part)) <= 4  # of 100, in one class


def test_unseen_classes_follow_from_their_names(tmp_path):
    labels = [f"c{number:02}" for number in range(40)]
    shares = SplitConfig(unseen_class_fraction=0.25, seed=1)
    before = unseen_classes(labels, shares, "here")
    after = unseen_classes([*labels, "another"], shares, "here")
    assert len(before) == len(after) == 10
    assert len(before - after) <= 1
    assert unseen_classes(labels, replace(shares, seed=2), "here") != before
    with pytest.raises(InputError, match="here has 3 classes: too few to hold some out"):
        unseen_classes(labels[:3], shares, "here")
    fill_folder(tmp_path, **dict.fromkeys(labels[:6], 5))
    write_image(tmp_path, "c00/copy.png", "c01 0")
    found = draw_manifest(tmp_path, unseen_class_fraction=0.5, val_fraction=0.4)
    assert set(found.train_class_names) == set(labels[:6]) - {row.label for row in found.rows_in("test")}
    assert len(found.train_class_names) == 3


def test_a_content_in_a_seen_and_an_unseen_class_is_not_tested_on(tmp_path):
    fill_folder(tmp_path, **{f"c{number}": 4 for number in range(6)})
    for number in range(6):
        write_image(tmp_path, f"c{number}/same.png", "same")
    found = draw_manifest(tmp_path, unseen_class_fraction=0.5)
    assert found.counts() == {"train": 15, "test": 12, "excluded": 3}
    assert all(row.path.endswith("same.png") for row in found.rows_in("excluded"))


@pytest.mark.parametrize("side", ["test/", ""])
def test_a_picture_of_two_test_classes_is_tested_on_under_neither(tmp_path, side):
    """In a test folder of its own, and in unseen classes."""
    labels = [f"c{number}" for number in range(6)]
    if side:
        fill_folder(tmp_path / "train", **dict.fromkeys(labels, 4))
    for label in labels:
        for number in range(4):
            write_image(tmp_path, f"{side}{label}/{number}.png", f"{side}{label} {number}")
    shares = SplitConfig(unseen_class_fraction=0.0 if side else 0.5)
    one, two = [label for label in labels if side or label in unseen_classes(labels, shares, "")][:2]
    write_image(tmp_path, f"{side}{two}/copy.png", f"{side}{one} 1")
    manifest, notes = create_manifest(scan_folder(tmp_path), shares)
    assert paths_in(manifest, "excluded") == {f"{side}{one}/1.png", f"{side}{two}/copy.png"}
    assert rows_to_test(manifest.rows) == manifest.rows_in("test")
    assert notes == [
        f"the same picture stands in two classes: {side}{one}/1.png and {side}{two}/copy.png; "
        "it is not tested on until one of them is removed"
    ]
    (tmp_path / f"{side}{one}/1.png").unlink()  # whichever it is, the other one is right now
    _, now, notes = take_in_changes(tmp_path, manifest, unseen_class_fraction=shares.unseen_class_fraction)
    assert f"{side}{two}/copy.png" in paths_in(now, "test")
    assert notes == ["0 new images assigned, 1 no longer excluded (1 test), 1 removed taken out"]


def test_assigning_in_one_go_or_file_by_file_gives_about_the_same_share():
    known = assign_parts((), [UnassignedFile(f"{n}", "cat", "", 1, f"{n:064x}") for n in range(50)], SplitConfig())
    for number in range(50, 450):
        known += assign_parts(known, [UnassignedFile(f"{number}", "cat", "", 1, f"{number:064x}")], SplitConfig())
    assert 65 <= sum(row.part == "test" for row in known) <= 115


def test_no_line_names_an_image_beside_itself():
    excluded = ManifestRow("test/cat/1.png", "cat", "excluded", 1, "0" * 64)
    assert describe_duplicates([excluded]) == describe_duplicates([excluded], {excluded.path}) == []


def test_a_pipe_or_a_broken_link_among_the_images_is_one_line(tmp_path):
    fill_folder(tmp_path, cat=5, dog=5)
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    with pytest.raises(InputError, match=r"pipe\.png: not a file but a pipe; remove it from the images"):
        load_folder(tmp_path)
    (tmp_path / "cat" / "pipe.png").unlink()
    manifest = draw_manifest(tmp_path)
    (tmp_path / "cat" / "link.png").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"link\.png: no such file"):
        load_folder(tmp_path)
    assert diff_manifest(manifest, scan_folder(tmp_path)).changes.new == ("cat/link.png",)
