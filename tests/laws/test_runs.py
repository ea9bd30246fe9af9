"""The law of whole trainings: under any options, a run done twice and a run that was killed and resumed are one run.

Weights, averages, moments, counters, the log and the record are compared to the last bit. A trial draws options that go
together; its number is its seed, so a trial that fails is one that can be run again.
"""

import os
import random
import signal
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from stress.commands import CommandProcess, run_command
from stress.trainings import difference
from widemargin.io.errors import StoppedError
from widemargin.training.config import OPTIMIZERS, PRECISIONS, SCHEDULES, TrainConfig
from widemargin.training.train import train
from widemargin.training.trainer import Trainer

CLASSES, EACH, SIDE = 8, 9, 12
VIT = "vit_tiny_patch16_224(patch_size=4, depth=1, embed_dim=24, num_heads=2)"
HEADS = (
    "arcgrad(s=10)",
    "arcface(s=learnable(12), m=warmup(0, 0.3, steps=6))",
    "adacos",
    "adaacos",
    "softmax",
    "cosface(s=cosine(20, 8, steps=10), m=0.2)",
    "softmax + 0.02*center",
    "arcface(s=12, m=0.2) + 0.1*triplet(mining=distance)",
)
BARE = ("triplet(mining=semihard)", "triplet(mining=pool)", "contrastive", "cross_entropy", "xbm(supcon, size=30)")


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Eight classes of noisy colours as files, with a test part."""
    root = tmp_path_factory.mktemp("data") / "images"
    draws = torch.Generator().manual_seed(0)
    looks = torch.randint(200, (CLASSES, 3), generator=draws)
    for part, count in (("train", EACH), ("test", 3)):
        for k in range(CLASSES):
            place = root / part / f"class{k}"
            place.mkdir(parents=True)
            for index in range(count):
                noise = torch.randint(56, (SIDE + index % 3, SIDE, 3), generator=draws)
                Image.fromarray((looks[k] + noise).to(torch.uint8).numpy()).save(place / f"{index}.png")
    return root


def draw_augment(draw: random.Random) -> dict[str, Any]:
    """An augmentation by name and options; with a scale the files are decoded anew for every batch."""
    options: dict[str, Any] = {}
    name = draw.choice(("none", "paper", "paper", "fast", "seed"))
    if name in ("none", "paper"):
        for option, values in (
            ("flip", ("none", "random", "alternating")),
            ("erase", (0.0, 0.5)),
            ("mixup", (0.0, 0.8)),
            ("cutmix", (0.0, 1.0)),
            ("mix_each", (False, True)),
            ("scale", (None, None, (0.3, 1.0))),
            ("interpolation", ("bilinear", "bicubic")),
        ):
            if draw.random() < 0.4:
                options[option] = draw.choice(values)
    return {"augment": name, "augment_options": options}


def draw_config(draw: random.Random, data: str) -> TrainConfig:
    """Options that go together; each is at its usual value about half of the time."""

    def choose(usual: Any, *others: Any) -> Any:
        return usual if draw.random() < 0.4 else draw.choice(others)

    values: dict[str, Any] = draw_augment(draw)
    loss = draw.choice(HEADS) if draw.random() < 0.75 else draw.choice(BARE)
    mixes = values["augment"] == "seed" or {"mixup", "cutmix"} & set(values["augment_options"])
    if loss not in HEADS[:-2] and loss != "cross_entropy" and mixes:  # pairs and centres know no halves of a class
        values = {"augment": "paper", "augment_options": {"flip": "random", "erase": 0.5}}
    pairs = any(name in loss for name in ("triplet", "contrastive", "xbm"))
    per_class = draw.choice((2, 3)) if pairs or draw.random() < 0.25 else 0
    opt = draw.choice(OPTIMIZERS)
    values |= {
        "data": data,
        "loss": loss,
        "model": VIT if draw.random() < 0.2 else "fast(width=0.125)",
        "opt": opt,
        "lr": 0.05 if opt == "sgd" else 0.005,
        "input_size": SIDE,
        "batch_size": 12,
        "epochs": draw.choice((2, 3)),
        "seed": draw.randrange(2**40),
        "per_class": per_class,
        "repeated_augmentation": 1 if per_class else choose(1, 2, 3),
        "precision": draw.choice(PRECISIONS[:2] + PRECISIONS[3:]),  # fp16 is torch's on GPUs only
        "ema": choose(0.0, 0.5, 0.9),
        "accumulate": choose(1, 2, 3),
        "schedule": draw.choice(SCHEDULES),
        "warmup_epochs": choose(0.0, 0.5, 1.5),
        "unseen_classes": choose(0.0, 0.25, 0.5),
        "val_fraction": choose(0.0, 0.2),
        "train_fraction": choose(1.0, 0.8),
        "label_smoothing": choose(0.0, 0.1) if loss in HEADS[:-2] else 0.0,
        "clip": choose(0.0, 1.0),
        "momentum": choose(0.9, 0.0),
        "embedding_dim": choose(0, 16),
        "neck": draw.random() < 0.15,
        "channels_last": draw.random() < 0.8,
        "ckpt_freq": choose(0, 1),
    }
    if values["schedule"] == "onecycle":
        values["warmup_epochs"] = 0.0  # it has its own
    if values["model"] == VIT:
        values["model_options"] = {"drop_rate": 0.2, "proj_drop_rate": 0.2, "drop_path_rate": 0.1}
    if values["unseen_classes"] and per_class:
        values["batch_size"] = 2 * per_class  # few classes are left
    return TrainConfig(**values)


# ---------------------------------------------------------------- interruptions


class Killed(BaseException):
    """What no handler of errors takes for its own."""


class StopAt:
    """A stop that is asked for before a number of looks have been made at it."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def is_requested(self) -> bool:
        self.looks -= 1
        return self.looks < 0


