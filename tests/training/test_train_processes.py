"""Training as real processes on a folder of images: killed and resumed, two at once, judged, and asked for names."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from colours import FAST, draw
from runs import assert_same, lines
from stress.commands import CommandProcess, error_line, start_ranks, wait_until
from widemargin.cli.main import build_parser, main
from widemargin.io.errors import InputError
from widemargin.training.config import TrainConfig
from widemargin.training.inputs import load_inputs
from widemargin.training.trainer import Trainer

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
# No batch norm, so two halves of a batch are the batch.
VIT = "vit_tiny_patch16_224(patch_size=8, depth=1, embed_dim=24, num_heads=2)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return draw(tmp_path_factory.mktemp("data"))


def train_by_command(folder: Path, out: Path, words: list[str], resume: bool = False) -> None:
    assert main(["train", str(folder), *words, "--out", str(out), *(["--resume"] if resume else [])]) == 0


# ---------------------------------------------------------------- folders


def test_a_folder_is_decoded_once_or_batch_by_batch(folder, monkeypatch):
    run = TrainConfig(data=str(folder), model="fast(width=0.125)", input_size=16, batch_size=12, augment="fast")
    small = load_inputs(run, None)
    assert tuple(small.train.x.shape) == (48, 3, 16, 16)
    assert small.class_names == ("blue", "green", "red")
    monkeypatch.setattr("widemargin.data.images.folder.FolderImages.fits_in_memory", lambda *_: False)
    large = load_inputs(run, None)
    assert not hasattr(large.train, "x")
    assert large.input_spec["channels"] == 3
    for first, second in zip(small.eval_batches(small.test), large.eval_batches(large.test), strict=True):
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])
    for first, second in zip(small.batches.iter_epoch(1), large.batches.iter_epoch(1), strict=True):
        assert torch.equal(first[1], second[1])
        assert torch.allclose(first[0], second[0], atol=1e-6)
    filters = [Trainer(run, None).model.backbone.filters]
    monkeypatch.undo()
    filters.append(Trainer(run, None).model.backbone.filters)
    assert torch.equal(*filters)


def test_a_crop_of_files_has_their_full_resolution(folder):
    run = TrainConfig(data=str(folder), input_size=16, batch_size=12, augment="seed", model="fast")
    assert not hasattr(load_inputs(run, None).train, "x")


def test_a_folder_needs_a_size(folder):
    with pytest.raises(InputError, match="input_size"):
        load_inputs(TrainConfig(data=str(folder)), None)


# ---------------------------------------------------------------- asked to stop


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_keeps_its_steps_and_goes_on(folder, tmp_path, number):
    words = [*FAST, "--epochs", "3", "--ema", "0.9", "--ra", "50"]
    process = CommandProcess(["train", str(folder), *words, "--out", str(tmp_path / "cut")], tmp_path / "output")
    log = tmp_path / "cut" / "metrics.jsonl"
    wait_until(lambda: (log.exists() and log.read_text() != "") or not process.is_running())
    time.sleep(0.1)
    process.send_signal(number)
    assert process.wait() == 75
    said = process.read_output()
    assert "--resume" in said
    assert "Traceback" not in said
    state = json.loads((tmp_path / "cut" / "checkpoints" / "last" / "state.json").read_text())
    assert state["mid_epoch"]["step"] > 0
    train_by_command(folder, tmp_path / "cut", words, resume=True)
    train_by_command(folder, tmp_path / "whole", words)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert [line["epoch"] for line in lines(tmp_path / "cut")] == [1, 2, 3]
    for one, other in zip(lines(tmp_path / "whole"), lines(tmp_path / "cut"), strict=True):
        assert one["loss"] == other["loss"]
        assert one["histogram"] == other["histogram"]


# ---------------------------------------------------------------- killed and resumed


@pytest.mark.slow
def test_a_killed_process_goes_on_as_if_nothing_had_been(folder, tmp_path):
    words = [*FAST, "--epochs", "3", "--ema", "0.9", "--ra", "25"]
    process = CommandProcess(["train", str(folder), *words, "--out", str(tmp_path / "killed")], tmp_path / "output")
    state = tmp_path / "killed" / "checkpoints" / "last" / "state.json"
    wait_until(lambda: state.exists() or not process.is_running())
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert json.loads(state.read_text())["epoch"] < 3
    train_by_command(folder, tmp_path / "killed", words, resume=True)
    train_by_command(folder, tmp_path / "whole", words)
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert [line["epoch"] for line in lines(tmp_path / "killed")] == [1, 2, 3]
    records = [json.loads((tmp_path / name / "record.json").read_text()) for name in ("whole", "killed")]
    assert records[0]["test"] == records[1]["test"]
    assert records[0]["confusion"] == records[1]["confusion"]


# ---------------------------------------------------------------- judged and asked


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "run"
    train_by_command(folder, place, [*FAST, "--epochs", "6", "--ema", "0.5", "--val-fraction", "0.2"])
    return place


def test_evaluate_gives_the_records_figures(run, capsys):
    record = json.loads((run / "record.json").read_text())
    assert main(["evaluate", str(run)]) == 0
    said = capsys.readouterr().out
    found = json.loads((run / "evaluation.json").read_text())
    for name in ("top1", "top5", "top1_flip"):
        assert found[name] == record["test"][name]
    assert found["confusion"] == record["confusion"]
    assert found["angles"] == pytest.approx(record["angles"])
    assert f"top-1 {found['top1']:.2f} %, with flips" in said
    assert "WC-Intra" in said
    assert "evaluation.json" in said
    assert main(["evaluate", str(run), "--no-flips", "--checkpoint", "best"]) == 0
    assert "flips" not in capsys.readouterr().out


def test_predict_names_colours(run, folder, capsys):
    paths = [str(folder / "test" / word / "0.png") for word in ("red", "green", "blue")]
    assert main(["predict", str(run), *paths, "--top", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    for path, line in zip(paths, said, strict=True):
        assert line.startswith(f"{path}: {Path(path).parent.name} ")
        assert line.count("%") == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["evaluate", "RUN", "--checkpoint", "bset"], "has no checkpoint 'bset' (it has best, last)"),
        (["evaluate", "nowhere"], "nowhere: no such folder"),
        (["predict", "RUN", "nowhere.png"], "nowhere.png: no such image"),
        (["predict", "RUN", "x.png", "--top", "0"], "--top must be at least 1"),
    ],
)
def test_mistakes_are_one_line(words, says, run, capsys):
    assert main([str(run) if word == "RUN" else word for word in words]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said


# ---------------------------------------------------------------- two processes


@pytest.mark.distributed
def test_two_processes_learn_as_one(folder, tmp_path):
    words = [VIT, "adacos", "--input-size", "16", "--batch-size", "16", "--epochs", "3", "--augment", "fast"]
    words += ["--opt", "adamw", "--lr", "0.001", "--clip", "1", "--val-fraction", "0.2", "--schedule", "plateau"]
    command = [*TORCHRUN, "-m", "widemargin", "train", str(folder), *words, "--out", str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("test: top-1") == 1
    train_by_command(folder, tmp_path / "one", words)
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert len(one) == len(two) == 3
    for first, second in zip(one, two, strict=True):
        assert second["loss"] == pytest.approx(first["loss"], rel=1e-5)
        assert second["val"]["loss"] == pytest.approx(first["val"]["loss"], rel=1e-5)
        assert (first["step"], sum(first["histogram"]["target"])) == (
            second["step"],
            sum(second["histogram"]["target"]),
        )


@pytest.mark.distributed
def test_every_process_refuses_what_is_wrong(folder, tmp_path):
    words = [VIT, "softmax", "--input-size", "16", "--batch-size", "7", "--out", str(tmp_path / "run")]
    for process in start_ranks(["train", str(folder), *words], tmp_path / "output"):
        assert process.wait() == 2
        assert "batch-size 7" in error_line(process.read_output())
    assert not (tmp_path / "run").exists()


@pytest.mark.distributed
def test_a_killed_process_ends_the_other(folder, tmp_path):
    """Without torchrun to clean up: the survivor itself must notice."""
    words = [VIT, "arcgrad", "--input-size", "16", "--batch-size", "8", "--epochs", "100000"]
    words += ["--out", str(tmp_path / "run")]
    survivor, other = start_ranks(["train", str(folder), *words], tmp_path / "output")
    last = tmp_path / "run" / "checkpoints" / "last"
    try:
        assert wait_until(lambda: last.exists() or not survivor.is_running(), timeout=60)
        other.send_signal(signal.SIGKILL)
        code, said = survivor.wait(60), survivor.read_output()
        assert code not in (0, None), said[-2000:]
        assert "rank 1" in error_line(said)
        assert "checkpoint" in error_line(said)
    finally:
        for process in (survivor, other):
            process.send_signal(signal.SIGKILL)
            process.wait()


# ---------------------------------------------------------------- under torchrun


def test_no_option_of_train_means_anything_to_torchrun():
    """torchrun looks at every word, also behind the script's name, and leaves where one may be several of its own."""
    import argparse

    from torch.distributed.run import get_args_parser

    theirs = {option for action in get_args_parser()._actions for option in action.option_strings}
    assert "--log-dir" in theirs
    found = build_parser().subparser_for(["train"])
    ours = {option for action in found._actions for option in action.option_strings if option != "-h"}
    old = {option for a in found._actions if a.help == argparse.SUPPRESS for option in a.option_strings}
    assert {option for option in ours for other in theirs if other.startswith(option)} - {"--help"} == old
    assert old == {"--log"}  # the spelling of version 0.1.0, understood everywhere else
    get_args_parser().parse_args(["-m", "widemargin", "train", *sorted(ours - old)])


@pytest.mark.distributed
def test_a_run_under_torchrun_logs_to_tensorboard(folder, tmp_path):
    pytest.importorskip("tensorboard")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--standalone"]
    command += ["-m", "widemargin", "train", str(folder), *FAST, "--epochs", "1", "--logger", "tensorboard"]
    command += ["--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "--logger tensorboard" in json.loads((tmp_path / "run" / "record.json").read_text())["command"]
    assert len(list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))) == 1


def test_the_earlier_spelling_of_logger_is_understood():
    for words, kinds in ((["--log", "tensorboard", "wandb"], ["tensorboard", "wandb"]), ([], [])):
        assert build_parser().parse_args(["train", "mnist", "fast", "softmax", *words]).logger == kinds
    assert build_parser().parse_args(["train", "--logger", "wandb"]).logger == ["wandb"]
