"""Runs on a folder of images that changes: who was tested stays tested, and what is new, changed or gone is said."""

import json
import random
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from runs import assert_same, lines
from widemargin.cli.main import main
from widemargin.data.images.folder import scan_folder, split_folder_by_count
from widemargin.data.images.manifest import REMOVED_PARTS, Manifest
from widemargin.io.errors import InputError
from widemargin.loading import load
from widemargin.training import folder_inputs
from widemargin.training import inputs as run_inputs
from widemargin.training.run_loading import load_run

SMALL = ["fast(widths=(4, 4, 8))", "arcgrad(s=10)", "--input-size", "16", "--batch-size", "8", "--augment", "fast"]
SMALL += ["--opt", "sgd", "--lr", "0.05", "--epochs", "2", "--quiet"]
COLOURS = ("blue", "green", "red")


def paint(path: Path, colour: int, seed: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(random.Random(str(seed)).getrandbits(32)).integers(
        0, 200, (16, 16, 3), dtype=np.uint8
    )
    pixels[:, :, colour] += 30  # hard enough to be got wrong now and then
    Image.fromarray(pixels).save(path)
    return path


def draw_images(root: Path, each: int, labels=COLOURS, begin=0) -> Path:
    for number, label in enumerate(labels):
        for index in range(begin, each):
            paint(root / label / f"{index:02}.png", number % 3, (root.name, label, index))
    return root


def train(images: Path, out: Path, *more: str) -> int:
    return main(["train", str(images), *SMALL, "--out", str(out), *more])


def parts_by_path(run: Path) -> dict[str, str]:
    return {row.path: row.part for row in Manifest.read(run / "manifest.csv").rows if row.part not in REMOVED_PARTS}


def paths_in_part(run: Path, part: str) -> list[str]:
    return sorted(path for path, found in parts_by_path(run).items() if found == part)


@pytest.fixture(scope="module")
def shared_dir(tmp_path_factory) -> Path:
    """A folder of images without a test part, and a finished and an unfinished run on it."""
    work_dir = tmp_path_factory.mktemp("made")
    images = draw_images(work_dir / "images", 20)
    assert train(images, work_dir / "run", "--val-fraction", "0.2") == 0
    return work_dir


@pytest.fixture
def work_dir(shared_dir, tmp_path) -> Path:
    """A copy that may be spoiled; the run names its images by where they are."""
    for name in ("images", "run"):
        shutil.copytree(shared_dir / name, tmp_path / name)
    for path in (tmp_path / "run").rglob("*.json"):
        path.write_text(path.read_text().replace(str(shared_dir / "images"), str(tmp_path / "images")))
    (tmp_path / "run" / "checkpoints" / "last" / "sha256.json").unlink()
    return tmp_path


def evaluate_run(run: Path, *more: str) -> dict:
    assert main(["evaluate", str(run), *more]) == 0
    return json.loads((run / "evaluation.json").read_text())


FIGURES = ("top1", "top1_flip", "top5", "loss", "confusion")


def select_figures(found: dict) -> list:
    return [found[name] for name in FIGURES]


# ---------------------------------------------------------------- what is tested


def test_a_run_keeps_a_manifest(shared_dir):
    run = shared_dir / "run"
    record = json.loads((run / "record.json").read_text())
    assert record["manifest"] == {"images": {"train": 39, "val": 9, "test": 12}}
    found = Manifest.read(run / "manifest.csv")
    assert [row.path for row in found.rows] == sorted(
        str(path.relative_to(shared_dir / "images")) for path in (shared_dir / "images").rglob("*.png")
    )
    assert all(row.size == (shared_dir / "images" / row.path).stat().st_size for row in found.rows)
    assert sum(map(sum, record["confusion"])) == 12


def test_one_more_picture_changes_no_figure_and_is_told(work_dir, capsys):
    before = evaluate_run(work_dir / "run")
    assert "manifest: 12 test images; nothing in the folder was added" in capsys.readouterr().out
    paint(work_dir / "images" / "red" / "new.png", 2, "new")
    after = evaluate_run(work_dir / "run")
    assert select_figures(after) == select_figures(before)
    assert select_figures(after)[0] == json.loads((work_dir / "run" / "record.json").read_text())["test"]["top1"]
    said = capsys.readouterr().out
    assert "manifest: 12 test images, 1 new (unassigned)\n  new: red/new.png; --assign-new gives each a part" in said
    assert (after["manifest"]["new"], after["manifest"]["tested"]) == (1, 12)
    assert after["manifest"]["paths"] == {"new": ["red/new.png"]}


def test_removed_and_changed_images_are_left_out_and_told(work_dir, capsys, monkeypatch):
    run, images = work_dir / "run", work_dir / "images"
    tested, trained = paths_in_part(run, "test"), paths_in_part(run, "train")
    (images / tested[0]).unlink()
    (images / trained[0]).unlink()
    paint(images / tested[-1], 0, "repainted")
    paint(images / trained[-1], 0, "repainted too")
    found = evaluate_run(run)
    assert "manifest: 10 of 12 test images, 2 changed (left out), 2 removed" in capsys.readouterr().out
    assert sum(map(sum, found["confusion"])) == 10
    inputs = load_run(run).load_inputs(None)
    assert (len(inputs.test), len(inputs.train)) == (10, 0)
    assert set(found["manifest"]["paths"]["changed"]) == {tested[-1], trained[-1]}
    monkeypatch.setattr(
        folder_inputs, "_MAX_HASHED_BYTES", 0
    )  # a large folder: of training images only sizes are looked at
    inputs = load_run(run).load_inputs(None)
    assert inputs.changes.changed == (tested[-1],)
    assert len(inputs.test) == 10


def test_a_trained_picture_in_the_place_of_a_test_image_is_not_tested(work_dir, capsys):
    run, images = work_dir / "run", work_dir / "images"
    tested, trained = paths_in_part(run, "test")[0], paths_in_part(run, "train")[0]
    shutil.copyfile(images / trained, images / tested)
    assert sum(map(sum, evaluate_run(run)["confusion"])) == 11
    found = evaluate_run(run, "--assign-new")
    assert sum(map(sum, found["confusion"])) == 11
    assert parts_by_path(run)[tested] == "excluded"
    assert "0 new images assigned, 1 changed (1 now excluded)" in capsys.readouterr().out


def test_a_damaged_training_image_does_not_stand_in_the_way(work_dir):
    run, images = work_dir / "run", work_dir / "images"
    (images / paths_in_part(run, "train")[0]).write_bytes(b"no image")
    assert sum(map(sum, evaluate_run(run)["confusion"])) == 12


def test_a_damaged_image_that_is_removed_moves_no_other(work_dir, tmp_path, capsys):
    """As the message advises: repair or remove it."""
    run, images = work_dir / "run", work_dir / "images"
    before = parts_by_path(run)
    bad = paths_in_part(run, "test")[3]
    shutil.copyfile(images / bad, tmp_path / "kept.png")
    (images / bad).write_bytes(b"no image")
    assert main(["train", str(images), *SMALL, "--out", str(tmp_path / "new")]) == 2
    assert "repair or remove it" in capsys.readouterr().err
    (images / bad).unlink()
    assert sum(map(sum, evaluate_run(run)["confusion"])) == 11
    assert f"11 of 12 test images, 1 removed\n  removed: {bad}" in capsys.readouterr().out
    assert parts_by_path(run) == before


def test_new_images_are_assigned_on_request(work_dir, capsys):
    run, images = work_dir / "run", work_dir / "images"
    before = parts_by_path(run)
    draw_images(images, 40, begin=20)
    draw_images(images, 3, labels=("yak",))
    found = evaluate_run(run, "--assign-new")
    said = capsys.readouterr().out
    assert "60 new images assigned (" in said
    assert "1 new class that the run does not know" in said
    assert "  new classes: yak" in said
    now = parts_by_path(run)
    assert {path: now[path] for path in before} == before
    assert len(now) == len(before) + 60
    assert found["manifest"]["tested"] == len(paths_in_part(run, "test")) > 12
    assert sum(map(sum, found["confusion"])) == len(paths_in_part(run, "test"))
    again = evaluate_run(run)
    assert (again["manifest"]["new"], select_figures(again)) == (0, select_figures(found))


def test_a_run_that_has_ended_trains_on_nothing_new_and_says_so(work_dir, capsys):
    run, images = work_dir / "run", work_dir / "images"
    record, manifest = (run / "record.json").read_text(), (run / "manifest.csv").read_text()
    draw_images(images, 40, begin=20)
    assert train(images, run, "--val-fraction", "0.2", "--resume", "--assign-new") == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    assert "the run has ended" in said
    assert "evaluate with --assign-new" in said
    assert ((run / "record.json").read_text(), (run / "manifest.csv").read_text()) == (record, manifest)
    before = parts_by_path(run)
    found = evaluate_run(run, "--assign-new")
    assert " unused); the run has ended, none is trained on\n" in capsys.readouterr().out
    now = parts_by_path(run)
    assert {now[path] for path in now if path not in before} == {"test", "unused"}
    assert [found["manifest"]["images"][part] for part in ("train", "val")] == [39, 9]
    assert train(images, run, "--val-fraction", "0.2", "--resume") == 0  # judged again, on the new test images too
    written = json.loads((run / "record.json").read_text())
    assert written["test"]["top1"] == found["top1"]
    assert main(["report", str(run)]) == 0
    sentence = f"39 trained on, 9 held out to choose by, {len(paths_in_part(run, 'test'))} tested on"
    assert sentence in (run / "report.html").read_text()


def test_a_test_image_that_lies_in_another_class_too_is_not_tested_on(work_dir, capsys):
    run, images = work_dir / "run", work_dir / "images"
    old = next(path for path in paths_in_part(run, "test") if path.startswith("blue"))
    shutil.copyfile(images / old, images / "red" / "copy.png")
    found = evaluate_run(run, "--assign-new")
    said = "manifest: 11 of 12 test images, 1 in two classes (left out); nothing in the folder was added"
    assert said in capsys.readouterr().out
    assert sum(map(sum, found["confusion"])) == found["manifest"]["tested"] == 11
    assert select_figures(evaluate_run(run)) == select_figures(found)
    out = capsys.readouterr().out
    assert f"{said}, changed or removed\n  in two classes: {old} and red/copy.png; not tested on until one is" in out
    with pytest.warns(UserWarning, match="11 of 12 test images, 1 in two classes"):
        assert train(images, run, "--val-fraction", "0.2", "--resume") == 0
    assert main(["report", str(run)]) == 0
    assert "9 held out to choose by, 11 tested on" in (run / "report.html").read_text()
    (images / "red" / "copy.png").unlink()
    assert sum(map(sum, evaluate_run(run)["confusion"])) == 12


def test_protocols_calibration_and_report_use_the_manifest(work_dir, capsys):
    run, images = work_dir / "run", work_dir / "images"
    paint(images / "red" / "new.png", 2, "new")
    (images / paths_in_part(run, "test")[0]).unlink()
    sentence = "manifest: 11 of 12 test images, 1 new (unassigned), 1 removed"
    assert main(["evaluate", str(run), "--protocol", "knn"]) == 0
    assert sentence in capsys.readouterr().out
    assert json.loads((run / "evaluation-knn.json").read_text())["manifest"]["tested"] == 11
    assert sentence in (run / "evaluation-knn.html").read_text()
    two = [str(path) for path in sorted((images / "red").iterdir())[:2]]
    assert main(["verify", str(run), *two, "--target-far", "0.5"]) == 0
    assert sentence in capsys.readouterr().err
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert sentence in page
    assert "39 trained on, 9 held out to choose by, 12 tested on" in page
    assert "red/new.png" not in page  # numbers, no names of files
    assert main(["report", str(run), "--out", str(work_dir / "run.md")]) == 0
    assert "39 trained on" in (work_dir / "run.md").read_text()
    assert main(["predict", str(run), str(images / "red" / "new.png")]) == 0


# ---------------------------------------------------------------- going on


@pytest.mark.parametrize("augment", ["fast", "paper(scale=(0.5, 1.0))"])
def test_a_run_resumed_after_a_picture_was_added_has_the_same_bits(tmp_path, augment):
    images = draw_images(tmp_path / "images", 12)
    words = ["--val-fraction", "0.2", "--train-fraction", "0.8", "--augment", augment, "--epochs", "3"]
    assert train(images, tmp_path / "whole", *words) == 0
    from widemargin.training.config import TrainConfig
    from widemargin.training.train import train as train_run

    run = TrainConfig.read(tmp_path / "whole")
    train_run(run, tmp_path / "cut", stop_after=1, quiet=True)
    first = parts_by_path(tmp_path / "cut")
    for label in COLOURS:
        paint(images / label / "00new.png", 0, label)  # first by name
    with pytest.warns(UserWarning, match=r"manifest: 6 test images, 3 new \(unassigned\)"):
        assert train(images, tmp_path / "cut", *words, "--resume") == 0
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert parts_by_path(tmp_path / "cut") == first == parts_by_path(tmp_path / "whole")
    records = [json.loads((tmp_path / name / "record.json").read_text()) for name in ("whole", "cut")]
    assert records[0]["test"] == records[1]["test"]
    assert records[1]["manifest"]["new"] == 3


@pytest.fixture
def partial_dir(tmp_path) -> Path:
    """An unfinished run."""
    from widemargin.training.config import TrainConfig
    from widemargin.training.train import train as train_run

    images = draw_images(tmp_path / "images", 12)
    options = {"input_size": 16, "batch_size": 8, "augment": "fast", "opt": "sgd", "lr": 0.05, "epochs": 2}
    run = TrainConfig(str(images), "fast(widths=(4, 4, 8))", "arcgrad(s=10)", val_fraction=0.2, **options)
    train_run(run, tmp_path / "run", stop_after=1, quiet=True)
    return tmp_path


@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize("what", ["removed", "changed"])
def test_a_run_does_not_go_on_silently_with_other_images(partial_dir, part, what, capsys):
    words = ["--val-fraction", "0.2", "--resume"]
    victim = paths_in_part(partial_dir / "run", part)[0]
    if what == "removed":
        (partial_dir / "images" / victim).unlink()
    else:
        paint(partial_dir / "images" / victim, 0, "repainted")
    assert train(partial_dir / "images", partial_dir / "run", *words) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    assert f"were changed or removed since the run began ({victim})" in said
    assert "--assign-new" in said
    with pytest.warns(
        UserWarning, match=f"0 new images assigned, 1 {what} {'taken out' if what == 'removed' else '.1 kept.'}$"
    ):
        assert train(partial_dir / "images", partial_dir / "run", *words, "--assign-new") == 0
    now = parts_by_path(partial_dir / "run")
    assert now.get(victim) == (None if what == "removed" else part)
    assert [row.path for row in Manifest.read(partial_dir / "run" / "manifest.csv").rows_in("removed_train")] == [
        victim
    ]


def test_a_removed_or_changed_test_image_is_told_and_left_out(partial_dir):
    tested = paths_in_part(partial_dir / "run", "test")
    (partial_dir / "images" / tested[0]).unlink()
    paint(partial_dir / "images" / tested[1], 0, "repainted")
    with pytest.warns(UserWarning, match=r"4 of 6 test images, 1 changed \(left out\), 1 removed"):
        assert train(partial_dir / "images", partial_dir / "run", "--val-fraction", "0.2", "--resume") == 0
    record = json.loads((partial_dir / "run" / "record.json").read_text())
    assert sum(map(sum, record["confusion"])) == record["manifest"]["tested"] == 4


def test_new_images_join_a_resumed_run_on_request(partial_dir):
    before = parts_by_path(partial_dir / "run")
    draw_images(partial_dir / "images", 24, begin=12)
    with pytest.warns(UserWarning, match=r"36 new images assigned \("):
        assert (
            train(partial_dir / "images", partial_dir / "run", "--val-fraction", "0.2", "--resume", "--assign-new") == 0
        )
    now = parts_by_path(partial_dir / "run")
    assert {path: now[path] for path in before} == before
    steps = [line["step"] for line in lines(partial_dir / "run")]
    assert steps[1] - steps[0] == len(paths_in_part(partial_dir / "run", "train")) // 8 > steps[0]


def test_a_renamed_test_image_is_not_trained_on(partial_dir):
    tested = paths_in_part(partial_dir / "run", "test")
    for path in tested:
        (partial_dir / "images" / path).rename(partial_dir / "images" / path.replace(".png", "renamed.png"))
    draw_images(partial_dir / "images", 40, begin=12)
    with pytest.warns(
        UserWarning, match=r"6 images have the content of a former test image|new images assigned"
    ) as caught:
        assert (
            train(partial_dir / "images", partial_dir / "run", "--val-fraction", "0.2", "--resume", "--assign-new") == 0
        )
    assert len(caught) == 2
    assert {path.replace(".png", "renamed.png") for path in tested} <= set(paths_in_part(partial_dir / "run", "test"))


def test_a_new_class_alone_is_told_when_a_run_goes_on(partial_dir):
    draw_images(partial_dir / "images", 3, labels=("yak",))
    with pytest.warns(UserWarning, match="0 new images assigned|belong to no part") as caught:
        assert (
            train(partial_dir / "images", partial_dir / "run", "--val-fraction", "0.2", "--resume", "--assign-new") == 0
        )
    said = str(caught[-1].message)
    assert said.endswith("a new class that the run does not know (yak): its images belong to no part")
    assert not any(path.startswith("yak") for path in parts_by_path(partial_dir / "run"))


def test_a_run_left_in_an_epoch_goes_on_with_fewer_steps(partial_dir, tmp_path):
    """More steps were done of the epoch than it has now."""
    from widemargin.training.config import TrainConfig
    from widemargin.training.distributed import StopRequest
    from widemargin.training.logging import ProgressReporter
    from widemargin.training.trainer import Trainer

    run = replace(TrainConfig.read(partial_dir / "run"), repeated_augmentation=4)
    training = Trainer(run, None)
    for _ in range(8):  # left after every step
        stop = StopRequest()
        stop.is_requested = True
        assert training.train_epoch(ProgressReporter(), stop) is None
    training.save(tmp_path / "last")
    assert training.mid_epoch_state["step"] == 8
    for path in paths_in_part(partial_dir / "run", "train")[::2]:
        (partial_dir / "images" / path).unlink()
    with pytest.warns(UserWarning, match="removed taken out"):
        again = Trainer(run, None, resume=True, manifest=training.inputs.manifest, assign_new=True)
    again.restore(tmp_path / "last")
    assert again.steps_per_epoch < 8
    assert again.train_epoch(ProgressReporter())["step"] == 8


def test_an_assignment_made_by_evaluate_is_not_trained_on_silently(partial_dir, capsys):
    draw_images(partial_dir / "images", 24, begin=12)
    assert main(["evaluate", str(partial_dir / "run"), "--assign-new"]) == 0
    assert train(partial_dir / "images", partial_dir / "run", "--val-fraction", "0.2", "--resume") == 2
    assert "assigns other images to training than when the last checkpoint was written" in capsys.readouterr().err
    assert train(partial_dir / "images", partial_dir / "run", "--val-fraction", "0.2", "--resume", "--assign-new") == 0


def test_a_missing_or_damaged_manifest_is_one_line(partial_dir, capsys):
    path = partial_dir / "run" / "manifest.csv"
    text = path.read_text()
    path.unlink()
    for words in (["evaluate", str(partial_dir / "run")], ["evaluate", str(partial_dir / "run"), "--assign-new"]):
        assert main(words) == 2
        assert "manifest.csv: missing, so it is unknown which images were trained on" in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for more in ([], ["--assign-new"]):
            assert train(partial_dir / "images", partial_dir / "run", "--val-fraction", "0.2", "--resume", *more) == 2
            assert "manifest.csv: missing" in capsys.readouterr().err
    path.write_text(text.replace('"train"', '"tarin"'))
    assert main(["evaluate", str(partial_dir / "run")]) == 2
    assert "part 'tarin' is none of" in capsys.readouterr().err
    assert train(partial_dir / "images", partial_dir / "run", "--val-fraction", "0.2", "--resume") == 2


def test_a_start_with_a_run_that_knows_the_test_images_is_told(shared_dir, tmp_path):
    images = shared_dir / "images"
    with pytest.warns(UserWarning, match=r"test images, such as .*, were training images of that run"):
        train(images, tmp_path / "other", "--seed", "1", "--init-from", str(shared_dir / "run"))
    assert train(images, tmp_path / "same", "--init-from", str(shared_dir / "run")) == 0  # without a warning


def test_a_fixed_set_has_nothing_to_assign(capsys):
    assert main(["train", "mnist", *SMALL, "--resume", "--assign-new"]) == 2
    assert "--assign-new is for folders of images; mnist never changes" in capsys.readouterr().err


# ---------------------------------------------------------------- runs without a manifest


@pytest.fixture
def legacy_dir(tmp_path, monkeypatch) -> Path:
    """A run as version 0.1.0 left it: drawn from the number of files, with no manifest."""
    images = draw_images(tmp_path / "images", 12)
    real = run_inputs.load_folder_inputs
    monkeypatch.setattr(
        run_inputs,
        "load_folder_inputs",
        lambda run, root, manifest, begun, *more: real(run, root, None, True, *more),
    )
    with pytest.warns(UserWarning, match="no manifest"):
        assert train(images, tmp_path / "run", "--val-fraction", "0.2") == 0
    monkeypatch.undo()
    (tmp_path / "run" / "manifest.csv").unlink()
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    del record["manifest"]
    (tmp_path / "run" / "record.json").write_text(json.dumps(record))
    for work_dir in (tmp_path / "run" / "checkpoints").iterdir():
        state = json.loads((work_dir / "state.json").read_text())
        del state["manifest"]
        (work_dir / "state.json").write_text(json.dumps(state))
        (work_dir / "sha256.json").unlink()
    return tmp_path


def test_a_former_run_is_tested_as_it_was_and_the_doubt_is_told(legacy_dir, capsys):
    found = evaluate_run(legacy_dir / "run")
    assert found["confusion"] == json.loads((legacy_dir / "run" / "record.json").read_text())["confusion"]
    said = capsys.readouterr().out
    assert "no manifest: the run is of version 0.1.0, and its parts are drawn again from the number of files" in said
    draw_images(legacy_dir / "images", 16, begin=12)
    assert main(["evaluate", str(legacy_dir / "run")]) == 2
    said = capsys.readouterr().err
    assert "9 test images, 6 when the run ended, and it has no manifest" in said
    assert main(["evaluate", str(legacy_dir / "run"), "--assign-new"]) == 2


def test_a_former_run_goes_on_with_the_same_bits_and_a_manifest(legacy_dir, tmp_path):
    shutil.copytree(legacy_dir / "run", legacy_dir / "cut")
    places = legacy_dir / "cut" / "checkpoints"
    shutil.rmtree(places / "last")
    (places / "last.old").rename(places / "last")  # after the first epoch
    with pytest.warns(UserWarning, match="no manifest: the run is of version"):
        assert train(legacy_dir / "images", legacy_dir / "cut", "--val-fraction", "0.2", "--resume") == 0
    state = legacy_dir / "cut" / "checkpoints" / "last" / "state.json"
    text = state.read_text()
    kept = json.loads(text)
    assert kept.pop("manifest")["images"] == {"train": 24, "val": 6, "test": 6}
    state.write_text(json.dumps(kept))
    assert_same(legacy_dir / "run", legacy_dir / "cut")
    state.write_text(text)
    (state.parent / "sha256.json").unlink()
    assert Manifest.read(legacy_dir / "cut" / "manifest.csv").counts() == {"train": 24, "val": 6, "test": 6}
    assert (
        train(legacy_dir / "images", legacy_dir / "cut", "--val-fraction", "0.2", "--resume") == 0
    )  # no warning any more


def test_copies_that_a_former_run_was_tested_on_are_left_out_from_now_on(legacy_dir):
    for path in (legacy_dir / "images" / "red").iterdir():
        paint(path, 2, "one picture")  # as many files as before
    with pytest.warns(UserWarning, match="no manifest|content of an image on the other side") as caught:
        assert train(legacy_dir / "images", legacy_dir / "run", "--val-fraction", "0.2", "--resume") == 0
    assert len(caught) == 2
    found = Manifest.read(legacy_dir / "run" / "manifest.csv")
    assert {row.label for row in found.rows_in("excluded")} == {"red"}
    assert not {row.sha256 for row in found.rows_in("test")} & {row.sha256 for row in found.rows_in("train", "val")}
    record = json.loads((legacy_dir / "run" / "record.json").read_text())
    assert sum(map(sum, record["confusion"])) == len(found.rows_in("test")) == 4


def test_a_picture_that_a_former_run_was_tested_on_in_two_classes_is_left_out_from_now_on(legacy_dir):
    tested = split_folder_by_count(scan_folder(legacy_dir / "images"), 0).test.paths
    shutil.copyfile(tested[0], tested[-1])
    with pytest.warns(
        UserWarning, match="no manifest|stands in two classes: .* not tested on until one of them"
    ) as caught:
        assert train(legacy_dir / "images", legacy_dir / "run", "--val-fraction", "0.2", "--resume") == 0
    assert len(caught) == 2
    assert paths_in_part(legacy_dir / "run", "excluded") == [
        str(tested[k].relative_to(legacy_dir / "images")) for k in (0, -1)
    ]
    assert sum(map(sum, json.loads((legacy_dir / "run" / "record.json").read_text())["confusion"])) == 4


def test_a_former_run_with_another_number_of_images_does_not_go_on(legacy_dir, capsys):
    draw_images(legacy_dir / "images", 20, begin=12)
    with pytest.warns(UserWarning, match="no manifest"):
        assert train(legacy_dir / "images", legacy_dir / "run", "--val-fraction", "0.2", "--resume") == 2
    assert "the number of images has changed, and without a manifest it is unknown" in capsys.readouterr().err


def test_a_model_without_its_run_folder_knows_no_drawn_test_images(shared_dir, tmp_path, monkeypatch):
    assert main(["export", str(shared_dir / "run"), "--hub", str(tmp_path / "hub")]) == 0
    monkeypatch.chdir(shared_dir)
    with pytest.raises(InputError, match=r"only the run's manifest.csv lists"):
        load(tmp_path / "hub").evaluate()
    assert (
        load(shared_dir / "run").evaluate(flips=False).metrics["top1"]
        == evaluate_run(shared_dir / "run", "--no-flips")["top1"]
    )


# ---------------------------------------------------------------- choosing the best


def load_best(run: Path) -> tuple[int, dict[str, torch.Tensor]]:
    from widemargin.training import checkpoint

    found = checkpoint.load(run / "checkpoints" / "best")
    return found.state["epoch"], found.model


def swap_folders(one: Path, other: Path) -> None:
    """All images of one class for those of another."""
    one.rename(one.with_name("away"))
    other.rename(one)
    one.with_name("away").rename(other)


@pytest.mark.parametrize("unseen", [False, True])
def test_the_reported_images_do_not_choose_the_best_epoch(tmp_path, unseen):
    """Their labels are exchanged and their pictures made noise: another figure is reported, the same epoch chosen."""
    images, labels = tmp_path / "images", [f"{word}{number}" for number in range(2) for word in COLOURS]
    draw_images(images / "train", 12, labels)
    draw_images(images / "test", 6, labels)
    words = ["--val-fraction", "0.3", "--epochs", "4", "--lr", "0.02", *(["--unseen-classes", "0.4"] if unseen else [])]
    assert train(images, tmp_path / "one", *words) == 0
    manifest = Manifest.read(tmp_path / "one" / "manifest.csv")
    reported = sorted({row.label for row in manifest.rows_in("test")})
    assert not {row.sha256 for row in manifest.rows_in("test")} & {
        row.sha256 for row in manifest.rows_in("train", "val")
    }
    assert not unseen or not set(reported) & {row.label for row in manifest.rows_in("val", "train")}
    for number, row in enumerate(manifest.rows_in("test")):
        if number % 3 == 0:
            paint(images / row.path, 0, f"noise {number}")
    for side in ("train", "test") if unseen else ("test",):
        swap_folders(images / side / reported[0], images / side / reported[1])
    assert train(images, tmp_path / "two", *words) == 0
    (epoch, model), (again, other) = (load_best(tmp_path / name) for name in ("one", "two"))
    assert epoch == again
    assert all(torch.equal(value, other[name]) for name, value in model.items())
    records = [json.loads((tmp_path / name / "record.json").read_text()) for name in ("one", "two")]
    assert records[0]["val"] == records[1]["val"]
    assert records[0]["test"] != records[1]["test"]


def test_a_test_image_that_is_held_out_too_is_not_reported(tmp_path):
    """The same picture may not choose the best epoch and be reported."""
    images = draw_images(tmp_path / "images" / "train", 12).parent
    draw_images(images / "test", 4)
    for label in COLOURS:
        for path in (images / "train" / label).iterdir():
            shutil.copyfile(path, images / "test" / label / f"copy{path.name}")
    with pytest.warns(UserWarning, match="36 images"):
        assert train(images, tmp_path / "run", "--val-fraction", "0.3") == 0
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert sum(map(sum, record["confusion"])) == 12
