"""`python -m benchmarks train`: both loops do the same work, the figures are what they say, the command runs."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import train
from benchmarks.__main__ import main
from benchmarks.train import BareLoop, ImageSource, generate_noise_images, make_round_config, measure_training_loop
from widemargin.training.logging import ProgressReporter
from widemargin.training.trainer import Trainer

TINY = "fast(width=0.125, bias=False)"


@pytest.fixture(scope="module")
def source():
    with generate_noise_images(45) as found:
        yield found
    assert not Path(found.data).exists()


def test_generated_images_have_cifars_shape(source):
    assert (source.num_images, source.input_size) == (50, 32)
    training = Trainer(make_round_config(TINY, "softmax", "32-true", source, 1, (8, 5)), None)
    assert tuple(training.inputs.train.x.shape) == (40, 3, 32, 32)
    assert len(training.inputs.class_names) == 10
    assert len(training.inputs.batches) == 5


@pytest.mark.parametrize("size", [(500, 20), (64, 8), (128, 3), (100, 1), (50_000, 1), (25_000, 3)])
def test_a_round_has_the_steps_that_are_asked_for(size):
    run = make_round_config("resnet18", "softmax", "32-true", ImageSource("cifar10", 50_000), 3, size)
    images = 10 * round(5000 * run.train_fraction)  # what the stratified share leaves
    assert images // run.batch_size == min(size[1], 50_000 // size[0])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("loss", ["arcgrad(s=10)", "softmax"])
def test_both_loops_learn_the_same_to_the_last_bit(source, loss, precision):
    """So neither spares itself anything the other does."""
    run = make_round_config(TINY, loss, precision, source, 1, (8, 5))
    training = Trainer(run, None)
    bare = BareLoop(run, training.inputs.input_spec, list(training.inputs.batches.iter_epoch(0)), torch.device("cpu"))
    training.inputs.whiten_backbone(bare.model)
    before = {name: value.clone() for name, value in bare.model.state_dict().items()}
    training.train_epoch(ProgressReporter())
    bare()
    after = training.model.state_dict()
    for name, value in bare.model.state_dict().items():
        assert torch.equal(value, after[name]), name
    assert any(not torch.equal(value, before[name]) for name, value in after.items())


def test_figures_are_medians_of_the_rounds(source, monkeypatch):
    clock = iter([4.0, 2.0, 5.0, 4.0, 10.0, 9.0])  # loop, bare, loop, bare, loop, bare
    calls = []
    monkeypatch.setattr("benchmarks.train.time_call", lambda work, device: calls.append(work) or next(clock))
    progress = []
    found = measure_training_loop(
        make_round_config(TINY, "softmax", "32-true", source, 3, (8, 2)), None, 3, progress.append
    )
    assert found["ratios"] == [0.5, 0.8, 0.9]
    assert found["ratio"] == 0.8
    assert found["images_per_second"] == {"loop": 16 / 5.0, "bare": 16 / 4.0}
    assert calls[0] is calls[2] is calls[4]
    assert calls[1] is calls[3] is calls[5]
    assert calls[0] is not calls[1]
    assert progress == [1.0] * 4


def test_heads_are_compared_with_a_step(monkeypatch):
    def clock(work, device):
        return 0.5 if isinstance(work, BareLoop) else next(ticks)

    ticks = iter([9.0, 9.0, 0.001, 0.004, 0.002, 0.004, 0.003, 0.013] * 4)  # the first pair warms up
    monkeypatch.setattr("benchmarks.train.time_call", clock)
    found = train.measure_head_overhead(2, 2, 3, lambda share: None)
    assert [row["num_classes"] for row in found] == [10, 100]
    for row in found:
        assert row["head_seconds"] == {"softmax": 0.002, "arcgrad(s=10)": 0.004}
        assert row["extra_percent"] == pytest.approx(0.4)
        assert row["step_seconds"] == 0.5


@pytest.mark.slow
def test_the_command_prints_ratios_and_writes_them(tmp_path):
    out = tmp_path / "train_speed.json"
    words = [
        "--synthetic-data",
        "--models",
        TINY,
        "--precision",
        "32-true",
        "bf16-mixed",
        "--rounds",
        "2",
        "--steps",
        "2",
    ]
    words += ["--batch-size", "8", "--repeats", "3", "--json", str(out)]
    command = [sys.executable, "-m", "benchmarks", "train", *words]
    checkout = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stdout
    assert "extra, % of the step" in done.stdout
    found = json.loads(out.read_text())
    assert (found["data"], found["threads"], found["rounds"]) == ("generated", 1, 2)
    assert [row["precision"] for row in found["loop"]] == ["32-true", "bf16-mixed"]
    for row in found["loop"]:
        assert (row["model"], row["batch"], row["steps"]) == (TINY, 8, 2)
        assert len(row["ratios"]) == 2
        assert row["ratio"] == statistics.median(row["ratios"])
        assert 0 < row["ratio"] < 5  # times are not asserted, only that they exist
    assert [row["num_classes"] for row in found["head"]] == [10, 100]
    assert all(min(row["head_seconds"].values()) > 0 for row in found["head"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rounds", "0"], "--rounds must be an integer of at least 1, got 0"),
        (["--steps", "-1"], "--steps must be an integer of at least 1"),
        (["--models", "fst", "--synthetic-data", "--batch-size", "4", "--steps", "1"], "unknown model 'fst'"),
        (["--loss", "arcgard", "--synthetic-data", "--batch-size", "4", "--steps", "1"], "did you mean 'arcgrad'?"),
        (["--json", "no/such/folder/x.json"], "the folder does not exist"),
    ],
)
def test_mistakes_are_one_line(words, says, capsys):
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said
