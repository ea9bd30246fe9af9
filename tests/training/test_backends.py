"""Backends of the head in training: every loss, sampled and split classes, resuming on other numbers of processes."""

import copy
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import widemargin as wm
from rank_processes import train_on_ranks
from widemargin.cli.main import main
from widemargin.io.errors import InputError
from widemargin.losses.criterion import Criterion
from widemargin.losses.grammar import parse
from widemargin.training.optim import clip_gradients

CLASSES = 40
VIT = "vit_tiny_patch16_224(patch_size=8, depth=1, embed_dim=24, num_heads=2)"  # no batch norm: halves make the batch
DATA = "generated(classes=12, per_class=4, size=16, test=12)"


@pytest.fixture(scope="module")
def items() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(3 * CLASSES) % CLASSES
    return torch.randn(len(y), 8, generator=draw) + 2 * torch.randn(CLASSES, 8, generator=draw)[y], y


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


SETTINGS = {"loss": "cosface(s=16)", "epochs": 3, "batch_size": 40, "lr": 0.02}


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "stream"},
        {"backend": "sampled", "sample_rate": 0.2, "clip": 1.0, "head_lr_scale": 3.0},
        {"backend": "sampled", "sample_rate": 0.2, "opt": "sgd", "ema": 0.5},
        {"backend": "sharded", "sample_rate": 0.5, "opt": "adamw", "accumulate": 2},
    ],
)
def test_a_resumed_run_has_the_same_bits_under_every_backend(items, tmp_path, changes):
    config = {**SETTINGS, **changes}
    whole = wm.train(config, tmp_path / "a", train=items, model=network(), quiet=True)
    wm.train(config, tmp_path / "b", train=items, model=network(), quiet=True, stop_after=1)
    rest = wm.train(config, tmp_path / "b", train=items, model=network(), quiet=True, resume=True)
    assert whole.model.head.active_backend == changes["backend"]
    for name in ("model", "training"):
        one, other = (load_file(tmp_path / run / "checkpoints/last" / f"{name}.safetensors") for run in "ab")
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
    assert rest.history[-1]["loss"] == whole.history[-1]["loss"]


def test_a_sample_rate_of_one_is_the_exact_loss_and_a_smaller_one_moves_drawn_classes_only(items, tmp_path):
    exact = wm.train(SETTINGS, tmp_path / "a", train=items, model=network(), quiet=True)
    sampled = wm.train({**SETTINGS, "backend": "sampled"}, tmp_path / "b", train=items, model=network(), quiet=True)
    assert torch.allclose(exact.model.head.weight, sampled.model.head.weight, atol=1e-5)
    x, y = items
    few = y < 5  # labels of a step are always drawn; of the other 35 classes a tenth
    config = {**SETTINGS, "backend": "sampled", "sample_rate": 0.15, "epochs": 1, "batch_size": 15}
    names = [str(k) for k in range(CLASSES)]
    run = wm.train(config, tmp_path / "c", train=(x[few], y[few]), model=network(), class_names=names, quiet=True)
    before = wm.train(
        {**config, "lr": 0.0}, tmp_path / "d", train=(x[few], y[few]), model=network(), class_names=names, quiet=True
    )
    moved = (run.model.head.weight != before.model.head.weight).any(1)
    assert moved[:5].all()
    assert int(moved.sum()) == 6


@pytest.mark.parametrize("loss", [*wm.list_losses("margins"), *wm.list_losses("pairs")])
def test_every_margin_and_pair_loss_trains(items, tmp_path, loss):
    config = {"loss": loss, "epochs": 1, "batch_size": 40, "per_class": 2, "lr": 1e-3}
    run = wm.train(config, tmp_path, train=items, test=items, model=network(), quiet=True)
    (line,) = run.history
    assert ("train_recall1" in line) == (not run.model.objective.has_logits)
    assert run.record["test"]


