"""The range test: what it finds on curves that are known, on real networks with every optimizer, and as a command."""

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from colours import FAST, draw
from runs import config_of_command
from widemargin.cli.main import main
from widemargin.cli.train import print_lr_range_test
from widemargin.io.errors import InputError
from widemargin.training.config import OPTIMIZERS, TrainConfig
from widemargin.training.logging import ProgressReporter
from widemargin.training.lr_finder import (
    MAX_LR,
    MIN_LR,
    draw_lr_chart,
    find_lowest_loss_lr,
    find_lr,
    has_loss_risen,
    smooth_losses,
)
from widemargin.training.train import train
from widemargin.training.trainer import Trainer

RATES = [MIN_LR * (MAX_LR / MIN_LR) ** (k / 99) for k in range(100)]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return draw(tmp_path_factory.mktemp("data"))


@pytest.fixture
def run(images) -> TrainConfig:
    return TrainConfig(
        data=str(images), model="fast(width=0.125)", input_size=16, batch_size=12, augment="fast", opt="sgd", epochs=2
    )


# ---------------------------------------------------------------- the rule


def test_smoothing_is_a_weighted_mean():
    losses = [3.0, 1.0, 2.0, 5.0]
    weights = [0.9**k for k in (3, 2, 1, 0)]
    expected = sum(w * v for w, v in zip(weights, losses, strict=True)) / sum(weights)
    assert smooth_losses(losses)[-1] == pytest.approx(expected)
    assert smooth_losses([2.0] * 5) == pytest.approx([2.0] * 5)


def valley_loss(rate: float) -> float:
    """Falls from 3 to 1 around 1e-3, and explodes from 0.1 on."""
    return 1.0 + 2.0 / (1.0 + (rate / 1e-3) ** 2) + (rate / 0.3) ** 4


def test_the_lowest_point_of_a_valley():
    found = find_lowest_loss_lr(RATES, [valley_loss(rate) for rate in RATES])
    assert found is not None
    assert 0.01 < found < 0.2
    assert has_loss_risen([valley_loss(rate) for rate in RATES])


def test_on_a_floor_it_is_where_the_floor_begins():
    """A loss that stays low however large the rate is must not be answered with the largest rate."""
    floor = [1.0 + 2.0 / (1.0 + (rate / 1e-3) ** 2) - 1e-4 * k for k, rate in enumerate(RATES)]
    found = find_lowest_loss_lr(RATES, floor)
    assert found is not None
    assert 3e-3 < found < MAX_LR / 5
    assert not has_loss_risen(floor)


def test_noise_and_rising_losses_have_no_lowest_point():
    noise = torch.Generator().manual_seed(0)
    assert find_lowest_loss_lr(RATES, (3.0 + torch.randn(100, generator=noise)).tolist()) is None
    assert find_lowest_loss_lr(RATES, [3.0 + 0.01 * k for k in range(100)]) is None
    assert find_lowest_loss_lr(RATES[:5], [3.0, 2.0, 1.0, 0.5, 0.1]) is None


# ---------------------------------------------------------------- on networks


@pytest.mark.parametrize("opt", OPTIMIZERS)
def test_every_optimizer(opt, run):
    before = torch.get_num_threads()
    found = find_lr(replace(run, opt=opt, accumulate=2, ema=0.9), quiet=True)
    assert len(found.lrs) == len(found.losses) == len(found.smoothed_losses)
    assert found.lrs[0] == MIN_LR
    steps = [b / a for a, b in zip(found.lrs, found.lrs[1:], strict=False)]
    assert steps == pytest.approx([(MAX_LR / MIN_LR) ** (1 / 99)] * len(steps))
    assert found.smoothed_losses == pytest.approx(smooth_losses(found.losses))
    assert found.suggestion is not None
    assert found.suggestion == pytest.approx(found.lowest_loss_lr / 10, rel=0.05)
    assert found.losses[20] > 1.3 * min(found.smoothed_losses)
    assert torch.get_num_threads() == before


def test_it_is_the_runs_own_first_losses(run):
    """Over the run's own batches: with a rate of nearly nothing, the mean loss of an epoch is that of a training."""
    found = find_lr(run, low=1e-30, high=1e-29, steps=12, quiet=True)
    training = Trainer(replace(run, lr=0.0, schedule="constant"), None)
    steps = len(training.inputs.batches)
    line = training.train_epoch(ProgressReporter())
    assert sum(found.losses[:steps]) / steps == pytest.approx(line["loss"], rel=1e-6)
    assert find_lr(run, low=1e-30, high=1e-29, steps=12, quiet=True) == found


def test_a_suggestion_can_be_trained_with(run, tmp_path):
    found = find_lr(run, quiet=True)
    record = train(replace(run, lr=found.suggestion, epochs=8), tmp_path / "run", quiet=True).record
    assert record["test"]["top1"] > 60


