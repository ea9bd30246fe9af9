"""Training on images: resumed runs are the uninterrupted ones, bit for bit; folders, parts, averages, mistakes."""

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from runs import assert_same, lines
from widemargin.cli.main import main
from widemargin.data.images.sets import ImageSet, load_images
from widemargin.io.errors import InputError
from widemargin.training import inputs
from widemargin.training.config import TrainConfig
from widemargin.training.divergence import DivergedError
from widemargin.training.logging import ProgressReporter
from widemargin.training.model import ModelEMA
from widemargin.training.optim import PlateauScheduler, learning_rate
from widemargin.training.train import train
from widemargin.training.trainer import Trainer

SMALL = TrainConfig(
    model="fast(width=0.125)",
    loss="arcgrad(s=10)",
    train_fraction=0.1,
    batch_size=50,
    epochs=4,
    augment="fast",
    opt="sgd",
    lr=0.05,
)


@cache
def _load_few_images(name: str, folder: Path) -> ImageSet:
    found = load_images(name, folder)
    few = torch.arange(2000)
    return ImageSet(found.name, found.train.take(few), found.test.take(few[:200]), found.mean, found.std)


@pytest.fixture(autouse=True)
def _read_once(monkeypatch):
    """The data sets are read once for all tests of this file, and only the start of them is used."""
    monkeypatch.setattr("widemargin.data.images.sets.load_images", _load_few_images)


# ---------------------------------------------------------------- resume


@pytest.mark.parametrize(
    "changes",
    [
        {"opt": "sgd"},
        {"opt": "sgd", "momentum": 0.0, "channels_last": False},
        {"opt": "adam", "lr": 0.01, "schedule": "cosine", "warmup_epochs": 1.5},
        {"opt": "adamw", "lr": 0.01, "ema": 0.9, "accumulate": 2},
        {"opt": "muon", "lr": 0.01, "ema": 0.9},
        {"loss": "adacos"},
        {"loss": "softmax + 0.02*center", "opt": "adamw"},
        {"loss": "arcface(s=learnable(20), m=warmup(0, 0.3, steps=8))"},
        {"schedule": "plateau", "val_fraction": 0.1, "ema": 0.5},
        {
            "neck": True,
            "clip": 1.0,
            "repeated_augmentation": 2,
            "augment_options": {"mixup": 0.8, "cutmix": 1.0, "erase": 0.5},
        },
        {"precision": "bf16-mixed"},
        {"precision": "64-true", "loss": "adacos"},
        {"loss": "cross_entropy"},
    ],
    ids=str,
)
def test_a_resumed_run_is_the_uninterrupted_one(changes, tmp_path, data_dir, monkeypatch):
    run = replace(SMALL, **changes)
    if run.schedule == "plateau":  # impatient, so that it has something to remember
        monkeypatch.setattr("widemargin.training.trainer.PlateauScheduler.__init__.__defaults__", (0, 0.1))
    train(run, tmp_path / "whole", data_dir=data_dir, stop_after=3)
    train(run, tmp_path / "parts", data_dir=data_dir, stop_after=1)
    torch.rand(7)  # what else a process does must not matter
    train(run, tmp_path / "parts", data_dir=data_dir, stop_after=2, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert len(lines(tmp_path / "parts")) == 3


def test_a_resumed_network_with_dropout(tmp_path, data_dir):
    """Random numbers of the network itself, and timm's options, come back too."""
    run = replace(
        SMALL,
        model="vit_tiny_patch16_224(patch_size=8, depth=1, embed_dim=24, num_heads=2)",
        model_options={"drop_rate": 0.3, "proj_drop_rate": 0.2, "drop_path_rate": 0.2},
        train_fraction=0.05,
        opt="adamw",
        lr=0.001,
    )
    train(run, tmp_path / "whole", data_dir=data_dir, stop_after=2)
    train(run, tmp_path / "parts", data_dir=data_dir, stop_after=1)
    train(run, tmp_path / "parts", data_dir=data_dir, stop_after=1, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_plateau_lowers_the_rate_and_remembers():
    run, plateau = replace(SMALL, schedule="plateau", lr=0.1), PlateauScheduler(patience=1)
    rates = []
    for loss in (2.0, 1.0, 1.0, 1.0, 0.5, 0.5):
        kept = PlateauScheduler(patience=1)
        kept.load_state_dict(json.loads(json.dumps(plateau.state_dict())))  # as a resumed run has it
        plateau = kept
        plateau.step(loss)
        rates.append(learning_rate(run, 7, 10, plateau.lr_scale))
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.01, 0.01, 0.01])


