"""`wm.train` on datasets, arrays and modules of the user's, the `Run` it returns, callbacks, samplers, and mistakes."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import dataset_worker
import widemargin as wm
from rank_processes import call_worker, train_on_ranks
from runs import assert_same, lines
from widemargin.data.images.sets import load_images
from widemargin.models.classifier import find_known_classifier
from widemargin.training.dataset_inputs import GivenObjects
from widemargin.training.model import infer_embedding_dim
from widemargin.training.trainer import Trainer

CONFIG = wm.TrainConfig(loss="arcgrad(s=10)", epochs=2, batch_size=16, lr=0.01)


def draw_vectors(n: int = 120, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes of vectors in 8 dimensions that can be told apart."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return torch.randn(n, 8, generator=generator) + 3.0 * torch.eye(8)[y], y


def make_net(dropout: float = 0.0, seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.BatchNorm1d(16), nn.Linear(16, 5))


X, Y = draw_vectors()


class Dicts(Dataset):
    """Items as mappings with names as labels."""

    def __init__(self, keys: tuple[str, str] = ("image", "label")) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, row):
        return dict(zip(self.keys, (X[row], ["cat", "ant", "bee"][int(Y[row])]), strict=True))


class Noisy(Dataset):
    """Items with noise from all three global generators."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, row):
        noise = 0.1 * (random.random() + np.random.rand()) + 0.1 * torch.randn(8)  # noqa: NPY002
        return X[row] + noise, int(Y[row])


# ---------------------------------------------------------------- data of every kind


@pytest.mark.parametrize(
    ("train", "names"),
    [
        ((X, Y), ("0", "1", "2")),
        ((X.numpy().astype("float64"), Y.numpy()), ("0", "1", "2")),
        ((X, [["cat", "ant", "bee"][k] for k in Y.tolist()]), ("ant", "bee", "cat")),
        ((X, np.array(["cat", "ant", "bee"])[Y.numpy()]), ("ant", "bee", "cat")),
        ((X, (Y * 5 + 3).tolist()), ("3", "8", "13")),
        (TensorDataset(X, Y), ("0", "1", "2")),
        (Subset(TensorDataset(X, Y), range(60)), ("0", "1", "2")),
        (ConcatDataset([TensorDataset(X, Y), Dataset.__new__(Noisy)]), ("0", "1", "2")),
        (Dicts(), ("ant", "bee", "cat")),
        (Dicts(("x", "y")), ("ant", "bee", "cat")),
    ],
    ids=["tensors", "numpy", "names", "numpy names", "numbers", "TensorDataset", "Subset", "Concat", "dicts", "x, y"],
)
def test_data_of_every_kind(train, names, tmp_path):
    run = wm.train(replace(CONFIG, epochs=5), tmp_path / "run", train=train, test=train, model=make_net(), quiet=True)
    assert run.class_names == names
    assert run.record["test"]["top1"] > 80.0  # chance is a third
    assert tuple(run.model.objective.head.class_names) == names
    answer = run.predict(X[0])
    assert answer[0][0] == {"0": "0", "3": "3", "ant": "cat"}[names[0]]
    assert sum(chance for _, chance in answer) == pytest.approx(1.0)


def test_a_dataset_of_real_images_with_a_named_model(data_dir, tmp_path):
    images = load_images("mnist", data_dir)
    few = torch.arange(400)
    x, y = images.train.x[few].float() / 255, images.train.y[few]
    config = replace(CONFIG, epochs=2, batch_size=50, opt="sgd", lr=0.05)
    run = wm.train(
        config, tmp_path / "run", train=(x, y), test=(x, y), model="fast(width=0.125)", quiet=True,
        class_names=images.class_names,
    )  # fmt: skip
    assert run.record["test"]["top1"] > 50.0
    again = wm.load(tmp_path / "run")  # the network has a name: nothing is to be given
    torch.testing.assert_close(again.embed(x[:20]), run.embed(x[:20]))  # in another memory format: not the same bits
    assert again.evaluate(test=(x, y)).metrics["top1"] == run.record["test"]["top1"]


def test_a_module_on_images_by_their_name(data_dir, tmp_path):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(784, 32))
            self.fc = nn.Linear(32, 10)

        def forward(self, x):
            return self.fc(self.body(x))

    config = replace(CONFIG, data="mnist", train_fraction=0.01, batch_size=64, augment="none", epochs=3)
    net = Net()
    with pytest.warns(UserWarning, match="classifier fc"):
        run = wm.train(config, tmp_path / "run", model=net, data_dir=data_dir, quiet=True)
    assert isinstance(net.fc, nn.Identity)
    assert run.record["test"]["top1"] > 50.0
    assert run.config.model == "module:Net"
    images = load_images("mnist", data_dir)
    again = wm.load(tmp_path / "run", model=net)
    assert again.evaluate(data_dir=data_dir).metrics["top1"] == run.record["test"]["top1"]
    assert again.predict(images.test.x[:2])[1][0][0] in images.class_names
    assert torch.equal(again.embed(images.test.x[0]), again.embed(images.test.x[:1].float() / 255)) or torch.allclose(
        again.embed(images.test.x[0]), again.embed(images.test.x[:1].float() / 255), atol=1e-5
    )