@pytest.mark.parametrize("loss", [name for name in wm.list_losses() if isinstance(parse(name), Criterion)])
def test_a_classical_loss_trains_if_it_is_one_of_classes(items, tmp_path, loss):
    x, y = items
    spec, config = parse(loss), {"loss": loss, "epochs": 1, "batch_size": 40, "lr": 1e-3}
    labels = y if spec.is_multiclass else torch.nn.functional.one_hot(y)
    if spec.target_type != "values":
        wm.train(config, tmp_path, train=(x, labels), model=network(), quiet=True)
    else:  # distances between predictions and targets have no classes
        with pytest.raises(InputError, match=loss):
            wm.train(config, tmp_path, train=(x, labels), model=network(), quiet=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "stream", "sample_rate": 0.5}, "sample_rate=0.5 belongs to"),
        ({"backend": "sampled", "loss": "triplet"}, "triplet.*backend"),
        ({"backend": "sampled", "sample_rate": 0.1, "label_smoothing": 0.1}, "label.smoothing needs the logits of all"),
        ({"backend": "quick"}, "backend"),
    ],
)
def test_backends_that_do_not_fit_are_refused_in_one_line(items, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        wm.train({**SETTINGS, **changes}, tmp_path, train=items, model=network(), quiet=True)


def test_clipping_counts_sparse_rows_and_the_parts_of_other_ranks():
    dense, rows = (torch.nn.Parameter(torch.zeros(4, 2)) for _ in range(2))
    dense.grad = torch.full((4, 2), 3.0)
    rows.grad = torch.sparse_coo_tensor([[1, 1]], torch.full((2, 2), 2.0), (4, 2), check_invariants=True)
    norm = (8 * 9.0 + 2 * 16.0) ** 0.5  # the two entries of a row add up
    clip_gradients([dense, rows], 1.0, [], lambda value: value)
    assert torch.allclose(dense.grad, torch.full((4, 2), 3.0 / norm), rtol=1e-5)
    assert torch.allclose(rows.grad.to_dense()[1], torch.full((2,), 4.0 / norm), rtol=1e-5)
    rows.grad, dense.grad = torch.full((4, 2), 2.0), torch.full((4, 2), 3.0)
    clip_gradients([dense, rows], 1.0, [rows], lambda value: 2 * value)  # another rank holds as much
    assert torch.allclose(rows.grad, torch.full((4, 2), 2.0 / (8 * 9.0 + 2 * 8 * 4.0) ** 0.5), rtol=1e-5)


@pytest.mark.distributed
def test_a_split_head_resumes_on_another_number_of_processes(tmp_path):
    words = ["train", DATA, VIT, "arcface(s=16, m=0.2)", "--backend", "sharded", "--batch-size", "24", "--quiet"]
    words += ["--augment", "none", "--precision", "64-true", "--schedule", "constant", "--lr", "0.01", "--clip", "2"]
    words += ["--ema", "0.5"]
    assert main([*words, "--epochs", "1", "--out", str(tmp_path / "one")]) == 0
    shutil.copytree(tmp_path / "one", tmp_path / "two", ignore=shutil.ignore_patterns("record.json"))
    resumed = [*words, "--epochs", "2", "--resume", "--out"]
    assert main([*resumed, str(tmp_path / "one")]) == 0
    train_on_ranks([*resumed, str(tmp_path / "two")], tmp_path / "output")
    for name in ("model", "training"):
        one, two = (load_file(tmp_path / run / "checkpoints/last" / f"{name}.safetensors") for run in ("one", "two"))
        assert one.keys() == two.keys()
        for key in one:
            if one[key].is_floating_point():
                assert torch.allclose(one[key], two[key], atol=1e-9), key
    first, second = (json.loads((tmp_path / run / "record.json").read_text()) for run in ("one", "two"))
    assert (first["processes"], second["processes"]) == (1, 2)
    assert first["test"]["loss"] == pytest.approx(second["test"]["loss"], abs=1e-9)
    assert main([*words, "--epochs", "3", "--resume", "--out", str(tmp_path / "two")]) == 0  # and back to one


@pytest.mark.distributed
def test_sampled_classes_of_several_processes_are_split(tmp_path):
    words = ["train", DATA, VIT, "cosface(s=16)", "--backend", "sampled", "--sample-rate", "0.5", "--batch-size", "24"]
    words += ["--augment", "none", "--epochs", "2", "--opt", "sgd", "--quiet", "--out", str(tmp_path / "run")]
    train_on_ranks(words, tmp_path / "output")
    loaded = wm.load(tmp_path / "run")
    assert loaded.model.head.weight.shape == (12, 24)
    assert loaded.record["processes"] == 2


def test_a_model_with_an_objective_of_its_own_takes_no_backend(items, tmp_path):
    model = wm.MarginModel(network(), wm.Objective("cosface", 8, CLASSES))
    with pytest.raises(InputError, match="backend='stream'"):
        wm.train({**SETTINGS, "backend": "stream"}, tmp_path, train=items, model=copy.deepcopy(model), quiet=True)