def test_a_finished_run_is_judged_again_and_not_trained(tmp_path, data_dir):
    run = replace(SMALL, epochs=1)
    first = train(run, tmp_path / "run", data_dir=data_dir).record
    again = train(run, tmp_path / "run", data_dir=data_dir, resume=True).record
    assert first["test"] == again["test"]
    assert first["angles"] == again["angles"]
    assert len(lines(tmp_path / "run")) == 1


def test_the_run_before_a_kill_between_two_renames(tmp_path, data_dir):
    run = SMALL
    train(run, tmp_path / "whole", data_dir=data_dir, stop_after=2)
    train(run, tmp_path / "parts", data_dir=data_dir, stop_after=1)
    places = tmp_path / "parts" / "checkpoints"
    (places / "last").rename(places / "last.old")
    (places / "last.new").mkdir()
    (places / "last.new" / "model.safetensors").write_bytes(b"half")
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "loss": 0}\n{"epoch": 3, "lo')
    train(run, tmp_path / "parts", data_dir=data_dir, stop_after=1, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert not (places / "last.new").exists()


def test_only_the_same_run_goes_on(tmp_path, data_dir):
    train(SMALL, tmp_path / "run", data_dir=data_dir, stop_after=1)
    with pytest.raises(InputError, match=r"already contains a run: .*resume=True"):
        train(SMALL, tmp_path / "run", data_dir=data_dir)
    with pytest.raises(InputError, match=r"holds another run .lr is 0.05, not 0.1"):
        train(replace(SMALL, lr=0.1), tmp_path / "run", data_dir=data_dir, resume=True)
    train(replace(SMALL, name="another name"), tmp_path / "run", data_dir=data_dir, resume=True, stop_after=1)


@pytest.mark.parametrize("file", ["model.safetensors", "training.safetensors", "state.json"])
def test_a_cut_off_checkpoint_is_one_line(file, tmp_path, data_dir):
    train(SMALL, tmp_path / "run", data_dir=data_dir, stop_after=1)
    path = tmp_path / "run" / "checkpoints" / "last" / file
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"last: .*checkpoint") as refused:
        train(SMALL, tmp_path / "run", data_dir=data_dir, resume=True)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("file", ["model.safetensors", "training.safetensors", "state.json", "sha256.json"])
def test_a_flipped_bit_is_seen_and_the_checkpoint_before_serves(file, tmp_path, data_dir):
    train(SMALL, tmp_path / "whole", data_dir=data_dir, stop_after=3)
    train(SMALL, tmp_path / "hurt", data_dir=data_dir, stop_after=2)
    path = tmp_path / "hurt" / "checkpoints" / "last" / file
    data = bytearray(path.read_bytes())
    data[-40] ^= 4
    path.write_bytes(bytes(data))
    with pytest.warns(UserWarning, match="previous checkpoint"):
        train(SMALL, tmp_path / "hurt", data_dir=data_dir, stop_after=2, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "hurt")
    assert [line["epoch"] for line in lines(tmp_path / "hurt")] == [1, 2, 3]


# ---------------------------------------------------------------- parts, starts, rates


def test_the_held_out_part_chooses_and_is_not_trained_on(tmp_path, data_dir):
    run = replace(SMALL, val_fraction=0.1, train_fraction=0.1, ckpt_freq=2)
    found = inputs.load_inputs(run, data_dir)
    assert found.val is not None
    assert (len(found.val), len(found.train)) == (199, 179)
    rows = {row.numpy().tobytes() for row in found.train.x}
    assert not any(row.numpy().tobytes() in rows for row in found.val.x)
    train(run, tmp_path / "run", data_dir=data_dir, stop_after=3)
    judged = [line["val"]["top1"] for line in lines(tmp_path / "run")]
    best = json.loads((tmp_path / "run" / "checkpoints" / "best" / "state.json").read_text())
    assert best["epoch"] == judged.index(max(judged)) + 1
    assert best["best"] == max(judged)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "best",
        "epoch-0002",
        "last",
        "last.old",
    ]


