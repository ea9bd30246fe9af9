"""Recipes, and the settings they need: held-out identities, probes, freezing, averaging, rates by group."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

import widemargin as wm
from widemargin.cli.main import main
from widemargin.data.images.batches import ClassSampler
from widemargin.data.images.sets import load_images
from widemargin.io.errors import InputError
from widemargin.training.config import TrainConfig
from widemargin.training.inputs import load_inputs
from widemargin.training.knn_probe import knn_accuracy
from widemargin.training.recipes import list_recipes, load_recipe, recipe_config
from widemargin.training.run_files import default_run_folder
from widemargin.training.trainer import Trainer

DATA = "generated(classes=12, per_class=6, size=12, channels=1, test=24)"
SMALL = {"data": DATA, "model": "fast(width=0.125)", "augment": "none", "batch_size": 24, "epochs": 3, "opt": "sgd"}


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_says_what_it_is_and_trains_in_its_cpu_size(name, tmp_path, capsys):
    recipe = load_recipe(name)
    assert "arXiv" in recipe.source
    assert "here" in recipe.expected  # whether it was measured
    assert all((recipe.title, recipe.cost, recipe.departures))
    full = recipe_config(name, data="faces")
    assert full.epochs > 10
    assert main(["train", "--recipe", f"{name}:cpu", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert math.isfinite(record["test"]["loss"])
    assert TrainConfig.read(tmp_path / "run").loss == full.loss


def test_options_change_a_recipe_and_mistakes_are_one_line(tmp_path, capsys):
    changed = recipe_config("arcface_r50:cpu", epochs=1, lr=0.01)
    assert (changed.epochs, changed.lr, changed.momentum) == (1, 0.01, 0.9)
    for words, message in (
        (["--recipe", "arcface_r51:cpu"], "did you mean 'arcface_r50'"),
        (["--recipe", "arcface_r50"], "trains on your images"),
        (["mnist", "--recipe", "arcface_r50", "--margin-loss", "arcface"], "both set many options"),
    ):
        assert main(["train", *words]) == 2
        said = capsys.readouterr().err.strip()
        assert message in said
        assert "\n" not in said
    assert main(["train", "--list-recipes"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name}: {load_recipe(name).title}" in said.splitlines() for name in list_recipes())
    assert "\\n" not in said


# ---------------------------------------------------------------- held-out identities


def test_three_parts_share_no_identity():
    config = TrainConfig(**SMALL, unseen_classes=0.25, val_classes=0.25)
    inputs = load_inputs(config, None)
    parts = [set(part.class_names) for part in (inputs.train, inputs.val, inputs.test)]
    assert [len(part) for part in parts] == [7, 2, 3]
    assert len(set.union(*parts)) == 12
    known = load_inputs(TrainConfig(**SMALL, val_classes=0.25), None)  # a test of the classes that are trained
    assert known.test.class_names == known.train.class_names
    assert set(known.val.class_names).isdisjoint(known.train.class_names)
    whole = load_images(DATA)
    for k in range(len(known.test)):  # every test image kept its class
        same = (whole.test.x == known.test.x[k]).flatten(1).all(1).nonzero()[0, 0]
        assert whole.class_names[whole.test.y[same]] == known.class_names[known.test.y[k]]


@pytest.mark.parametrize("select_by", ["auto", "recall1", "tar", "knn"])
def test_best_is_the_epoch_with_the_best_figure_of_the_held_out_identities(select_by, tmp_path):
    data = "generated(classes=12, per_class=20, size=12, channels=1, test=24, noise=0.6)"
    config = {**SMALL, "data": data, "val_classes": 0.5, "select_by": select_by, "knn_probe": 3, "lr": 0.2}
    run = wm.train({**config, "loss": "cosface(s=16)"}, tmp_path, quiet=True)

    def figure(line):
        if select_by == "tar":
            return line["val"]["tar"]["0.01"] or 0.0
        return line["knn"] if select_by == "knn" else line["val"]["recall1"]

    figures = [figure(line) for line in run.history]
    state = json.loads((tmp_path / "checkpoints/best/state.json").read_text())
    assert state["epoch"] == figures.index(max(figures)) + 1
    assert state["best"] == max(figures)
    assert "top1" in run.record["test"]  # the test is of the classes that were trained


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_classes": 0.2, "val_fraction": 0.2}, "both hold images out"),
        ({"val_classes": 0.2, "select_by": "top1"}, "use recall1 or tar"),
        ({"select_by": "recall1"}, "needs held-out images"),
        ({"select_by": "knn", "val_fraction": 0.2}, "needs a number of neighbours"),
        ({"warmup_epochs": 4.0, "schedule": "cosine"}, "longer than the run"),
        ({"warmup_epochs": 1.0}, "onecycle, which has its own warm-up"),
        ({"average_last": 4}, "more than the 3 epochs"),
        ({"freeze_epochs": 3}, "leaves no epoch"),
        ({"freeze": "layer9"}, "no part 'layer9'; it has bias, blocks"),
        ({"sampling": "balanced", "per_class": 2}, "draws images by their class"),
        ({"device": "cuda:x"}, "device must be auto"),
        ({"device": "tpu"}, "device must be auto"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_before_the_first_step(changes, message, tmp_path):
    with pytest.raises(InputError, match=message):
        wm.train({**SMALL, "loss": "softmax", **changes}, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_device_that_is_not_there_is_said():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InputError, match="no such device"):
        Trainer(TrainConfig(**SMALL, device="cuda"), None)
    assert Trainer(TrainConfig(**SMALL, device="cpu"), None).fabric.device.type == "cpu"


# ---------------------------------------------------------------- sampling, probe


@pytest.mark.parametrize(("power", "wanted"), [(0.0, [20, 20, 20]), (0.5, [35, 16, 9])])
def test_classes_are_drawn_as_often_as_their_weight_says(power, wanted):
    y = torch.tensor([0] * 45 + [1] * 12 + [2] * 3)
    sampler = ClassSampler(len(y), 10, 0, y=y, power=power)
    order = sampler.epoch_indices(4)
    counts = torch.bincount(y[order], minlength=3)
    total = sum(n**power for n in (45, 12, 3))
    assert [abs(int(c) - 60 * n**power / total) <= 1 for c, n in zip(counts, (45, 12, 3), strict=True)] == [True] * 3
    assert (counts - torch.tensor(wanted)).abs().max() <= 1
    for label, size in enumerate((45, 12, 3)):  # each image of a class as often as the others, give or take one
        times = torch.bincount(order[y[order] == label], minlength=60)[y == label]
        assert int(times.max() - times.min()) <= 1
        assert int((times > 0).sum()) == min(size, int(counts[label]))
    assert torch.equal(order, sampler.epoch_indices(4))
    assert not torch.equal(order, sampler.epoch_indices(5))


def test_the_probe_counts_the_votes_of_the_neighbours():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 5, generator=draw), torch.randint(3, (40,), generator=draw)
    queries, labels = torch.randn(20, 5, generator=draw), torch.randint(3, (20,), generator=draw)
    right = 0
    for query, label in zip(queries, labels, strict=True):
        cosines = torch.cosine_similarity(query, x)
        nearest = cosines.argsort(descending=True)[:7]
        votes = [float(torch.exp(cosines[nearest] / 0.07)[y[nearest] == k].sum()) for k in range(3)]
        right += votes.index(max(votes)) == int(label)
    assert knn_accuracy(queries, labels, 7, x, y) == pytest.approx(100 * right / 20)


# ---------------------------------------------------------------- fine-tuning


def test_two_stages_train_the_head_first_and_resume_in_either(tmp_path):
    config = {**SMALL, "loss": "softmax", "freeze_epochs": 2, "freeze": "blocks.0", "embedding_dim": 6, "ckpt_freq": 1}
    wm.train(config, tmp_path / "whole", quiet=True)
    for epochs in (1, 2):  # interrupted within the first stage, and between the two
        wm.train(config, tmp_path / str(epochs), quiet=True, stop_after=epochs)
        wm.train(config, tmp_path / str(epochs), quiet=True, resume=True)
    first, second, third = (
        load_file(tmp_path / f"whole/checkpoints/epoch-000{k}/model.safetensors") for k in (1, 2, 3)
    )
    changed = {name for name in first if not torch.equal(first[name], second[name])}
    assert {name.split(".")[0] for name in changed} == {"backbone", "objective"}
    assert all(name.startswith(("backbone.layers.", "objective.")) for name in changed)  # nor statistics of norms
    later = {name for name in first if not torch.equal(second[name], third[name])}
    assert any(name.startswith("backbone.backbone.blocks.1") for name in later)
    assert not any(name.startswith("backbone.backbone.blocks.0") for name in later)
    for run in ("1", "2"):
        resumed = load_file(tmp_path / run / "checkpoints/last/model.safetensors")
        assert all(torch.equal(resumed[name], third[name]) for name in third)


def test_the_head_learns_at_its_own_rate(tmp_path):
    trainer = Trainer(
        TrainConfig(**{**SMALL, "loss": "softmax", "schedule": "constant", "lr": 0.1, "head_lr_scale": 4.0}), None
    )
    images, y, mix = next(iter(trainer.inputs.batches.iter_epoch(0)))
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    from widemargin.training.optim import set_lr

    set_lr(trainer.optimizer, 0.1)
    trainer.backward(images, y, mix)
    gradients = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    trainer.update()
    decayed = 5e-4
    for name, value in trainer.model.named_parameters():
        if name in gradients:
            rate = 0.4 if name.startswith("objective.") else 0.1
            step = (before[name] - value) / rate / 1.9  # the first step of Nesterov's momentum: 1 + 0.9 gradients
            assert torch.allclose(step, gradients[name] + decayed * before[name], atol=1e-4) or torch.allclose(
                step, gradients[name], atol=1e-4
            )


def test_the_average_of_the_last_epochs_is_a_checkpoint(tmp_path):
    config = {**SMALL, "loss": "softmax", "average_last": 2, "ckpt_freq": 3, "lr": 0.05}
    run = wm.train(config, tmp_path, quiet=True)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "average",
        "epoch-0003",
        "last",
        "last.old",
    ]
    second, last = (load_file(tmp_path / f"checkpoints/{name}/model.safetensors") for name in ("last.old", "last"))
    averaged = wm.load(tmp_path, checkpoint="average")
    for name, value in averaged.model.state_dict().items():
        if value.is_floating_point():
            assert torch.allclose(value, (second[name] + last[name]) / 2, atol=1e-6), name
    assert averaged.evaluate().metrics["loss"] == pytest.approx(run.record["average"]["test"]["loss"])
    assert run.record["average"]["epochs"] == [2, 3]
    assert torch.equal(run.model.state_dict()["objective.parts.softmax.weight"], last["objective.parts.softmax.weight"])


# ---------------------------------------------------------------- everyday life


def test_runs_with_other_options_have_other_folders():
    base = TrainConfig("mnist", "fast", "softmax")
    names = {default_run_folder(base)}
    for name, value in {
        "lr": 0.01,
        "neck": True,
        "backend": "stream",
        "freeze": "conv1",
        "augment_options": {"pad": 2},
        "input_size": 32,
    }.items():
        names.add(default_run_folder(TrainConfig("mnist", "fast", "softmax", **{name: value})))
    assert len(names) == 7
    same = TrainConfig("mnist", "fast", "softmax", epochs=3, device="cpu")  # which a resumed run may change
    assert default_run_folder(same) == default_run_folder(base)
    long = [TrainConfig("mnist", "fast", "softmax", model_options={"x": "y" * 300 + end}) for end in "ab"]
    assert len({default_run_folder(config) for config in long}) == 2
    assert all(len(default_run_folder(config).name) <= 200 for config in long)


def test_a_run_on_triplets_says_what_it_sees(tmp_path, capsys):
    words = ["train", DATA, "fast(width=0.125)", "triplet", "--augment", "none", "--batch-size", "24", "--epochs", "1"]
    assert main([*words, "--per-class", "4", "--out", str(tmp_path / "a")]) == 0
    assert "recall@1 in the batch" in capsys.readouterr().err
    single = "generated(classes=60, per_class=1, size=12, channels=1, test=120)"
    assert main(["train", single, *words[2:], "--out", str(tmp_path / "b")]) == 0
    said = capsys.readouterr().err
    assert "100 % of the anchors without a triplet" in said
    assert "use --per-class" in said
