"""Runs with several labels per image: datasets, arrays and index files; checkpoints, figures, predictions, mistakes."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score
from torch import nn
from torch.utils.data import Dataset

import image_formats as formats
import widemargin as wm
from runs import assert_same
from widemargin.cli.main import main

CONFIG = wm.TrainConfig(loss="bce", epochs=2, batch_size=16, lr=0.01)
COLOURS = {"red": 0, "green": 1, "blue": 2}


def draw_rows(n: int = 128, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors in 8 dimensions whose first three say which of three labels they have."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.rand(n, 3, generator=generator) < torch.tensor([0.5, 0.3, 0.2])
    x = 0.3 * torch.randn(n, 8, generator=generator)
    x[:, :3] += y.float()
    return x, y


X, Y = draw_rows()


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


class Items(Dataset):
    """Items whose labels are what `to_label` makes of a row of booleans."""

    def __init__(self, to_label) -> None:
        self.to_label = to_label

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, row: int):
        return X[row], self.to_label(Y[row])


def name_set(row: torch.Tensor) -> set[str]:
    return {name for name, place in COLOURS.items() if row[place]}


@pytest.mark.parametrize("loss", ["bce", "focal", "focal + 0.5*bce"])
def test_arrays_with_rows_of_0_and_1(tmp_path, loss):
    config = {"loss": loss, "epochs": 6, "batch_size": 16, "lr": 0.03, "val_fraction": 0.25}
    test = draw_rows(64, seed=1)
    run = wm.train(
        config, tmp_path, train=(X, Y.float()), test=test, model=make_net(), class_names=list(COLOURS), quiet=True
    )
    figures = run.record["test"]
    assert figures["map"] > 90
    assert run.record["average_precision"].keys() == COLOURS.keys()
    assert [0 < line["val"]["map"] <= 100 for line in run.history] == [True] * 6
    assert run.history[-1]["train_exact_match"] > run.history[0]["train_exact_match"]
    predictions = run.predict(test[0])
    scores = np.array([[dict(found)[name] for name in COLOURS] for found in predictions])
    assert figures["map"] == pytest.approx(100 * average_precision_score(test[1].numpy(), scores, average="macro"))
    assert figures["exact_match"] == pytest.approx(
        100 * np.mean((scores > 0.5) == test[1].numpy(), axis=1).__eq__(1).mean()
    )
    chosen = run.predict(test[0], threshold=0.5)
    assert [{name for name, _ in found} for found in chosen] == [
        {name for name, share in zip(COLOURS, row, strict=True) if share >= 0.5} for row in scores
    ]
    assert not any(found.is_unknown for found in chosen)
    again = wm.load(tmp_path, model=make_net())
    assert again.is_multilabel
    assert again.evaluate(test=test).metrics["map"] == figures["map"]
    assert again.evaluate(test=test).lines[0].startswith("mAP")


@pytest.mark.parametrize(
    "to_label",
    [
        lambda row: row,
        lambda row: row.float(),
        lambda row: row.numpy().astype(int),
        name_set,
        lambda row: sorted(name_set(row)),
    ],
)
def test_labels_of_every_kind_train_the_same(tmp_path, to_label):
    names = None if isinstance(to_label(Y[0]), set | list) else sorted(COLOURS)
    order = [COLOURS[name] for name in sorted(COLOURS)]
    wm.train(CONFIG, tmp_path / "a", train=(X, Y[:, order]), model=make_net(), quiet=True)
    columns = to_label if names is None else lambda row: to_label(row[order])
    found = wm.train(CONFIG, tmp_path / "b", train=Items(columns), model=make_net(), class_names=names, quiet=True)
    assert found.class_names == tuple(sorted(COLOURS))
    weights = [load_file(tmp_path / name / "checkpoints" / "last" / "model.safetensors") for name in ("a", "b")]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    given = {"train": (X, Y), "test": (X, Y), "quiet": True}
    whole = wm.train(CONFIG, tmp_path / "whole", model=make_net(), **given)
    wm.train(CONFIG, tmp_path / "parts", model=make_net(), stop_after=1, **given)
    resumed = wm.train(CONFIG, tmp_path / "parts", model=make_net(), resume=True, **given)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert resumed.record["test"] == whole.record["test"]
    with pytest.raises(wm.InputError, match="other labels"):
        wm.train(CONFIG, tmp_path / "parts", model=make_net(), resume=True, train=(X, ~Y), quiet=True)


@pytest.mark.parametrize(
    ("changes", "labels", "said"),
    [
        ({"loss": "arcface"}, Y, "arcface needs exactly one label per sample.*bce or focal"),
        ({"loss": "bce + 0.1*triplet"}, Y, "triplet needs exactly one label"),
        ({"per_class": 2}, Y, "per_class=2 needs one label per image"),
        ({"imbalance": 10.0}, Y, "imbalance=10 needs one label per image"),
        ({}, Y.float() * 0.5, "0 and 1"),
        ({}, torch.arange(128) % 3, "bce is a binary loss per label"),
        ({}, [[0, 1]] * 128, "a set of labels"),
    ],
)
def test_mistakes_are_one_line(tmp_path, changes, labels, said):
    with pytest.raises(wm.InputError, match=said):
        wm.train(
            {"loss": "bce", "batch_size": 16, "epochs": 1, **changes}, tmp_path, train=(X, labels), model=make_net()
        )


def write_colour_images(root, count=60):
    """Images whose channels are bright where they have the channel's label, and their index file."""
    draw = np.random.default_rng(0)
    rows = ["path,label"]
    for k in range(count):
        has = draw.random(3) < 0.5
        pixels = draw.integers(0, 60, (12, 12, 3)) + 180 * has
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"{k:02}.png")
        rows.append(f"{k:02}.png,{';'.join(name for name, place in COLOURS.items() if has[place])}")
    (root / "labels.csv").write_text("\n".join(rows))
    return root / "labels.csv"


