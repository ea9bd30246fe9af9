"""TensorBoard and W&B: a real run with both, offline, killed and resumed; what they wrote is read back."""

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colours import FAST, draw
from widemargin.training.config import TrainConfig
from widemargin.training.logging import MetricsLog, flatten_metrics
from widemargin.training.train import train

KEY = "0123456789abcdef0123456789abcdef01234567"
WORKER = Path(__file__).parents[1] / "trackers_worker.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return draw(tmp_path_factory.mktemp("data"))


def offline_environment(home: Path) -> dict[str, str]:
    """A home without a login, no network, and nothing of W&B's from outside."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "NETRC"))}
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    return {**kept, **nowhere, "HOME": str(home), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def run(images, tmp_path_factory) -> Path:
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    place = tmp_path_factory.mktemp("runs")
    environment = {**offline_environment(place), "WANDB_MODE": "offline", "WANDB_API_KEY": KEY}
    command = [sys.executable, str(WORKER), str(images), str(place / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert KEY not in done.stdout + done.stderr
    return place / "run"


def logged_numbers(run: Path) -> list[dict[str, float]]:
    return [dict(flatten_metrics(line)) for line in MetricsLog.read_epochs(run / "metrics.jsonl")]


@pytest.mark.slow
def test_tensorboard_has_every_number_once(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "histograms": 0}).Reload()
    expected = logged_numbers(run)
    assert {"loss", "train_top1", "lr", "val/top1", "val/angles/w_inter", "margin_values/s", "margin_values/m"} <= set(
        expected[0]
    )
    assert set(found.Tags()["scalars"]) == set(expected[0])
    for name in expected[0]:
        points = found.Scalars(name)
        assert [point.step for point in points] == [1, 2, 3, 4], name
        assert [point.value for point in points] == pytest.approx([line[name] for line in expected]), name
    assert [line["margin_values/m"] for line in expected] != [expected[0]["margin_values/m"]] * 4
    lines = MetricsLog.read_epochs(run / "metrics.jsonl")
    for kind in ("target", "non_target"):
        points = found.Histograms(f"angles/{kind}")
        assert [point.step for point in points] == [1, 2, 3, 4]
        for point, line in zip(points, lines, strict=True):
            value = point.histogram_value
            assert list(value.bucket) == line["histogram"][kind]
            assert (value.bucket_limit[0], value.bucket_limit[-1]) == (2.0, 180.0)
            assert value.num == sum(line["histogram"][kind])


@pytest.mark.slow
def test_a_finished_run_opens_no_more_files(run):
    assert len(list((run / "tensorboard").iterdir())) == 3
    assert len(list((run / "wandb").glob("offline-run-*"))) == 3


def read_wandb_records(path: Path):
    """What an offline file of W&B holds: records in the log format of LevelDB, behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, part = path.read_bytes(), 7, b""
    while at < len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last of several parts
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            part = b""
            yield record


@pytest.mark.slow
def test_wandb_goes_on_under_its_id_with_the_numbers_it_had(run):
    identity = (run / "wandb_id").read_text().strip()
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in files] == [f"run-{identity}.wandb"] * 3
    points: dict[int, dict] = {}
    steps, losses = [], []
    for path in files:
        for record in read_wandb_records(path):
            if record.WhichOneof("record_type") == "run" and record.run.run_id:
                assert record.run.run_id == identity
                losses += [json.loads(one.value_json) for one in record.run.config.update if one.key == "loss"]
            if record.WhichOneof("record_type") == "history":
                items = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                points[items["_step"]] = items
                steps.append(items["_step"])
    assert losses == ["arcface(s=10, m=warmup(0, 0.3, steps=8))"] * 3
    assert steps == [1, 2, 3, 3, 4]  # the third again, with the same number: W&B takes a number once
    clocks = ("seconds", "images_per_second")
    for epoch, line in enumerate(logged_numbers(run), 1):
        for name, value in line.items():
            assert name in clocks or points[epoch][name] == pytest.approx(value), name


@pytest.mark.slow
def test_no_key_is_written_anywhere(run):
    for path in run.parent.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_without_a_key_one_line_says_what_to_do(images, tmp_path):
    pytest.importorskip("wandb")
    command = [sys.executable, "-m", "widemargin", "train", str(images), *FAST, "--epochs", "1", "--logger", "wandb"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env=offline_environment(tmp_path),
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("widemargin: wandb: ")
    assert "WANDB_MODE=offline" in done.stderr


# ---------------------------------------------------------------- a clock that is set back


def tensorboard_losses(folder: Path) -> dict[int, float]:
    """Loss by epoch, as TensorBoard itself reads it; a point that comes twice fails."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    points = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload().Scalars("loss")
    assert len({point.step for point in points}) == len(points)
    return {point.step: point.value for point in points}


@pytest.mark.parametrize("clock", [[0, -86400, -43200, -90000], [0, 0, 0, 0], [0, -1, 10**8, 5]], ids=str)
def test_no_epoch_is_lost_when_the_clock_is_set_back_between_kill_and_resume(clock, tmp_path, monkeypatch):
    """Four sessions; each was killed after an epoch that it logged and did not keep, which the next one does again."""
    pytest.importorskip("tensorboard")
    from widemargin.training.logging import TensorBoard

    expected: dict[int, float] = {}
    boards = []
    for session, ahead in enumerate(clock):
        monkeypatch.setattr(time, "time", lambda ahead=ahead: 1.75e9 + ahead)
        monkeypatch.setattr(os, "getpid", lambda session=session: 10_001 - session)  # names sort by it within a second
        upto = 2 * session
        boards.append(TensorBoard(tmp_path, upto, TrainConfig()))
        for epoch in (upto + 1, upto + 2, upto + 3):
            loss = epoch + session / 8
            boards[-1].add({"epoch": epoch, "loss": loss, "histogram": {"target": [1] * 90}})
            expected[epoch] = loss
        assert tensorboard_losses(tmp_path) == expected  # not closed: a killed process closes nothing
    for board in boards:
        board.close(failed=False)
    assert list(expected) == list(range(1, 10))


def test_a_training_resumed_with_an_earlier_clock_shows_every_epoch(images, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    run = TrainConfig(
        data=str(images), model="fast(width=0.125)", loss="arcgrad(s=10)", input_size=16, batch_size=12, epochs=3
    )
    train(run, tmp_path, loggers=["tensorboard"], quiet=True, stop_after=2)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 7 * 86400)
    train(run, tmp_path, loggers=["tensorboard"], quiet=True, resume=True)
    lines = MetricsLog.read_epochs(tmp_path / "metrics.jsonl")
    assert tensorboard_losses(tmp_path) == pytest.approx({line["epoch"]: line["loss"] for line in lines})
    assert len(lines) == 3
