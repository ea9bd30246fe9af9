"""Files of a run, a model or a table that are pipes, devices, folders or gigabytes of holes: one line, little memory.

Every case runs in a process of its own whose growth is measured, with a time limit, so that a reader which waits for
ever or fills the memory fails its test and nothing else.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from widemargin.errors import InputError
from widemargin.selftest import siege
from widemargin.selftest.corpus import files

MOST_MEMORY = 300 << 20
SPARSE = 8 << 30
LAST = "checkpoints/last"


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch):
    monkeypatch.setattr(siege, "_PATIENCE", 30.0)


@pytest.fixture
def run(tmp_path) -> Path:
    """The folder of a small finished run."""
    good, place = files("run"), tmp_path / "run"
    (place / LAST).mkdir(parents=True)
    (place / "run.json").write_bytes(good["run.json"])
    for name in ("state.json", "model.safetensors", "training.safetensors"):
        (place / LAST / name).write_bytes(good[name])
    (place / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "loss": 1.0, "step": 5}) + "\n")
    (place / "record.json").write_text(json.dumps({"test": {"top1": 50.0}, "seconds": 1.0}))
    return place


def spoil(path: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(SPARSE)


def load_run(folder: str) -> None:
    from widemargin.training.finished import finished

    finished(folder)


def load_hub(folder: str) -> None:
    from widemargin.hub_folder import load

    load(folder)


def open_store(folder: str) -> None:
    from widemargin.results import Store

    Store(folder)


def resumed_log(folder: str) -> None:
    from widemargin.run import Run
    from widemargin.training.log import Log

    Log(Path(folder), 1, [], Run())


def refused(call, *given, tmp_path: Path) -> str:
    """The line with which a call in a process of its own is refused; neither time nor memory is taken."""
    answer = siege.attempt(call, given, tmp_path, {})
    said = answer.said
    if answer.how == "returned":  # a command: the line is printed
        assert answer.code == 2, answer
        lines = [line for line in answer.printed.splitlines() if line.startswith("widemargin: ")]
        assert len(lines) == 1, answer
        said = lines[0]
    else:
        assert answer.how == "refused", answer
    assert "Traceback" not in answer.printed
    assert answer.grown < MOST_MEMORY, f"{answer.grown >> 20} MiB"
    assert len(said) < 1000
    return said


KINDS = ("pipe", "device", "holes", "folder")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["run.json", *(f"{LAST}/{n}" for n in ("state.json", "model.safetensors"))])
def test_a_run_whose_files_are_none_is_refused(run, tmp_path, name, kind):
    spoil(run / name, kind)
    assert Path(name).name in refused(load_run, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["training.safetensors", "sha256.json"])
def test_a_checkpoint_whose_files_are_none_is_refused(run, tmp_path, name, kind):
    spoil(run / LAST / name, kind)
    assert "damaged" in refused(load_run, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_made_of_files_only(run, tmp_path, kind):
    (run / LAST / "sha256.json").write_text(json.dumps({"other": "0" * 64}))
    spoil(run / LAST / "other", kind)
    assert "damaged" in refused(load_run, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["metrics.jsonl", "record.json"])
def test_a_report_of_files_that_are_none_is_refused(run, tmp_path, name, kind):
    spoil(run / name, kind)
    said = refused(siege.command, "report", str(run), "--no-images", tmp_path=tmp_path)
    assert name in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_is_none_is_not_resumed(run, tmp_path, kind):
    spoil(run / "metrics.jsonl", kind)
    assert "metrics.jsonl" in refused(resumed_log, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_results_that_are_no_file_are_refused(tmp_path, kind):
    spoil(tmp_path / "results.jsonl", kind)
    refused(open_store, str(tmp_path), tmp_path=tmp_path)