def test_tokens_stay_whole_numbers(tmp_path):
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(30, 8)

        def forward(self, tokens):
            return self.table(tokens).mean(1)

    tokens = (
        torch.randint(0, 10, (90, 7), generator=torch.Generator().manual_seed(0)) + 10 * (torch.arange(90) % 3)[:, None]
    )
    y = torch.arange(90) % 3
    run = wm.train(
        replace(CONFIG, epochs=20), tmp_path / "run", train=(tokens, y), test=(tokens, y), model=Bag(), quiet=True
    )
    assert run.record["test"]["top1"] > 95.0
    assert run.input_spec["dtype"] == "int64"
    assert torch.equal(wm.load(tmp_path / "run", model=Bag()).embed(tokens), run.embed(tokens))


def test_items_of_several_lengths_with_a_collate_fn(tmp_path):
    class Ragged(Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, row):
            return torch.full((2 + row % 4, 8), float(row % 3)), row % 3

    def pad(items):
        x = torch.stack([x.mean(0) for x, _ in items])
        return x, [y for _, y in items]

    run = wm.train(CONFIG, tmp_path / "run", train=Ragged(), model=make_net(), collate_fn=pad, quiet=True)
    assert run.record["test"] == {}
    with pytest.raises(wm.InputError, match="differ in shape"):
        wm.train(CONFIG, tmp_path / "no", train=Ragged(), model=make_net(), quiet=True)


def test_held_out_and_fewer_items(tmp_path):
    config = replace(CONFIG, val_fraction=0.25, train_fraction=0.5, batch_size=9)
    run = wm.train(config, tmp_path / "run", train=(X, Y), test=(X, Y), model=make_net(), quiet=True)
    trainer = Trainer(run.config, None, given=GivenObjects(train=(X, Y), model=make_net()))
    assert [len(trainer.inputs.train), len(trainer.inputs.val)] == [45, 30]
    assert run.record["val"] == run.history[-1]["val"]["top1"]
    assert (tmp_path / "run" / "checkpoints" / "best").is_dir()


def test_pk_batches_of_given_labels(tmp_path):
    config = replace(CONFIG, per_class=4, batch_size=12, loss="triplet")
    trainer = Trainer(config, None, given=GivenObjects(train=(X, Y), model=make_net()))
    for _, y, _ in trainer.inputs.batches.iter_epoch(0):
        assert y.bincount().tolist() == [4, 4, 4]
    run = wm.train(config, tmp_path / "run", train=(X, Y), test=(X, Y), model=make_net(), quiet=True)
    assert run.record["test"]["recall1"] > 50.0


# ---------------------------------------------------------------- models


def import_timm():
    """timm, whatever build of torchvision there is."""
    from widemargin.models import torchvision_compat  # noqa: F401

    return pytest.importorskip("timm")


def test_the_classifier_that_is_surely_one():
    net = nn.Sequential()
    net.body, net.fc = nn.Linear(8, 4), nn.Linear(4, 6)
    assert find_known_classifier(net, 6).paths == ("fc",)
    assert find_known_classifier(net, 3) is None  # an embedding of 6 numbers, for all we know
    timm = import_timm()
    assert find_known_classifier(timm.create_model("resnet10t", num_classes=1000), 3).paths == ("fc",)
    assert find_known_classifier(timm.create_model("resnet10t", num_classes=0), 3) is None


def test_the_width_is_found_without_changing_the_model():
    net = make_net(dropout=0.5)
    net[3].eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    state = torch.get_rng_state()
    assert infer_embedding_dim(net, X[:2]) == 5
    assert [module.training for module in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("at", "width", "said"), [("auto", 3, "taken as embeddings"), (None, 3, None), ("1", 16, None)]
)
def test_a_last_layer_without_a_usual_name(at, width, said, tmp_path, recwarn):
    net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3))
    run = wm.train(CONFIG, tmp_path / "run", train=(X, Y), model=net, at=at, quiet=True)
    assert run.embed(X[:2]).shape == (2, width)
    found = [str(warning.message) for warning in recwarn if "model:" in str(warning.message)]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_margin_model_is_taken_as_it_is(tmp_path):
    model = wm.attach(nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3)), "cosface(s=16)", num_classes=3, at="1")
    run = wm.train(CONFIG, tmp_path / "run", train=(X, Y), test=(X, Y), model=model, quiet=True)
    assert torch.equal(run.model.backbone[0].weight, model.backbone[0].weight)
    assert torch.equal(run.model.head.weight, model.head.weight)
    with pytest.raises(wm.InputError, match="3 classes, the data have 2"):
        wm.train(CONFIG, tmp_path / "two", train=(X, Y % 2), model=model, quiet=True)


