"""Faults in a training, one by one and in a second: no room, weights that are no numbers, signals, clocks."""

import errno
import json
import math
import re
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from colours import FAST, draw
from stress.trainings import difference
from widemargin.cli.main import main
from widemargin.io.errors import InputError
from widemargin.io.locks import translate_disk_errors, write_text_atomic
from widemargin.training.config import TrainConfig
from widemargin.training.distributed import handle_stop_signals, launch_fabric
from widemargin.training.divergence import DivergedError
from widemargin.training.train import train
from widemargin.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[2]
WORDS = [*FAST, "--epochs", "2", "--val-fraction", "0.2", "--ema", "0.9", "--quiet"]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return draw(tmp_path_factory.mktemp("data"))


@pytest.fixture
def run(images) -> TrainConfig:
    return TrainConfig(
        data=str(images), model="fast(width=0.125)", input_size=16, batch_size=12, epochs=2, opt="sgd", lr=0.05, seed=3
    )


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("bytes_", [100, 3000, 30_000, 100_000])
def test_no_room_is_one_line_and_more_room_goes_on(images, tmp_path, capsys, bytes_):
    """A limit on the size of files stands in for a full disk: run.json, the log, state.json or weights do not fit."""
    assert main(["train", str(images), *WORDS, "--out", str(tmp_path / "whole")]) == 0
    largest = max(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
    assert bytes_ < largest
    capsys.readouterr()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, before[1]))
    try:
        assert main(["train", str(images), *WORDS, "--out", str(tmp_path / "run")]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err.strip()
    assert re.fullmatch(rf"widemargin: {tmp_path}/run: cannot be written \(.*\); .*continue with --resume", said), said
    assert list(tmp_path.rglob("*.new")) == []
    assert main(["train", str(images), *WORDS, "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert difference(tmp_path / "whole", tmp_path / "run") == ""


def test_a_file_is_whole_or_as_it_was(tmp_path):
    write_text_atomic(tmp_path / "a" / "file", "before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(InputError, match="File too large"), translate_disk_errors(tmp_path):
            write_text_atomic(tmp_path / "a" / "file", 1000 * "after")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.read_text() for path in (tmp_path / "a").iterdir()] == ["before"]


def test_errors_of_the_disk_keep_their_reason(tmp_path):
    with pytest.raises(InputError, match="No space left on device"), translate_disk_errors(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(KeyError), translate_disk_errors(tmp_path):
        raise KeyError("ours, and no fault of the disk")


# ---------------------------------------------------------------- no numbers


def test_weights_that_are_no_numbers_take_no_good_checkpoints_place(run, tmp_path):
    """A last step of an epoch may have a sound loss and an infinite gradient."""
    place = tmp_path / "checkpoints" / "last"
    training = Trainer(run, None)
    training.save(place)
    kept = {path.name: path.read_bytes() for path in place.iterdir()}
    with torch.no_grad():
        next(iter(training.model.parameters())).view(-1)[3] = math.inf
    with pytest.raises(DivergedError, match=r"non-finite.*checkpoint"):
        training.save(place)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == kept


def test_the_step_the_part_and_the_sizes_are_named(run, tmp_path):
    wild = replace(run, loss="normface(s=10) + 1e39*triplet", per_class=4)
    with pytest.raises(DivergedError) as stopped:
        train(wild, tmp_path / "run", quiet=True)
    said = str(stopped.value)
    assert re.match(r"step 1: the loss is (inf|nan) \(in triplet\), largest logit [\d.]+, largest angle ", said), said
    assert "°, largest embedding" in said
    assert "Try a smaller lr" in said
    assert "checkpoint" not in said  # there is none yet


def test_of_a_step_that_cannot_be_looked_at_the_one_before_is_told(run, tmp_path):
    with pytest.raises(DivergedError, match=r"not finite.*largest.*angle"):
        train(replace(run, lr=1e38, loss="softmax", schedule="constant"), tmp_path / "run", quiet=True)


# ---------------------------------------------------------------- signals, time-outs, clocks


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_is_the_systems(number, capsys):
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    with handle_stop_signals() as stop:
        assert not stop.is_requested
        signal.raise_signal(number)
        assert stop.is_requested
        assert {signal.getsignal(each) for each in before} == {signal.SIG_DFL}
    assert {each: signal.getsignal(each) for each in before} == before
    assert f"{signal.Signals(number).name}: saving after this step" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_time_out_is_a_time(run, seconds):
    with pytest.raises(InputError, match="timeout"):
        launch_fabric(run, timeout=seconds)


def test_nothing_asks_the_wall_clock():
    """It may jump: whatever lasts is measured by a clock that does not.

    TensorBoard's event files have times of day in them by their format; their order does not depend on it.
    """
    asked = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(")
    found = [path.name for path in (ROOT / "src").rglob("*.py") if asked.search(path.read_text(encoding="utf-8"))]
    assert found == ["logging.py"]


def test_a_record_is_json_without_surprises(images, tmp_path):
    """The log of a run is read by others: a number that is none would not be JSON."""
    assert main(["train", str(images), *WORDS, "--out", str(tmp_path / "run")]) == 0
    for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
