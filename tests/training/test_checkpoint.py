"""Weights that are NaN or infinite: every command that uses them says which tensor of which file, and leaves with 2."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import widemargin as wm
from colours import FAST, draw
from stress.fixtures import update_checksums
from widemargin.cli.main import main
from widemargin.io.errors import InputError
from widemargin.training.config import TrainConfig
from widemargin.training.divergence import DivergedError
from widemargin.training.run_loading import load_run
from widemargin.training.train import train
from widemargin.training.trainer import Trainer


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return draw(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def sound_run(images) -> Path:
    """A run with averaged weights and its hub folder."""
    run = images.parent / "run"
    assert main(["train", str(images), *FAST, "--epochs", "2", "--ema", "0.5", "--out", str(run), "--quiet"]) == 0
    shutil.rmtree(run / "checkpoints" / "last.old")
    assert main(["export", str(run), "--hub", str(images.parent / "hub")]) == 0
    return run


def spoil(path: Path, name: str, value: float = float("nan")) -> None:
    """One number of one tensor; sums are made right again where there are any."""
    tensors = load_file(path)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, path)
    if (path.parent / "sha256.json").exists():
        update_checksums(path.parent)


USES = {
    "predict": lambda run, image, out: ["predict", run, image],
    "embed": lambda run, image, out: ["embed", run, image, "--out", f"{out}/x.npz"],
    "verify": lambda run, image, out: ["verify", run, image, image, "--threshold", "0.5"],
    "evaluate": lambda run, image, out: ["evaluate", run],
    "evaluate --protocol": lambda run, image, out: ["evaluate", run, "--protocol", "knn"],
    "export --safetensors": lambda run, image, out: ["export", run, "--safetensors", f"{out}/x.safetensors"],
    "export --hub": lambda run, image, out: ["export", run, "--hub", f"{out}/hub"],
    "export --onnx": lambda run, image, out: ["export", run, "--onnx", f"{out}/x.onnx"],
}


def head_weight(path: Path) -> str:
    """The name of the class weights in a file."""
    return next(name for name in load_file(path) if "objective" in name and name.endswith("weight"))


@pytest.mark.parametrize("use", USES)
def test_no_command_uses_weights_that_are_not_finite(use, sound_run, images, tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(sound_run, run)
    out.mkdir()
    file = run / "checkpoints" / "last" / "training.safetensors"
    name = f"average.{head_weight(run / 'checkpoints' / 'last' / 'model.safetensors')}"
    spoil(file, name)
    picture = next((images / "test").rglob("*.png"))
    capsys.readouterr()
    assert main(USES[use](str(run), str(picture), str(out))) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert f"{file}: {name}" in said.err
    assert "is not finite" in said.err
    assert "earlier checkpoint" in said.err
    assert list(out.iterdir()) == []
    assert not (run / "evaluation.json").exists()


@pytest.mark.parametrize("use", USES)
def test_no_command_gives_answers_of_weights_that_overflow(use, sound_run, images, tmp_path, capsys):
    """Every weight is finite, and what comes of them is not."""
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(sound_run, run)
    out.mkdir()
    place = run / "checkpoints" / "last"
    for file in ("model.safetensors", "training.safetensors"):
        tensors = load_file(place / file)
        save_file({name: value.new_full(value.shape, 3e38) if value.is_floating_point() and value.ndim else value
                   for name, value in tensors.items()}, place / file)  # fmt: skip
    update_checksums(place)
    picture = next((images / "test").rglob("*.png"))
    capsys.readouterr()
    assert main(USES[use](str(run), str(picture), str(out))) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert re.search("not finite|NaN or infinit", said.err)
    assert list(out.iterdir()) == []
    assert main(["report", str(run)]) == 0  # courses and settings are there to be seen


def test_moments_that_are_not_finite_are_named(sound_run, images, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(sound_run, run)
    file = run / "checkpoints" / "last" / "training.safetensors"
    name = next(name for name, value in load_file(file).items() if name.startswith("optimizer.") and value.ndim)
    spoil(file, name)
    words = ["train", str(images), *FAST, "--epochs", "2", "--ema", "0.5", "--out", str(run), "--resume", "--quiet"]
    capsys.readouterr()
    assert main(words) == 2
    assert f"{file}: {name} is not finite" in capsys.readouterr().err


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["weight", "running_var"])
def test_a_model_folder_with_numbers_that_are_not_finite(kind, value, sound_run, tmp_path):
    hub = tmp_path / "hub"
    shutil.copytree(sound_run.parent / "hub", hub)
    wm.load(hub)
    name = next(name for name in load_file(hub / "model.safetensors") if name.endswith(kind))
    spoil(hub / "model.safetensors", name, value)
    with pytest.raises(InputError, match=f"model.safetensors: {name} is not finite") as refused:
        wm.load(hub)
    assert "\n" not in str(refused.value)


def test_class_weights_that_are_not_finite_are_not_taken_over(tmp_path):
    weight = torch.randn(4, 8)
    weight[2, 3] = float("inf")
    save_file({"fc.weight": weight}, tmp_path / "fc.safetensors")
    with pytest.raises(InputError, match=r"fc.safetensors: fc.weight is not finite"):
        wm.Head(8, 4).load_class_weights(tmp_path / "fc.safetensors")
    with pytest.raises(InputError, match=r"the state dict: fc.bias is not finite"):
        wm.Head(8, 4, "softmax(bias=True)").load_class_weights(
            {"fc.weight": torch.ones(4, 8), "fc.bias": torch.tensor([0.0, float("nan"), 0.0, 0.0])}
        )


@pytest.mark.parametrize(("file", "start"), [("model.safetensors", ""), ("training.safetensors", "average.")])
def test_a_run_does_not_go_on_from_them_nor_start_with_them(file, start, sound_run, images, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(sound_run, run)
    place = run / "checkpoints" / "last"
    spoil(place / file, f"{start}backbone.bias")
    words = ["train", str(images), *FAST, "--epochs", "2", "--quiet"]
    capsys.readouterr()
    assert main([*words, "--ema", "0.5", "--out", str(run), "--resume"]) == 2
    said = capsys.readouterr().err
    assert f"{place / file}: {start}backbone.bias is not finite" in said
    assert said.count("\n") == 1
    if start:
        assert main([*words, "--init-from", str(run), "--out", str(tmp_path / "other")]) == 2
        assert f"{place / file}: {start}backbone.bias is not finite" in capsys.readouterr().err


def small_config(images: Path) -> TrainConfig:
    return TrainConfig(
        data=str(images), model="fast(width=0.125)", loss="arcgrad(s=10)", input_size=16, batch_size=12, epochs=2
    )


def test_running_statistics_that_are_not_finite_take_no_good_checkpoints_place(images, tmp_path):
    """Weights may be finite where running statistics have run over; a checkpoint of them could not be used."""
    training = Trainer(small_config(images), None)
    training.save(tmp_path / "last")
    training.model.backbone.blocks[1].norm2.running_var[0] = float("inf")
    with pytest.raises(DivergedError, match=r"backbone.blocks.1.norm2.running_var.*checkpoint"):
        training.save(tmp_path / "last")
    training.restore(tmp_path / "last")


def test_a_network_may_be_built_with_buffers_that_are_not_finite(images, tmp_path, monkeypatch):
    """A mask of minus infinities is no damage: it is there before any training."""
    from widemargin.models.fast import FastNet

    original = FastNet.__init__

    def init_with_mask(self, *given, **named):
        original(self, *given, **named)
        self.register_buffer("mask", torch.full((3,), -torch.inf))

    monkeypatch.setattr(FastNet, "__init__", init_with_mask)
    train(small_config(images), tmp_path / "run", quiet=True, stop_after=1)
    train(small_config(images), tmp_path / "run", quiet=True, resume=True)
    assert load_run(tmp_path / "run").model.backbone.mask.isinf().all()