def test_it_ends_when_the_loss_explodes(run):
    model = "vit_tiny_patch16_224(patch_size=8, depth=1, embed_dim=24, num_heads=2)"
    found = find_lr(replace(run, model=model, loss="softmax", momentum=0.99), quiet=True)
    assert len(found.lrs) < 100
    assert "more than 4 times its best" in found.stop_reason
    assert found.is_bounded
    assert found.smoothed_losses[-1] > 4 * min(found.smoothed_losses) >= found.smoothed_losses[-2]


def test_numbers_that_are_none_end_it(run):
    found = find_lr(replace(run, loss="softmax"), high=1e38, steps=40, quiet=True)
    assert len(found.lrs) < 40
    assert all(map(math.isfinite, (*found.losses, *found.smoothed_losses)))


@pytest.mark.parametrize("wrong", [{"low": 0.0}, {"low": 1.0, "high": 0.1}, {"steps": 10}, {"high": math.inf}])
def test_wrong_ranges_are_one_line(wrong, run):
    with pytest.raises(InputError, match="low must be above 0, high above low, and steps above 10"):
        find_lr(run, **wrong)


# ---------------------------------------------------------------- as a command


def test_the_command_trains_nothing_and_says_what_to_type(images, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("WANDB_NAME", raising=False)
    out = tmp_path / "run"
    words = ["train", str(images), *FAST, "--epochs", "1", "--out", str(out)]
    assert main([*words, "--find-lr"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert sorted(path.name for path in out.iterdir()) == ["lr_finder.json", "lr_finder.svg"]
    found = json.loads((out / "lr_finder.json").read_text())
    assert f"suggestion: --lr {found['suggestion']:g}, a tenth of the rate with the lowest loss" in captured.out
    again = config_of_command(shlex.join(shlex.split(captured.out.splitlines()[-1])[2:]))
    assert again == TrainConfig.from_json(json.dumps({**found["run"], "lr": found["suggestion"]}))
    assert 10 <= captured.out.count("e-0") <= 16
    picture = ElementTree.parse(out / "lr_finder.svg").getroot()
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) == len(found["losses"])
    assert main([*words, "--quiet"]) == 0  # the folder is free for the run itself
    assert main([*words[:-1], str(out), "--find-lr"]) == 2
    assert "already contains a run: choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize("bounded", [True, False])
def test_a_loss_that_never_rises_again_is_told(bounded, run, tmp_path, capsys):
    """On the same rates and images: only the end of the curve differs."""
    found = find_lr(run, quiet=True)
    end = len(found.losses) - 60  # steps, in which the loss stays or explodes
    losses = (*found.losses[:60], *([found.losses[59]] * end if not bounded else [9.0] * end))
    assert has_loss_risen(losses) == bounded
    shown = replace(found, losses=losses, smoothed_losses=tuple(smooth_losses(losses)), is_bounded=bounded)
    print_lr_range_test(shown, tmp_path)
    assert ("no rate was too large" in capsys.readouterr().out) != bounded
    assert json.loads((tmp_path / "lr_finder.json").read_text())["is_bounded"] == bounded


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--resume"], "--find-lr needs a new model"),
        (["--logger", "tensorboard"], "omit --logger"),
        (["--batch-size", "5000", "--per-class", "5"], "a batch needs 1000 classes"),
    ],
)
def test_wrong_uses_are_one_line(words, says, images, tmp_path, capsys):
    given = [*FAST[:4], *(words if "--batch-size" in words else [*FAST[4:6], *words])]
    assert main(["train", str(images), *given, "--find-lr", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said
    assert not (tmp_path / "run").exists()


def test_a_loss_that_never_falls_is_one_line(images, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("widemargin.training.lr_finder.MAX_LR", 1e-6)
    monkeypatch.setattr(
        "widemargin.training.lr_finder.find_lr.__wrapped__.__kwdefaults__",
        {**find_lr.__wrapped__.__kwdefaults__, "high": 1e-6},
    )
    assert main(["train", str(images), *FAST, "--find-lr", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip()
    assert "the loss did not fall at any learning rate" in said
    assert "\n" not in said
    assert "suggested" not in (tmp_path / "run" / "lr_finder.svg").read_text()


def test_a_picture_of_few_steps(run):
    found = find_lr(run, low=1e-3, high=2e-3, steps=11, quiet=True)
    named = replace(found, suggestion=1e-4, config=replace(run, model="a<b>&c"))
    chart = draw_lr_chart(named)
    dots, line, suggested = chart.axes.lines
    low, high = chart.axes.get_ylim()
    np.testing.assert_allclose(dots.get_xydata().T, [found.lrs, np.clip(found.losses, low, high)])
    assert line.get_ydata() == pytest.approx(np.clip(found.smoothed_losses, low, high))
    assert list(suggested.get_xdata()) == [found.lrs[0]] * 2  # a lower rate is at the edge
    assert min(found.smoothed_losses) > low
    ElementTree.fromstring(named.to_svg())