def test_an_embedding_of_another_length(tmp_path):
    run = wm.train(replace(CONFIG, embedding_dim=2), tmp_path / "run", train=(X, Y), model=make_net(), quiet=True)
    assert run.embed(X).shape == (120, 2)
    assert torch.equal(wm.load(tmp_path / "run", model=make_net()).embed(X), run.embed(X))


def test_a_lazy_and_a_three_dimensional_module(tmp_path):
    net = nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten(), nn.LazyLinear(4))
    x = torch.randn(60, 1, 4, 4, 4)
    run = wm.train(CONFIG, tmp_path / "run", train=(x, torch.arange(60) % 2), model=net, quiet=True)
    assert run.embed(x[0]).shape == (1, 4)


# ---------------------------------------------------------------- resuming


class StopAt(wm.Callback):
    """Asks to stop after a step."""

    def __init__(self, step: int) -> None:
        self.at = step

    def on_step_end(self, trainer, metrics):
        if metrics["step"] == self.at:
            trainer.stop()


SGD, ADAMW = {"opt": "sgd"}, {"opt": "adamw", "ema": 0.9, "schedule": "cosine"}
HELD_OUT = {"loss": "adacos", "val_fraction": 0.25, "schedule": "plateau", "ema": 0.5}
PER_CLASS = {"per_class": 4, "loss": "triplet", "batch_size": 12}
MEMORY = {"per_class": 4, "loss": "xbm(supcon, size=30)", "batch_size": 12}


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        *((SGD, "arrays"), (ADAMW, "noisy"), (HELD_OUT, "noisy"), (PER_CLASS, "arrays"), (MEMORY, "noisy")),
        # Processes that load items are started anew for every call.
        pytest.param(HELD_OUT, "workers", marks=pytest.mark.slow),
        *(pytest.param(changes, "workers", marks=pytest.mark.exhaustive) for changes in (SGD, ADAMW, PER_CLASS)),
        *(pytest.param(changes, "noisy", marks=pytest.mark.exhaustive) for changes in (SGD, PER_CLASS)),
        *(pytest.param(changes, "arrays", marks=pytest.mark.exhaustive) for changes in (ADAMW, HELD_OUT)),
    ],
    ids=str,
)
def test_a_resumed_run_is_the_uninterrupted_one(changes, data, tmp_path):
    """Four epochs are two and two, and the same left in the middle of an epoch; with dropout and random items."""
    config = replace(CONFIG, epochs=4, **changes)
    given = {"train": (X, Y) if data == "arrays" else Noisy(), "workers": 2 * (data == "workers"), "quiet": True}
    wm.train(config, tmp_path / "whole", model=make_net(0.3), **given)
    wm.train(config, tmp_path / "parts", model=make_net(0.3), stop_after=2, **given)
    torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    unfinished = wm.train(config, tmp_path / "parts", model=make_net(0.3, seed=7), stop_after=1, resume=True, **given)
    assert unfinished.record == {}
    run = wm.train(config, tmp_path / "parts", model=make_net(0.3, seed=8), resume=True, **given)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert run.record["command"].startswith("in Python: widemargin.train(TrainConfig(")
    if data == "workers" and changes is HELD_OUT:
        return  # in .ci/run, where starting processes takes most of its time
    middle = wm.train(config, tmp_path / "middle", model=make_net(0.3), callbacks=[StopAt(11)], **given)
    state = json.loads((tmp_path / "middle" / "checkpoints" / "last" / "state.json").read_text())
    assert (middle.record, state["step"]) == ({}, 11)
    assert 0 < state["mid_epoch"]["step"] < 11
    wm.train(config, tmp_path / "middle", model=make_net(0.3, seed=9), resume=True, **given)
    assert_same(tmp_path / "whole", tmp_path / "middle")