@contextmanager
def stop_after_steps(after: int, monkeypatch: pytest.MonkeyPatch):
    """As SIGTERM stops a run: after a step, everything kept."""

    @contextmanager
    def handle_stop_signals():
        yield StopAt(after)

    with monkeypatch.context() as patch:
        patch.setattr("widemargin.training.train.handle_stop_signals", handle_stop_signals)
        yield


@contextmanager
def kill_in_call(place: Any, name: str, after: int, monkeypatch: pytest.MonkeyPatch):
    """Killed in one of the calls of a function: a step, the evaluation, or a sync within the write of a checkpoint."""
    real, left = getattr(place, name), [after]

    def count_calls(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, count_calls)
        yield


def train_with_interruptions(
    run: TrainConfig, folder: Path, draw: random.Random, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Interrupt a run up to three times and let it come to its end; what was done to it."""
    done = []
    for _ in range(draw.choice((1, 2, 3))):
        kind, after = draw.choice(("stop", "update", "evaluate", "fsync")), draw.randrange(12)
        if kind == "stop":
            interruption = stop_after_steps(after, monkeypatch)
        else:
            place: Any = os if kind == "fsync" else Trainer
            interruption = kill_in_call(place, kind, after, monkeypatch)
        try:
            with interruption:
                train(run, folder, quiet=True, resume=True)
            break
        except (StoppedError, Killed):
            done.append(f"{kind} {after}")
    train(run, folder, quiet=True, resume=True)
    return ", ".join(done) or "nothing"


def check_same_bits(seed: int, data: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    run = draw_config(draw, str(data))
    kept = ("last", "best") if run.val_fraction else ("last",)
    train(run, folder / "whole", quiet=True)
    torch.rand(draw.randrange(9))  # what else a process does must not matter
    train(run, folder / "again", quiet=True)
    assert difference(folder / "whole", folder / "again", kept) == "", run
    done = train_with_interruptions(run, folder / "parts", draw, monkeypatch)
    assert difference(folder / "whole", folder / "parts", kept) == "", (done, run)


@pytest.mark.parametrize("seed", range(8))
def test_twice_and_interrupted_are_the_same_bits(seed, images, tmp_path, monkeypatch):
    check_same_bits(seed, images, tmp_path, monkeypatch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(8, 252))
def test_twice_and_interrupted_are_the_same_bits_many_times(seed, images, tmp_path, monkeypatch):
    check_same_bits(seed, images, tmp_path, monkeypatch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_killed_by_the_system_and_resumed_is_the_same_bits(seed, images, tmp_path):
    """Real processes and SIGKILL at any moment, through the command as it would be typed."""
    draw = random.Random(seed)
    run = draw_config(draw, str(images))
    words = [*run.to_command()[1:], "--quiet"]
    run_command(["losses"], tmp_path / "warm.txt")  # loads what the others share, which is no part of a run's time
    begun = time.perf_counter()
    code, said = run_command([*words, "--out", str(tmp_path / "whole")], tmp_path / "whole.txt")
    lasts = time.perf_counter() - begun
    assert code == 0, said
    out, kills = tmp_path / "killed", 0
    for kill in (True, True, True, False):
        child = CommandProcess([*words, "--out", str(out), "--resume"], tmp_path / "killed.txt")
        if kill:
            time.sleep(draw.uniform(0.2, 1.0) * lasts)
            child.send_signal(signal.SIGKILL)
        code = child.wait()
        kills += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL), child.read_output()
    assert difference(tmp_path / "whole", out, ("last", "best") if run.val_fraction else ("last",)) == "", (kills, run)


@cache
def _draw_configs(count: int = 400) -> list[TrainConfig]:
    draw = random.Random(0)
    return [draw_config(draw, "images") for _ in range(count)]


def test_every_option_is_drawn():
    """Half of the values of an option are not worth much if it never differs from what is usual."""
    usual = TrainConfig()
    names = ("precision", "ema", "repeated_augmentation", "per_class", "accumulate", "opt", "unseen_classes", "clip")
    names += ("val_fraction", "train_fraction", "schedule", "warmup_epochs", "label_smoothing", "embedding_dim", "neck")
    for name in (*names, "channels_last", "momentum"):
        differing = [run for run in _draw_configs() if getattr(run, name) != getattr(usual, name)]
        assert len(differing) > 20, name
    for option in ("mixup", "cutmix", "mix_each", "erase", "scale"):
        assert sum(bool(run.augment_options.get(option)) for run in _draw_configs()) > 10, option