def test_an_index_file_from_the_command_line(tmp_path, capsys):
    index = write_colour_images(tmp_path)
    out = tmp_path / "run"
    options = ["--label-separator", ";", "--input-size", "12", "--epochs", "6", "--batch-size", "8", "--lr", "0.02"]
    options += ["--schedule", "constant"]
    options += ["--val-fraction", "0.2", "--augment", "paper(pad=0)", "--quiet", "--out", str(out)]
    assert main(["train", str(index), "fast(widths=(8, 8, 8))", "focal", *options]) == 0
    assert "mAP" in capsys.readouterr().out
    record = json.loads((out / "record.json").read_text())
    assert record["test"]["map"] > 60
    assert main(["evaluate", str(out)]) == 0
    evaluated = json.loads((out / "evaluation.json").read_text())
    assert evaluated["map"] == record["test"]["map"]
    assert evaluated["average_precision"].keys() == COLOURS.keys()
    capsys.readouterr()
    assert main(["predict", str(out), str(tmp_path / "00.png"), "--threshold", "0"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in COLOURS)
    assert main(["predict", str(out), str(tmp_path / "00.png")]) == 0
    assert main(["report", str(out)]) == 0
    assert main(["train", "--resume", str(out), "--epochs", "7", "--quiet"]) == 0
    assert main(["evaluate", str(out), "--protocol", "retrieval"]) == 2
    assert "one label per image" in capsys.readouterr().err
    assert main(["train", str(index), "fast", "arcface", *options[:-1], str(tmp_path / "other")]) == 2
    assert "arcface needs exactly one label per sample" in capsys.readouterr().err


def test_a_separator_wants_labels_that_are_text(tmp_path, capsys):
    assert main(["train", "mnist", "fast", "bce", "--label-separator", ";", "--out", str(tmp_path)]) == 2
    assert "--label-separator" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["tar", "arrow"])
def test_packed_images_with_several_labels(tmp_path, kind):
    pictures = {"train": formats.colour_pictures(64), "test": formats.colour_pictures(24, seed=1)}
    root = tmp_path / "set"
    for part, images in pictures.items():
        if kind == "tar":
            samples = [
                (f"{k:04}", {"png": data, "json": json.dumps({"labels": labels}).encode()})
                for k, (data, labels) in enumerate(images)
            ]
            formats.write_shard(root / part / "0.tar", samples)
        else:
            feature = {"_type": "List", "feature": {"names": list(COLOURS), "_type": "ClassLabel"}}
            numbered = [(data, [COLOURS[name] for name in labels]) for data, labels in images]
            kind_of_label = pa.list_(pa.int64())
            formats.write_saved_dataset(root / part, numbered, [], feature=feature, kind_of_label=kind_of_label)
    if kind == "arrow":
        (root / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    net = {"model": "fast(widths=(8, 8, 8))", "input_size": 12, "augment": "paper(pad=0)"}
    steps = {"epochs": 6, "batch_size": 8, "lr": 0.02, "schedule": "constant"}
    config = wm.TrainConfig(data=str(root), loss="focal", val_fraction=0.2, **net, **steps)
    run = wm.train(config, tmp_path / "run", quiet=True)
    assert run.is_multilabel
    assert run.class_names == tuple(sorted(COLOURS) if kind == "tar" else COLOURS)
    assert run.record["test"]["map"] > 60
    assert wm.evaluate(tmp_path / "run").metrics["map"] == run.record["test"]["map"]
    assert wm.load(tmp_path / "run").is_multilabel
    for changes, said in (
        ({"loss": "arcface"}, "arcface needs exactly one label per sample"),
        ({"unseen_classes": 0.5}, "one label each"),
        ({"val_classes": 0.5, "val_fraction": 0.0}, "one label each"),
        ({"per_class": 2}, "per_class=2 needs one label per image"),
    ):
        with pytest.raises(wm.InputError, match=said):
            wm.train(dataclasses.replace(config, **changes), tmp_path / "other", quiet=True)