class Counting(wm.Callback):
    """Counts, and remembers."""

    def __init__(self) -> None:
        self.steps, self.losses = 0, []

    def on_step_end(self, trainer, metrics):
        self.steps += 1
        assert isinstance(metrics["loss"], torch.Tensor)
        assert not metrics["loss"].requires_grad
        assert metrics["step"] == trainer.step

    def on_epoch_end(self, trainer, metrics):
        self.losses.append(metrics["loss"])
        assert metrics["epoch"] == trainer.epoch

    def state_dict(self):
        return {"steps": self.steps, "losses": self.losses}

    def load_state_dict(self, state):
        self.steps, self.losses = state["steps"], state["losses"]


def test_callbacks_count_and_remember(tmp_path):
    given = {"train": (X, Y), "quiet": True}
    first, second = Counting(), Counting()
    wm.train(CONFIG, tmp_path / "run", model=make_net(), callbacks=[first], stop_after=1, **given)
    assert first.steps == 7  # of 16 items each
    run = wm.train(CONFIG, tmp_path / "run", model=make_net(), callbacks=[second], resume=True, **given)
    assert second.steps == 14
    assert second.losses == [line["loss"] for line in run.history]

    class Bare:
        seen = 0

        def on_epoch_end(self, trainer, metrics):
            self.seen += 1
            trainer.stop()

    bare = Bare()
    stopped = wm.train(CONFIG, tmp_path / "stopped", model=make_net(), callbacks=[bare], **given)
    assert (bare.seen, stopped.record, len(stopped.history)) == (1, {}, 1)
    assert "1 of 2 epochs" in repr(stopped)
    with pytest.warns(UserWarning, match="state_dict.*Bare"):
        wm.train(CONFIG, tmp_path / "stopped", model=make_net(), callbacks=[bare], resume=True, **given)
    with pytest.raises(wm.InputError, match="give the same callbacks"):
        wm.train(CONFIG, tmp_path / "run", model=make_net(), callbacks=[bare], resume=True, **given)
    for wrong in (3, Counting):
        with pytest.raises(wm.InputError, match="must be an object with"):
            wm.train(CONFIG, tmp_path / "none", model=make_net(), callbacks=[wrong], **given)


def test_frozen_layers_stay_as_they_are(tmp_path):
    def frozen_net() -> nn.Sequential:
        net = make_net(0.3)
        net[0].requires_grad_(False)
        return net

    config = replace(CONFIG, opt="adamw", ema=0.9)
    given = {"train": (X, Y), "quiet": True}
    run = wm.train(config, tmp_path / "whole", model=frozen_net(), **given)
    wm.train(config, tmp_path / "parts", model=frozen_net(), stop_after=1, **given)
    wm.train(config, tmp_path / "parts", model=frozen_net(), resume=True, **given)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert torch.equal(run.model.backbone[0].weight, make_net()[0].weight)
    assert not torch.equal(run.model.backbone[4].weight, make_net()[4].weight)


def test_a_resumed_run_needs_only_its_folder(tmp_path):
    given = {"train": (X, Y), "model": make_net(), "quiet": True}
    wm.train(replace(CONFIG, schedule="constant"), tmp_path / "run", stop_after=1, **given)
    run = wm.train(out=tmp_path / "run", resume=True, **given)
    assert len(run.history) == 2
    longer = wm.train({"epochs": 3}, tmp_path / "run", resume=True, **given)
    assert [line["epoch"] for line in longer.history] == [1, 2, 3]
    with pytest.raises(wm.InputError, match=r"holds another run \(lr is 0.01, not 0.5\)"):
        wm.train({"lr": 0.5}, tmp_path / "run", resume=True, **given)


def test_only_the_same_dataset_goes_on(tmp_path):
    given = {"model": make_net(), "quiet": True, "stop_after": 1}
    wm.train(CONFIG, tmp_path / "run", train=(X, Y), **given)
    for other in ((X[:60], Y[:60]), (X, Y.flip(0)), (X + 1.0, Y), (X, (2 - Y))):
        with pytest.raises(wm.InputError, match=r"another dataset \(other (number of items|labels|items)\)"):
            wm.train(CONFIG, tmp_path / "run", train=other, resume=True, **given)
    with pytest.raises(wm.InputError, match="holds another run"):
        wm.train(CONFIG, tmp_path / "run", train=Noisy(), resume=True, **given)
    with pytest.raises(wm.InputError, match="already contains a run"):
        wm.train(CONFIG, tmp_path / "run", train=(X, Y), **given)


def test_randomness_of_a_datasets_own_is_said(tmp_path):
    class Own(Dataset):
        def __init__(self):
            self.generator = torch.Generator()

        def __len__(self):
            return len(Y)

        def __getitem__(self, row):
            return X[row] + 0.1 * torch.randn(8, generator=self.generator), int(Y[row])

    wm.train(CONFIG, tmp_path / "run", train=Own(), model=make_net(), quiet=True, stop_after=1)
    with pytest.warns(UserWarning, match="its own random generator"):
        wm.train(CONFIG, tmp_path / "run", train=Own(), model=make_net(), quiet=True, resume=True)