def test_averaged_weights_are_judged_and_the_others_trained(data_dir):
    training = Trainer(replace(SMALL, ema=0.9), data_dir)
    training.train_epoch(ProgressReporter())
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    averaged = training.evaluate(training.inputs.test)
    assert all(torch.equal(value, before[name]) for name, value in training.model.state_dict().items())
    average, training.ema = training.ema, None
    assert average is not None
    assert averaged["loss"] != training.evaluate(training.inputs.test)["loss"]


def test_the_average_is_that_of_the_formula_and_leaves_the_rest_to_the_model():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    net.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    average = ModelEMA(net, 0.9)
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert list(average.values) == names
    wanted = {name: net.state_dict()[name].double() for name in names}  # from the initial state on
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        net(torch.randn(8, 3, generator=draw))
        for parameter in net.parameters():
            parameter.data += torch.randn(parameter.shape, generator=draw)
        average.update_parameters(net)
        wanted = {name: 0.9 * value + 0.1 * net.state_dict()[name].double() for name, value in wanted.items()}
    own = {name: value.clone() for name, value in net.state_dict().items()}
    average.swap(net)
    swapped = net.state_dict()
    for name in names:
        torch.testing.assert_close(swapped[name].double(), wanted[name], rtol=1e-6, atol=1e-6)
        assert torch.equal(average.values[name], own[name])
    assert swapped["1.num_batches_tracked"] == 5
    assert torch.equal(swapped["mask"], own["mask"])
    average.swap(net)
    assert all(torch.equal(value, own[name]) for name, value in net.state_dict().items())


def test_a_model_that_cannot_be_copied_is_one_line():
    net = torch.nn.Linear(2, 2)
    net.cached = net.weight * 2  # no leaf, which torch does not copy
    with pytest.raises(InputError, match=r"ema=0.9 .* cannot be copied"):
        ModelEMA(net, 0.9)


def test_start_from_another_run(tmp_path, data_dir):
    train(replace(SMALL, ema=0.5), tmp_path / "one", data_dir=data_dir, stop_after=1)
    kept = load_file(tmp_path / "one" / "checkpoints" / "last" / "training.safetensors")
    training = Trainer(replace(SMALL, init_from=str(tmp_path / "one"), loss="adacos"), data_dir)
    for name, value in training.model.backbone.state_dict().items():
        if f"average.backbone.{name}" in kept:
            assert torch.equal(value, kept[f"average.backbone.{name}"]), name
    for wrong in ({"model": "fast(width=0.25)"}, {"model": "resnet18"}):
        with pytest.raises(InputError, match=r"init_from=.* another network"):
            Trainer(replace(SMALL, init_from=str(tmp_path / "one"), **wrong), data_dir)
    with pytest.raises(InputError, match="is this a checkpoint"):
        Trainer(replace(SMALL, init_from=str(tmp_path / "nowhere")), data_dir)


def test_whitening_comes_back_with_the_checkpoint(tmp_path, data_dir, monkeypatch):
    train(SMALL, tmp_path / "run", data_dir=data_dir, stop_after=1)
    kept = load_file(tmp_path / "run" / "checkpoints" / "last" / "model.safetensors")["backbone.filters"]
    monkeypatch.setattr("widemargin.models.fast.FastNet.whiten", None)  # a resumed run must not need it
    training = Trainer(SMALL, data_dir, resume=True)
    assert not torch.equal(training.model.backbone.filters, kept)
    training.restore(tmp_path / "run" / "checkpoints" / "last")
    assert torch.equal(training.model.backbone.filters, kept)


