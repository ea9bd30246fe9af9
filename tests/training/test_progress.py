"""What is seen of a training: a bar on a real terminal, lines elsewhere, nothing when quiet; and the record of it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from colours import FAST, draw
from runs import config_of_command
from terminals import run_on_terminal
from widemargin.cli.main import main
from widemargin.io.progress import ProgressLines
from widemargin.io.provenance import source_commit
from widemargin.training.config import TrainConfig
from widemargin.training.logging import EpochProgress, ProgressReporter
from widemargin.training.train import train

ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "LINES", "WANDB_NAME")},
    "OMP_NUM_THREADS": "1",
}
LINE = re.compile(
    r"epoch (\d+)/3: loss \d+\.\d{3}, train \d+\.\d %, [\d,]+ images/s, held out \d+\.\d %, \d+:\d\d:\d\d left"
)
WORDS = [*FAST, "--epochs", "3", "--val-fraction", "0.2"]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return draw(tmp_path_factory.mktemp("data"))


def train_command(images: Path, out: Path, *more: str) -> list[str]:
    return ["train", str(images), *WORDS, "--out", str(out), *more]


@pytest.mark.slow
def test_a_bar_on_a_terminal(images, tmp_path):
    printed, seen = run_on_terminal(train_command(images, tmp_path / "run", "--ra", "10"), tmp_path / "output")
    assert printed.startswith("test: top-1 ")
    assert any(line.startswith("Colours fast(width=0.125) arcgrad(s=10) ━") for line in seen), seen
    said = [line for line in seen if re.search(r"\d:\d\d:\d\d loss \d+\.\d{3}, train \d+\.\d %, [\d,]+ images/s", line)]
    assert said
    assert any(re.search(r" [12]/3 .*, held out \d+\.\d %", line) for line in said)
    assert not any(LINE.search(line) for line in seen)


@pytest.mark.slow
def test_a_narrow_terminal_keeps_the_numbers(images, tmp_path):
    words = train_command(images, tmp_path / "run", "--ra", "10")
    _, seen = run_on_terminal(words, tmp_path / "output", width=80)
    said = [line for line in seen if "loss" in line]
    assert said
    assert all("images/s" in line and "…" not in line and len(line.rstrip()) <= 80 for line in said)


def test_a_line_per_epoch_in_a_log(images, tmp_path, capsys):
    assert main(["train", str(images), *WORDS, "--out", str(tmp_path / "run")]) == 0
    header, *said = capsys.readouterr().err.splitlines()
    parts = r"cpu: 39 images to train on, 9 held out, 12 to test; 3 classes"
    assert re.fullmatch(parts + r"; .* parameters.*; 3 epochs of \d+ steps of 12 images", header)
    assert [LINE.fullmatch(line)[1] for line in said] == ["1", "2", "3"]
    assert said[-1].endswith(" 0:00:00 left")
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for line, numbers in zip(said, logged, strict=True):
        assert f"loss {numbers['loss']:.3f}, train {numbers['train_top1']:.1f} %" in line
        assert f"held out {numbers['val']['top1']:.1f} %" in line


def test_long_epochs_have_lines_in_between(capsys):
    now = [0.0]
    lines = ProgressLines("run", 3, first_seconds=10.0, interval_seconds=30.0, clock=lambda: now[0])
    reporter = ProgressReporter(lines, 0, 3)
    for now[0] in (5, 15, 25, 50):
        reporter.step(0.25, EpochProgress(1.5, 40.0, 900.0))
    reporter.report_epoch({"epoch": 1, "loss": 1.25, "train_top1": 45.0, "images_per_second": 900.0})
    now[0] = 60
    reporter.step(0.25)
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        "run: 0 of 3, 17 %, about 1 min left, loss 1.500, train 40.0 %, 900 images/s",
        "run: 1 of 3, 33 %, about 2 min left, loss 1.500, train 40.0 %, 900 images/s",
    ]
    assert said[2].startswith("epoch 1/3: loss 1.250, ")
    assert len(said) == 3  # the line of the epoch is not followed by another at once


def test_nothing_when_quiet(images, tmp_path, capsys):
    assert main(["train", str(images), *WORDS, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_nothing_on_a_terminal_when_quiet(images, tmp_path):
    _, seen = run_on_terminal(train_command(images, tmp_path / "run", "--quiet"), tmp_path / "output")
    assert seen == []


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_the_training(images, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "widemargin", *train_command(images, tmp_path / "run")]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=writing, env=ENVIRONMENT, timeout=180, check=False)
    os.close(writing)
    assert done.returncode == 0
    assert (tmp_path / "run" / "record.json").exists()


def test_a_resumed_run_counts_on(images, tmp_path, capsys):
    run = TrainConfig(data=str(images), model="fast(width=0.125)", input_size=16, batch_size=12, opt="sgd", epochs=3)
    train(run, tmp_path / "run", stop_after=1)
    assert "epoch 1/1: " in capsys.readouterr().err
    train(run, tmp_path / "run", resume=True)
    header, *said = capsys.readouterr().err.splitlines()
    assert "4 steps done" in header
    assert [line.split(":")[0] for line in said] == ["epoch 2/3", "epoch 3/3"]


# ---------------------------------------------------------------- the record


def test_the_record_says_what_was_typed(images, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_NAME", "my run's name")
    words = ["train", str(images), *FAST, "--epochs", "1", "--quiet", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert shlex.split(record["command"]) == ["WANDB_NAME=my run's name", "widemargin", *words]
    shown = subprocess.run(  # as a shell reads it
        ["bash", "-c", f'widemargin() {{ printf \'%s\\n\' "$WANDB_NAME" "$@"; }}; {record["command"]}'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == ["my run's name", *words]
    assert record["commit"] == source_commit()
    assert (record["processes"], record["cores"]) == (1, 1)


def test_the_record_of_a_library_call_gives_its_command(images, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_NAME", raising=False)
    run = TrainConfig(
        data=str(images),
        model="fast(width=0.125)",
        model_options={"bias": False},
        augment_options={"pad": 2},
        input_size=16,
        batch_size=12,
        epochs=1,
    )
    record = train(run, tmp_path / "run", quiet=True).record
    assert json.loads((tmp_path / "run" / "record.json").read_text())["command"] == record["command"]
    assert record["model"] == "fast(width=0.125, bias=False)"
    words = shlex.split(record["command"])
    assert words[:2] == ["widemargin", "train"]
    assert config_of_command(shlex.join(words[2:])) == run