# ---------------------------------------------------------------- samplers


class Stateful:
    """Goes round the dataset, and knows where it is."""

    def __init__(self) -> None:
        self.start = 0

    def __len__(self) -> int:
        return 64

    def __iter__(self):
        rows = [(self.start + k) % len(Y) for k in range(64)]
        self.start = (self.start + 64) % len(Y)
        return iter(rows)

    def state_dict(self):
        return {"start": self.start}

    def load_state_dict(self, state):
        self.start = state["start"]


SAMPLERS = {
    "random": lambda: RandomSampler(range(120)),
    "generator": lambda: RandomSampler(range(120), generator=torch.Generator().manual_seed(3)),
    "weighted": lambda: WeightedRandomSampler([1.0] * 120, 64),
    "batches": lambda: BatchSampler(RandomSampler(range(120)), 10, drop_last=False),
    "function": lambda: lambda epoch: [(epoch + k) % 120 for k in range(48)],
    "list": lambda: [[0, 1, 2, 3], [4, 5, 6]],
    "stateful": Stateful,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(name, tmp_path):
    given = {"train": TensorDataset(X, Y), "quiet": True}
    config = replace(CONFIG, epochs=3)
    wm.train(config, tmp_path / "whole", model=make_net(), sampler=SAMPLERS[name](), **given)
    steps = {"random": 7, "generator": 7, "weighted": 4, "batches": 12, "function": 3, "list": 2, "stateful": 4}[name]
    assert [line["step"] for line in lines(tmp_path / "whole")] == [steps, 2 * steps, 3 * steps]
    wm.train(
        config, tmp_path / "parts", model=make_net(), sampler=SAMPLERS[name](), callbacks=[StopAt(steps + 1)], **given
    )
    wm.train(config, tmp_path / "parts", model=make_net(), sampler=SAMPLERS[name](), resume=True, **given)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("sampler", "changes", "said"),
    [
        (DistributedSampler(range(120), 2, 0), {}, "over the whole dataset"),
        ([5, 500] * 20, {}, "row 500 is outside"),
        ([], {}, "yields no rows"),
        ([1, 2], {}, "fewer than a batch of 16"),
        (3, {}, "with __iter__ and __len__"),
        (iter([1, 2]), {}, "with __iter__ and __len__"),
        (["a"] * 20, {}, "not a row of the dataset"),
        ([1] * 20, {"per_class": 4}, "per_class both choose"),
        ([1] * 20, {"val_fraction": 0.5}, "val instead of val_fraction"),
    ],
)  # fmt: skip
def test_samplers_that_are_none(sampler, changes, said, tmp_path):
    with pytest.raises(wm.InputError, match=said):
        wm.train(
            replace(CONFIG, **changes), tmp_path / "run", train=(X, Y), model=make_net(), sampler=sampler, quiet=True
        )


# ---------------------------------------------------------------- several processes