def test_what_timm_wants_without_decay_has_none(data_dir):
    vit = "vit_tiny_patch16_224(patch_size=8, depth=1, embed_dim=24, num_heads=2)"
    for changes in ({"opt": "adamw"}, {"opt": "adamw", "neck": True}, {"opt": "muon", "neck": True}):
        training = Trainer(replace(SMALL, model=vit, weight_decay=0.05, **changes), data_dir)
        decay = {
            id(p): (group["weight_decay"], group.get("use_fallback"))
            for group in training.optimizer.param_groups
            for p in group["params"]
        }
        settings = {name: decay[id(p)] for name, p in training.model.backbone.named_parameters()}
        spared = [name for name in settings if name.endswith(("pos_embed", "cls_token", "bias"))]
        assert len(spared) > 4
        assert all(settings[name][0] == 0.0 for name in spared)
        assert all(settings[name][0] == 0.05 for name in settings if name.endswith("qkv.weight"))
        assert len(decay) == len(list(training.model.parameters()))
        if changes["opt"] == "muon":
            assert all(settings[name][1] for name in spared)


def test_a_batch_goes_to_the_device_with_its_partners():
    from lightning_fabric.utilities import move_data_to_device

    batch = (torch.zeros(2, 3), torch.zeros(2), (torch.zeros(2), torch.zeros(2)))
    moved = move_data_to_device(batch, torch.device("meta"))
    assert moved[0].is_meta
    assert moved[1].is_meta
    assert all(part.is_meta for part in moved[2])


# ---------------------------------------------------------------- what goes wrong


def test_a_loss_that_is_no_number_stops_with_a_diagnosis(tmp_path, data_dir):
    run = replace(SMALL, loss="softmax", lr=0.01, schedule="constant")
    train(run, tmp_path / "run", data_dir=data_dir, stop_after=1)
    kept = (tmp_path / "run" / "checkpoints" / "last" / "model.safetensors").read_bytes()
    wild = replace(run, lr=1e30)
    (tmp_path / "run" / "run.json").write_text(wild.to_json())
    with pytest.raises(DivergedError, match="the last good checkpoint is kept") as stopped:
        train(wild, tmp_path / "run", data_dir=data_dir, resume=True)
    assert "\n" not in str(stopped.value)
    assert "Try a smaller lr, clip=1" in str(stopped.value)
    assert (tmp_path / "run" / "checkpoints" / "last" / "model.safetensors").read_bytes() == kept
    assert len(lines(tmp_path / "run")) == 1


def test_divergence_leaves_with_code_2(tmp_path, data_dir, capsys):
    words = [
        "train",
        "mnist",
        "fast(width=0.125)",
        "softmax",
        "--train-fraction",
        "0.1",
        "--batch-size",
        "50",
        "--epochs",
        "2",
    ]
    words += ["--opt", "sgd", "--lr", "1e38", "--out", str(tmp_path / "run"), "--data-dir", str(data_dir)]
    assert main(words) == 2
    _, said = capsys.readouterr().err.strip().splitlines()  # after the line about the run
    assert "the loss is" in said
    assert "Try a smaller --lr" in said


def test_a_batch_larger_than_the_data_becomes_as_large_as_the_data(data_dir):
    with pytest.warns(UserWarning, match="make batches of"):
        trainer = Trainer(replace(SMALL, batch_size=5000), data_dir)
    assert trainer.inputs.batch_size == len(trainer.inputs.train) < 5000
    assert trainer.steps_per_epoch == 1


@pytest.mark.parametrize("module", ["lightning_fabric", "timm"])
def test_missing_extras_are_one_line(module, data_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install \"widemargin\[(train|vision)\]\""):
        Trainer(replace(SMALL, model="vit_tiny_patch16_224"), data_dir)


def test_missing_logs_are_one_line(tmp_path, data_dir, monkeypatch):
    monkeypatch.setattr("widemargin.training.logging.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"wandb is not installed: pip install \"widemargin\[wandb\]\""):
        train(SMALL, tmp_path / "run", data_dir=data_dir, loggers=["wandb"])
