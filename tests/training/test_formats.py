"""Training from the field's layouts: open sets of folders and index files, packed files, bad images, moved data."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import image_formats as formats
import widemargin as wm
from widemargin.cli.main import main
from widemargin.data.images.folder import create_manifest, scan_folder
from widemargin.data.images.image_files import FolderBatches, FolderImages
from widemargin.data.images.splits import SplitConfig
from widemargin.io.errors import InputError
from widemargin.training.config import TrainConfig
from widemargin.training.inputs import load_inputs

SMALL = {"model": "fast", "loss": "arcface(s=16, m=0.2)", "input_size": 16, "epochs": 1, "batch_size": 8}
SMALL |= {"augment": "none", "embedding_dim": 16, "model_options": {"width": 0.125}}


def config(data, **options) -> TrainConfig:
    return TrainConfig(**{"data": str(data), **SMALL, **options})


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    """People to train on, and others to test on, of whom one has a single picture."""
    root = tmp_path_factory.mktemp("faces")
    formats.write_folder(root / "train", [4] * 6)
    formats.write_folder(root / "test", [4] * 6 + [1], first_label=20)
    return root


@pytest.fixture(scope="module")
def run(faces, tmp_path_factory):
    with pytest.warns(UserWarning, match="1 unseen class has one image"):
        return wm.train(config(faces), tmp_path_factory.mktemp("runs") / "a", quiet=True)


# ---------------------------------------------------------------- open sets


def test_folders_of_other_people_are_an_open_set(run):
    assert run.is_open_set
    assert len(run.class_names) == 6
    test = run.record["test"]
    assert test["images"] == 25
    assert test["identities"] == 7
    assert {"recall1", "map_at_r", "auc", "eer", "tar"} <= set(test)
    assert "top1" not in test
    again = wm.load(run.folder)
    assert again.is_open_set
    assert again.evaluate().metrics["recall1"] == test["recall1"]
    assert wm.evaluate(run.folder, protocol="retrieval").metrics["without_match"] == 1
    assert main(["report", str(run.folder), "--no-images"]) == 0
    assert "recall@1" in (run.folder / "report.html").read_text()


def test_a_validation_folder_of_other_people_chooses_the_best(faces, tmp_path):
    root = tmp_path / "faces"
    shutil.copytree(faces, root)
    formats.write_folder(root / "val", [3] * 3, first_label=40)
    with pytest.warns(UserWarning, match="one image"):
        found = wm.train(config(root), tmp_path / "run", quiet=True)
    assert len(found.class_names) == 6
    assert "recall1" in found.history[0]["val"]
    assert (tmp_path / "run" / "checkpoints" / "best").is_dir()
    with pytest.raises(InputError, match="both hold images out"):
        load_inputs(config(root, val_fraction=0.1), None)


def test_some_shared_classes_are_one_line(faces, tmp_path):
    root = tmp_path / "faces"
    shutil.copytree(faces, root)
    formats.write_folder(root / "test", [2])
    with pytest.raises(
        InputError, match="7 of 8 classes to test on, such as 'c020', are not among the 6 training classes"
    ):
        load_inputs(config(root), None)
    with pytest.raises(InputError, match="omit unseen_classes"):
        load_inputs(config(faces, unseen_classes=0.5), None)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_index_file_of_an_open_set(faces, tmp_path, kind):
    rows = [
        (str(path.relative_to(faces)), int(path.parent.name[1:]), path.relative_to(faces).parts[0])
        for path in sorted(faces.rglob("*.jpg"))
    ]
    index = faces / f"index.{kind}"
    if kind == "csv":
        index.write_text("path,label,split\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(dict(zip(("path", "label", "split"), zip(*rows, strict=True), strict=True))), index)
    found = load_inputs(config(index), None)
    assert found.is_open_set
    assert found.class_names == tuple("012345")
    assert found.test.class_names == tuple(str(k) for k in range(20, 27))
    assert (len(found.train), len(found.test)) == (24, 25)
    index.unlink()


# ---------------------------------------------------------------- packed files


def pack(kind: str, root, train, test) -> str:
    """The same images in each format; without parts where the format has none."""
    if kind == "tar":
        formats.write_shard(root / "train" / "0.tar", formats.shard_samples(train))
        formats.write_shard(root / "test" / "0.tar", formats.shard_samples(test))
    elif kind == "arrow":
        names = [str(k) for k in range(30)]
        for split, images in (("train", train), ("test", test)):
            formats.write_saved_dataset(root / split, images, names)
        (root / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    else:
        formats.write_insightface(root, train)
        pairs = [(test[k][0], test[(k * 7 + 3) % len(test)][0]) for k in range(len(test))]
        same = [test[k][1] == test[(k * 7 + 3) % len(test)][1] for k in range(len(test))]
        same_pairs = [(test[k][0], test[k + 1][0], True) for k in range(0, len(test), 2)]
        formats.write_bin(root / "lfw.bin", [*((a, b, s) for (a, b), s in zip(pairs, same, strict=True)), *same_pairs])
    return str(root)


@pytest.mark.parametrize("kind", ["rec", "tar", "arrow"])
def test_packed_files_train_evaluate_and_resume(tmp_path, kind):
    train = formats.encoded_pictures([4] * 6)
    test = formats.encoded_pictures([4] * 6, first_label=20)
    data = pack(kind, tmp_path / "set", train, test)
    settings = config(data, epochs=2)
    whole = wm.train(settings, tmp_path / "whole", quiet=True)
    wm.train(settings, tmp_path / "parts", quiet=True, stop_after=1)
    parts = wm.train(settings, tmp_path / "parts", quiet=True, resume=True)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, parts.model.state_dict()[name]), name
    if kind == "rec":
        assert whole.record["test"] == {}
        assert 0 <= whole.record["pairs"]["lfw"]["fold_accuracy"] <= 100
        again = wm.evaluate(tmp_path / "whole").metrics
        assert again["pairs"]["lfw"]["fold_accuracy"] == whole.record["pairs"]["lfw"]["fold_accuracy"]
    else:
        assert whole.is_open_set
        assert whole.record["test"]["identities"] == 6
        assert wm.evaluate(tmp_path / "whole").metrics["recall1"] == whole.record["test"]["recall1"]
    other = formats.encoded_pictures([5] * 6)
    shutil.rmtree(tmp_path / "set")
    pack(kind, tmp_path / "set", other, test)
    with pytest.raises(InputError, match="contains other images"):
        wm.train(settings, tmp_path / "parts", quiet=True, resume=True)


def test_the_same_images_give_the_same_bits_from_every_format(tmp_path):
    """A folder, records, shards and a saved data set of the same images: the same batches."""
    train = formats.encoded_pictures([6] * 4)
    test = formats.encoded_pictures([4] * 3, first_label=20)
    batches = []
    for kind in ("rec", "tar", "arrow"):
        data = pack(kind, tmp_path / kind, train, test)
        inputs = load_inputs(config(data, augment="paper"), None, workers=2)
        batches.append([x for x, *_ in inputs.batches.iter_epoch(0)])
    for other in batches[1:]:
        assert len(other) == 3
        assert all(torch.equal(a, b) for a, b in zip(batches[0], other, strict=True))


# ---------------------------------------------------------------- bad images


@pytest.fixture
def damaged(tmp_path):
    """A folder in which one file is no image and another is cut off."""
    root = formats.write_folder(tmp_path / "set", [10] * 3)
    files = sorted(root.rglob("*.jpg"))
    files[0].write_bytes(b"no image")
    files[15].write_bytes(formats.encode(formats.picture(1, 5, 64))[:-500])
    return root


def test_bad_images_stop_before_the_first_step_or_are_skipped(damaged, tmp_path):
    with pytest.raises(InputError, match=r"cannot be read as an image.*on_bad_image='skip'"):
        wm.train(config(damaged), tmp_path / "stop", quiet=True)
    assert not (tmp_path / "stop" / "metrics.jsonl").exists()
    with (
        pytest.warns(UserWarning, match="1 of 30 images cannot be read and are skipped, such as .*00000.jpg"),
        pytest.warns(UserWarning, match="1 more image cannot be decoded and is left out: .*00015.jpg"),
    ):
        found = wm.train(config(damaged, on_bad_image="skip"), tmp_path / "skip", quiet=True)
    assert found.record["skipped_images"]["count"] == 2
    assert found.record["manifest"]["images"]["unreadable"] == 1
    assert found.history[0]["skipped_images"] == 0  # decoded once, before the first step
    assert wm.evaluate(tmp_path / "skip").metrics["manifest"]["new"] == 0


def test_all_images_that_cannot_be_decoded_are_counted_at_once(tmp_path, capsys):
    """Whose headers are fine: a user who repairs one file after the other would start the run for each of them."""
    root = formats.write_folder(tmp_path / "set", [10] * 3)
    files = sorted(root.rglob("*.jpg"))
    for place in (3, 15):
        files[place].write_bytes(formats.encode(formats.picture(1, place, 64))[:-500])
    with pytest.raises(InputError, match=r"00003\.jpg.*\(1 more of 30 images .*on_bad_image='skip'"):
        wm.train(config(root), tmp_path / "stop", quiet=True)
    files[20].write_bytes(b"")
    with pytest.raises(InputError, match=r"00020\.jpg.*the file is empty"):
        wm.train(config(root), tmp_path / "stop", quiet=True)
    words = ["train", str(root), "fast(width=0.125)", "softmax", "--epochs", "1", "--batch-size", "8"]
    words += ["--input-size", "16", "--on-bad-image", "skip", "--out", str(tmp_path / "run")]
    with (
        pytest.warns(UserWarning, match="1 of 30 images cannot be read"),
        pytest.warns(UserWarning, match="2 more images cannot be decoded and are left out, such as .*00003.jpg"),
    ):
        assert main(words) == 0
    assert "3 images cannot be read and were left out, such as " in capsys.readouterr().out


def test_an_image_that_cannot_be_decoded_is_replaced_in_its_batch(damaged, tmp_path):
    crops = {"augment": "paper", "augment_options": {"scale": (0.5, 1.0)}}  # not decoded into memory
    settings = config(damaged, on_bad_image="skip", **crops)
    with pytest.warns(UserWarning, match="1 of 30 images cannot be read and are skipped"):
        found = wm.train(settings, tmp_path / "run", quiet=True)
    assert found.record["skipped_images"]["count"] == 2
    inputs = load_inputs(settings, None)
    everything = FolderImages(
        "set", (*inputs.train.paths, *inputs.test.paths), torch.cat((inputs.train.y, inputs.test.y)), inputs.class_names
    )
    cut = next(row for row, path in enumerate(everything.paths) if path.name == "00015.jpg")
    mended = FolderBatches(everything, len(everything), inputs.augment, 0, on_bad_image="replace")
    ((x, y, _),) = mended.iter_epoch(0)
    order, _ = mended.sampler.step_indices(mended.sampler.epoch_indices(0), 0, 0, shuffle_batch=False)
    place = order.tolist().index(cut)
    after = (place + 1) % len(order)
    assert torch.equal(x[place], x[after])
    assert y[place] == y[after]
    assert torch.equal(y[torch.arange(len(y)) != place], everything.y[order][torch.arange(len(y)) != place])
    assert mended.num_bad == 1
    dropped = FolderBatches(everything, 7, inputs.augment, 0, on_bad_image="drop", drop_last=False, shuffle=False)
    labels = torch.cat([y for _, y, _ in dropped.iter_epoch(0)])
    assert torch.equal(labels, everything.y[torch.arange(len(everything)) != cut])
    with pytest.raises(InputError, match=r"00015\.jpg.*truncated"):
        list(FolderBatches(everything, 7, inputs.augment, 0).iter_epoch(0))


def test_the_number_of_calls_grows_with_the_classes_and_not_faster(tmp_path):
    """Scanning and dividing a folder of C classes costs O(C): counted in calls of functions."""

    def count_calls(root) -> int:
        calls = 0

        def count(frame, event, argument):
            nonlocal calls
            calls += event in ("call", "c_call")

        tree_root = root
        sys.setprofile(count)
        try:
            create_manifest(scan_folder(tree_root), SplitConfig())
        finally:
            sys.setprofile(None)
        return calls

    counts = []
    for classes in (60, 120, 240):
        root = tmp_path / str(classes)
        for k in range(classes):
            (root / f"c{k}").mkdir(parents=True)
            for number in range(2):
                (root / f"c{k}" / f"{number}.png").write_text(f"{k} {number}")
        counts.append(count_calls(root))
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    assert second < 2.3 * first  # twice as many more classes, twice as many more calls


# ---------------------------------------------------------------- a run travels


def test_a_run_is_evaluated_where_its_data_and_itself_have_moved(faces, run, tmp_path, monkeypatch):
    shutil.copytree(run.folder, tmp_path / "moved")
    shutil.copytree(faces, tmp_path / "elsewhere" / faces.name)
    settings = json.loads((tmp_path / "moved" / "run.json").read_text())
    settings["data"] = f"/nowhere/{faces.name}"
    (tmp_path / "moved" / "run.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="if its images were moved"):
        wm.evaluate(tmp_path / "moved")
    for data_dir in (tmp_path / "elsewhere", tmp_path / "elsewhere" / faces.name):
        found = wm.evaluate(tmp_path / "moved", data_dir=data_dir)
        assert found.metrics["recall1"] == run.record["test"]["recall1"]
    shutil.rmtree(tmp_path / "elsewhere" / faces.name)
    formats.write_folder(tmp_path / "elsewhere" / faces.name / "train", [2, 2], first_label=90)
    with pytest.raises(InputError, match="none of the 49 images"):
        wm.evaluate(tmp_path / "moved", data_dir=tmp_path / "elsewhere")


def test_data_given_relative_to_a_root_stays_relative(faces, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", faces.name, "fast", "arcface(s=16, m=0.2)", "--input-size", "16", "--epochs", "1", "--quiet"]
    command += ["--batch-size", "8", "--augment", "none", "--data-dir", str(faces.parent), "--out", "run"]
    with pytest.warns(UserWarning, match="one image"):
        assert main([*command, "--model-options", "width=0.125"]) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["data"] == faces.name
    first = wm.evaluate("run").metrics["recall1"]
    shutil.copytree(faces, tmp_path / "copy" / faces.name)
    assert wm.evaluate("run", data_dir="copy").metrics["recall1"] == first


def test_pictures_arrays_and_folders_in_python_and_on_the_command_line(faces, run, tmp_path, capsys):
    files = sorted((faces / "test").rglob("*.jpg"))[:5]
    from_files = run.embed(files)
    assert torch.allclose(from_files.norm(dim=1), torch.ones(5))
    pictures = [Image.open(path) for path in files]
    assert torch.equal(run.embed(pictures), from_files)
    assert torch.allclose(run.embed(pictures[0]), from_files[:1], atol=1e-5)
    arrays = np.stack([np.asarray(one.convert("RGB")).transpose(2, 0, 1) for one in pictures])
    assert torch.allclose(run.embed(arrays), from_files, atol=1e-5)
    rgb = [np.asarray(one.convert("RGB")) for one in pictures]  # as OpenCV and matplotlib have them, of any size
    assert torch.equal(run.embed(rgb), from_files)
    assert torch.allclose(run.embed([rgb[0], files[1], pictures[2]]), from_files[:3], atol=1e-5)
    assert torch.allclose(run.embed(rgb[0]), from_files[:1], atol=1e-5)
    large = Image.open(files[0]).convert("RGB").resize((90, 60))
    assert torch.allclose(run.embed([np.asarray(large), rgb[1]]), run.embed([large, pictures[1]]), atol=1e-5)
    grey = np.asarray(pictures[0].convert("L"))
    assert torch.allclose(run.embed(grey), run.embed(Image.fromarray(grey)), atol=1e-5)
    raw = run.embed(files, normalize=False)
    assert torch.allclose(torch.nn.functional.normalize(raw), from_files)
    assert torch.equal(run.embed(files, batch_size=2, workers=3), run.embed(files, batch_size=2, workers=1))
    run.export(hub=tmp_path / "hub")
    for folder in (run.folder, tmp_path / "hub"):
        capsys.readouterr()
        assert main(["predict", str(folder), str(faces / "test" / "c020"), "--top", "1", "--device", "cpu"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 4
        assert all("cosine" in line for line in lines)
        assert main(["verify", str(folder), str(files[0]), str(files[1]), "--threshold", "0.5"]) == 0
        out = tmp_path / "x.npz"
        assert main(["embed", str(folder), str(faces / "test"), "--out", str(out), "--batch-size", "3"]) == 0
        assert np.allclose(np.linalg.norm(np.load(out)["embeddings"], axis=1), 1.0, atol=1e-5)
        assert main(["report", str(folder), "--out", str(tmp_path / "r.html"), "--data-dir", str(faces.parent)]) == 0
        assert "recall@1" in (tmp_path / "r.html").read_text()


def test_without_the_images_of_a_run_an_error_names_the_option_that_needs_none(faces, run, tmp_path):
    run.export(hub=str(tmp_path / "model"))
    alone = wm.load(tmp_path / "model")
    picture = next((faces / "test").rglob("*.jpg"))
    with pytest.raises(InputError, match="pass their folder as data_dir, or give the threshold as threshold"):
        alone.verify(picture, picture)
    with pytest.raises(InputError, match="pass their folder as data_dir, or give the threshold as reject_below"):
        alone.rejection_threshold(target_far=0.2)
    with pytest.raises(InputError, match=r"pass their folder as data_dir$"):
        alone.evaluate()