@pytest.mark.distributed
def test_two_processes_train_on_the_batches_of_one(tmp_path):
    """Each has its part of a batch, also of a sampler's; a stop on one is a stop on both."""
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
    dataset_worker.main(str(tmp_path / "one"))
    train_on_ranks([dataset_worker.__name__, str(tmp_path / "two")], tmp_path / "output", entry_point=call_worker)
    for name in ("plain", "sampler"):
        one, two = (torch.load(tmp_path / place / f"{name}.pt") for place in ("one", "two"))
        assert one.pop("top1") == two.pop("top1") > 50.0
        for key, value in one.items():
            torch.testing.assert_close(two[key], value, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- mistakes


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Lying(Dataset):
    """Lists other labels than its items have."""

    def __init__(self) -> None:
        self.targets = Y.tolist()

    def __len__(self):
        return len(Y)

    def __getitem__(self, row):
        return X[row], int(Y[row]) if row in (0, len(Y) - 1) else 0


def nan_at(row: int) -> torch.Tensor:
    x = X.clone()
    x[row, 3] = float("nan")
    return x


class Tuple(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x), x


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train": Stream()}, "map-style"),
        ({"train": (X[:0], Y[:0])}, "the dataset is empty"),
        ({"train": (X, Y[:5])}, "120 rows, y has 5 labels"),
        ({"train": (X, Y.float() + 0.5)}, "is fractional"),
        ({"train": (X, nn.functional.one_hot(Y)[None])}, "one label per item"),
        ({"train": (X, Y * 0)}, "two classes are needed"),
        ({"train": (X, [None, *Y.tolist()[1:]])}, "a label is missing"),
        ({"train": (X, ["a", *Y.tolist()[1:]])}, "several types"),
        ({"train": (nan_at(7), Y)}, "item 7 contains NaN"),
        ({"train": [(x, int(k)) for x, k in zip(nan_at(7), Y, strict=True)]}, "item 7 contains NaN"),
        ({"train": (X.to(torch.uint8), Y)}, "X is uint8; convert it to float"),
        ({"train": (X[:, 0], Y)}, r"pass rows \[N, D\]"),
        ({"train": "cifar10"}, "a str is not a dataset"),
        ({"train": TensorDataset(X, Y, Y)}, "TensorDataset of 3 tensors"),
        ({"train": [(X[0],)] * 20}, r"not \(x, y\)"),
        ({"train": [{"pixels": X[0], "label": 1}] * 20}, "has the keys pixels, label"),
        ({"train": [("text", 1), ("more", 0)] * 20}, "not a tensor or numeric array"),
        ({"train": Lying()}, "the same label for an item"),
        ({"train": (X, Y), "test": (X, Y + 1)}, "not one of the 3 classes of train"),
        ({"train": (X, Y), "val": (X, ["a"] * 120)}, "not a class number"),
        ({"train": (X, Y), "test": (X[:, :5], Y)}, r"items have the shape \[5\], but those of train \[8\]"),
        ({"train": (X[:, :5], Y)}, r"does not take inputs of \[2, 5\]"),
        ({"train": (X, Y), "model": Tuple()}, "returns a tuple"),
        ({"train": (X, Y), "model": 3}, "neither an nn.Module"),
        ({"train": (X, Y), "model": "resnet18"}, r"images \[C, H, W\]"),
        ({"train": (X, Y), "at": "nowhere"}, "no module 'nowhere'"),
        ({"train": (X, Y), "class_names": ["a", "b"]}, "not one of the 2 classes"),
        ({"train": (X, Y), "class_names": ["a", "b", "a"]}, "same name"),
        ({"train": (X, Y), "workers": -1}, "workers must be"),
        ({"test": (X, Y)}, "test requires train"),
        ({"train": (X, Y), "config": {"losss": "arcface"}}, "did you mean 'loss'"),
        ({"train": (X, Y), "config": 3}, "a TrainConfig or a mapping"),
        ({"train": (X, Y), "config": {"unseen_classes": 0.5}}, "unseen_classes is only for"),
        ({"train": (X, Y), "config": {"augment_options": {"pad": 2}}}, "is not augmented"),
        ({"train": (X, Y), "config": {"batch_size": 500, "per_class": 5}}, "a batch needs 100 classes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_one_line(given, said, tmp_path):
    given = {"config": {"batch_size": 16, "epochs": 1}, "model": make_net(), **given}
    config = given.pop("config")
    with pytest.raises(wm.InputError, match=said) as refused:
        wm.train(config, tmp_path / "run", quiet=True, **given)
    assert "\n" not in str(refused.value)


def test_a_mistake_in_a_worker_is_the_same_line(tmp_path):
    items = [(x, int(k)) for x, k in zip(X, Y, strict=True)]
    items[40] = (X[0, :3], int(Y[40]))
    for workers in (0, 2):
        with pytest.raises(wm.InputError, match=r"train: items differ in shape, .*pass collate_fn$"):
            wm.train(CONFIG, tmp_path / f"{workers}", train=items, model=make_net(), workers=workers, quiet=True)


# ---------------------------------------------------------------- the run that comes back


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api") / "run"
    return wm.train(
        replace(CONFIG, ema=0.9, loss="arcface(s=10)"), folder, train=(X, Y), test=(X, Y), model=make_net(), quiet=True
    )


def test_a_run_shows_itself(run):
    assert "arcface(s=10)" in repr(run)
    assert f"top-1 {run.record['test']['top1']:.2f} %" in repr(run)
    assert str(run.folder) in repr(run)
    html = run._repr_html_()
    assert "<table" in html
    assert "<svg" in html
    assert [line["epoch"] for line in run.history] == [1, 2]
    odd = replace(run, config=replace(run.config, name=None, data="<script>"))
    assert "<script>" not in odd._repr_html_()


def test_the_averaged_weights_come_back(run):
    loaded = wm.load(run.folder, model=make_net(seed=3))
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, run.model.state_dict()[name]), name
    assert run.evaluate(test=(X, Y)).metrics["loss"] == run.record["test"]["loss"]
    assert loaded.record["test"] == run.record["test"]


def test_evaluations(run, tmp_path):
    found = wm.evaluate(run, test=(X, Y))
    assert found.metrics["top1"] == run.record["test"]["top1"]
    assert str(found).splitlines()[0] == f"top-1 {found.metrics['top1']:.2f} %, top-5 100.00 %"
    assert json.loads(found.to_json(tmp_path / "e.json"))["checkpoint"] == "last"
    assert "Confusion" in found.to_html(tmp_path / "e.html")
    assert "<table" in found._repr_html_()
    near = run.evaluate(test=(X, Y), protocol="knn", neighbours=3)
    assert near.metrics["k"] == 3
    assert near.protocol == "knn"
    assert "3 nearest neighbours" in near.to_html()
    for wrong, said in (
        ({"protocol": "kmn"}, "did you mean 'knn'"),
        ({"ways": 0}, "ways must be a whole number of at least 1"),
    ):
        with pytest.raises(wm.InputError, match=said):
            wm.evaluate(run, test=(X, Y), **wrong)
    assert run.evaluate().metrics == run.evaluate(test=(X, Y)).metrics
    with pytest.raises(wm.InputError, match="pass test items"):
        wm.load(run.folder, model=make_net()).evaluate()
    with pytest.raises(wm.InputError, match="did you mean 'ways'"):
        run.evaluate(test=(X, Y), way=3)


def test_embeddings_of_every_kind(run):
    whole = run.embed(X)
    assert torch.equal(run.embed(X.numpy()), whole)
    assert torch.equal(run.embed(TensorDataset(X, Y)), whole)
    assert torch.equal(run.embed(Dicts()), whole)
    assert torch.equal(run.embed([(x, 0) for x in X]), whole)
    assert torch.allclose(run.embed(X, batch_size=7), whole, atol=1e-6)
    assert torch.allclose(run.embed(X[3]), whole[3:4], atol=1e-6)
    with pytest.raises(wm.InputError, match=r"have the shape \[3\], the run was trained on \[8\]"):
        run.embed(X[:, :3])
    with pytest.raises(wm.InputError, match="not a file"):
        run.embed("picture.png")
    with pytest.raises(wm.InputError, match="no images to embed"):
        run.embed(X[:0])


def test_predictions_and_rejection(run):
    found = run.predict(X[:4], top=2)
    assert [len(each) for each in found] == [2, 2, 2, 2]
    assert run.predict(X[0])[0][1] >= run.predict(X[0])[1][1]
    rejected = run.predict(X[0], reject_below=1.0)
    assert rejected.is_unknown
    assert -1.0 <= rejected.cosine < 1.0
    assert not run.predict(X[0], reject_below=-1.0).is_unknown
    assert run.rejection_threshold().cosine is None
    for wrong in ({"reject_below": 2.0}, {"target_far": 0.1}, {"reject_below": 0.1, "target_far": 0.1}):
        with pytest.raises(wm.InputError):
            run.rejection_threshold(**wrong)
    with pytest.raises(wm.InputError, match="top must be at least 1"):
        run.predict(X, top=0)


def test_verification(run):
    same = run.verify(X[0], X[0], threshold=0.9)
    assert same
    assert same.cosine == pytest.approx(1.0)
    assert str(same).startswith("the same: cosine 1.0000")
    assert not run.verify(X[0], -X[0], threshold=0.999)
    assert run.verify(X[0], X[0]).why == "1 % of different pairs pass"
    with pytest.raises(wm.InputError, match="pass threshold"):
        wm.load(run.folder, model=make_net()).verify(X[0], X[1])
    with pytest.raises(wm.InputError, match="cosine from -1 to 1"):
        run.verify(X[0], X[1], threshold=3.0)


def test_exports_and_kinds(run, tmp_path):
    lines_ = run.export(hub=tmp_path / "hub", safetensors=tmp_path / "w.safetensors")
    assert len(lines_) == 2
    metadata = json.loads((tmp_path / "hub" / "widemargin.json").read_text())
    assert metadata["kind"] == "run"
    assert 'load("this folder", model=my_module)' in (tmp_path / "hub" / "README.md").read_text()
    assert torch.equal(wm.load(tmp_path / "hub", model=make_net()).embed(X), run.embed(X))
    with pytest.raises(wm.InputError, match=r"load\(folder, model=my_module\)"):
        wm.load(tmp_path / "hub")
    with pytest.raises(wm.InputError, match="weights belong to another model"):
        wm.load(tmp_path / "hub", model=nn.Linear(8, 3))
    (tmp_path / "hub" / "widemargin.json").write_text(json.dumps({**metadata, "kind": "cake"}))
    with pytest.raises(wm.InputError, match="unknown kind 'cake'; this version loads gallery, run"):
        wm.load(tmp_path / "hub")
    del metadata["kind"]  # as older versions wrote it
    (tmp_path / "hub" / "widemargin.json").write_text(json.dumps(metadata))
    assert wm.load(tmp_path / "hub", model=make_net()).class_names == run.class_names
    with pytest.raises(wm.InputError, match="no output given"):
        run.export()


def test_an_onnx_file_of_vectors(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    run.export(onnx=tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {"images": X[:3].numpy()})[0]
    assert np.allclose(found, run.embed(X[:3], normalize=False).numpy(), atol=1e-5)
    assert json.loads((tmp_path / "m.json").read_text())["input"]["shape"] == ["batch", 8]


def test_a_report(run, tmp_path):
    assert "arcface" in wm.report(run, tmp_path / "r.html").path.read_text()
    assert wm.report([run.folder], tmp_path / "r.md", images=False).path.exists()


def test_the_command_of_such_a_run_says_what_to_do(run, capsys):
    from widemargin.cli.main import main

    assert main(["evaluate", str(run.folder)]) == 2
    assert "model=my_module" in capsys.readouterr().err


# ---------------------------------------------------------------- the range test


def test_a_range_test_on_a_module_leaves_it_alone(tmp_path):
    net = make_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = wm.find_lr({"batch_size": 16, "loss": "softmax"}, train=(X, Y), model=net, steps=40, quiet=True)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert found.suggestion is not None
    assert found.suggested_config.lr == found.suggestion
    assert f"{found.suggestion:g}" in repr(found)
    assert found._repr_html_().startswith("<svg")
    assert json.loads(found.to_json(tmp_path / "lr.json"))["run"]["model"] == "module:Sequential"
    assert found.to_svg(tmp_path / "lr.svg") == (tmp_path / "lr.svg").read_text()
    assert len(found.table(5)) in (5, 6)


# ---------------------------------------------------------------- what stays as it was


def test_a_run_is_not_changed_by_what_is_trained_after_it(tmp_path):
    net = make_net()
    first = wm.train(CONFIG, tmp_path / "a", train=(X, Y), test=(X, Y), model=net, quiet=True)
    before = first.evaluate().metrics
    wm.train(replace(CONFIG, lr=0.1, seed=3), tmp_path / "b", train=(X, Y), model=net, quiet=True)
    assert not torch.equal(net[0].weight, first.model.backbone[0].weight)
    assert first.evaluate().metrics == before
    kept = net[0].weight.detach().clone()
    assert wm.load(tmp_path / "a", model=net).evaluate(test=(X, Y)).metrics == before
    assert torch.equal(net[0].weight, kept)
    assert wm.evaluate(tmp_path / "a", model=net, test=(X, Y)).metrics == before


def test_random_numbers_of_the_caller_go_on(tmp_path):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    wm.train(CONFIG, tmp_path / "run", train=(X, Y), model=make_net(), quiet=True)
    state = torch.get_rng_state()
    wm.find_lr(CONFIG, train=(X, Y), model=make_net(), steps=12, quiet=True)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), wanted)


def test_an_epoch_is_kept_where_a_callback_fails(tmp_path):
    class Failing:
        def on_epoch_end(self, trainer, metrics):
            raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        wm.train(CONFIG, tmp_path / "run", train=(X, Y), model=make_net(), callbacks=Failing(), quiet=True)
    run = wm.train(CONFIG, tmp_path / "run", train=(X, Y), model=make_net(), resume=True, quiet=True)
    assert [line["epoch"] for line in run.history] == [1, 2]
    whole = wm.train(CONFIG, tmp_path / "whole", train=(X, Y), model=make_net(), quiet=True)
    assert torch.equal(run.model.backbone[0].weight, whole.model.backbone[0].weight)


def test_notes_on_what_misleads(tmp_path):
    with pytest.warns(UserWarning, match="ema=0.9999.*10,000 steps"):
        wm.train(replace(CONFIG, ema=0.9999), tmp_path / "a", train=(X, Y), model=make_net(), quiet=True)
    with pytest.warns(UserWarning, match="there is no checkpoint to resume from"):
        wm.train(CONFIG, tmp_path / "b", train=(X, Y), model=make_net(), resume=True, quiet=True)
    net = torch.nn.Sequential()
    net.body, net.fc = torch.nn.Linear(8, 6), torch.nn.Linear(6, 1000)
    with pytest.warns(UserWarning, match="1000 outputs of its layer fc.*at='fc'"):
        wm.train(CONFIG, tmp_path / "c", train=(X, Y), model=net, quiet=True)
    with pytest.raises(wm.InputError, match="verify compares two images, got 6"):
        wm.load(tmp_path / "b", model=make_net()).verify(X[:3], X[3:6], threshold=0.5)
