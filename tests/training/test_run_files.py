"""Run folders whose files are pipes, devices, folders or gigabytes of holes: one line, little memory."""

import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from refusals import (
    CHECKPOINT,
    FILE_KINDS,
    MAX_MEMORY_GROWTH,
    load_run,
    refusal_message,
    replace_with,
    resume_log,
    run_attempt,
    save_again,
    write_black_png,
    write_run_folder,
    write_sparse_weights,
)
from stress.fuzzing import load_corpus_files
from stress.sandbox import run_cli
from widemargin.io.errors import InputError
from widemargin.training import run_files


@pytest.fixture
def run(tmp_path) -> Path:
    """The folder of a small finished run."""
    return write_run_folder(tmp_path / "run")


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize("name", ["run.json", *(f"{CHECKPOINT}/{n}" for n in ("state.json", "model.safetensors"))])
def test_a_run_whose_files_are_none_is_refused(run, tmp_path, name, kind):
    replace_with(run / name, kind)
    assert Path(name).name in refusal_message(load_run, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize("name", ["training.safetensors", "sha256.json"])
def test_a_checkpoint_whose_files_are_none_is_refused(run, tmp_path, name, kind):
    replace_with(run / CHECKPOINT / name, kind)
    assert "damaged" in refusal_message(load_run, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_sums_are_made_of_files_only(run, tmp_path, kind):
    (run / CHECKPOINT / "sha256.json").write_text(json.dumps({"state.json": "0" * 64}))
    replace_with(run / CHECKPOINT / "state.json", kind)
    assert "damaged" in refusal_message(load_run, str(run), tmp_path=tmp_path)


def test_sums_are_made_of_the_files_of_a_checkpoint_only(run, tmp_path):
    """One file under a million names would be read a million times."""
    names = {f"{number}/model.safetensors": "0" * 64 for number in range(1000)}
    (run / CHECKPOINT / "sha256.json").write_text(json.dumps(names))
    assert "'0/model.safetensors', which is not a file of a checkpoint" in refusal_message(
        load_run, str(run), tmp_path=tmp_path
    )


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["last.new", "last.old"])
def test_a_checkpoint_is_written_past_whatever_lies_there(run, tmp_path, name, kind):
    replace_with(run / "checkpoints" / name, kind)
    answer = run_attempt(save_again, (str(run),), tmp_path)
    assert answer.status == "returned", answer
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["last"]
    assert Path("/dev/zero").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "holes"])
def test_a_checkpoint_that_is_no_folder_is_told_instead_of_a_new_beginning(run, tmp_path, kind):
    (run / CHECKPOINT).rename(run / "checkpoints" / "away")
    replace_with(run / CHECKPOINT, kind)
    assert "a checkpoint must be a folder" in refusal_message(load_run, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_page_is_written_in_its_own_place(run, tmp_path, kind):
    victim, page = tmp_path / "victim", run / "report.html"
    victim.write_text("precious")
    page.symlink_to(victim) if kind == "link" else os.mkfifo(page)
    answer = run_attempt(run_cli, ("report", str(run), "--no-images"), tmp_path)
    assert (answer.status, answer.exit_code) == ("returned", 0), answer
    assert victim.read_text() == "precious"
    assert page.is_file()
    assert not page.is_symlink()


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize("name", ["metrics.jsonl", "record.json"])
def test_a_report_of_files_that_are_none_is_refused(run, tmp_path, name, kind):
    replace_with(run / name, kind)
    said = refusal_message(run_cli, "report", str(run), "--no-images", tmp_path=tmp_path)
    assert name in said


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_log_that_is_none_is_not_resumed(run, tmp_path, kind):
    replace_with(run / "metrics.jsonl", kind)
    assert "metrics.jsonl" in refusal_message(resume_log, str(run), tmp_path=tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors"])
def test_weights_that_are_holes_are_not_read(run, tmp_path, name):
    write_sparse_weights(run / CHECKPOINT / name)
    assert "sparse file" in refusal_message(load_run, str(run), tmp_path=tmp_path)


def test_weights_far_larger_than_the_network_are_not_read(run, tmp_path):
    tensors = {"a": torch.ones(400 << 20, dtype=torch.uint8)}
    save_file(tensors, run / CHECKPOINT / "model.safetensors")
    assert "these weights belong to another model" in refusal_message(load_run, str(run), tmp_path=tmp_path)
    (run / CHECKPOINT / "model.safetensors").write_bytes(load_corpus_files("run")["model.safetensors"])
    save_file({**tensors, "average.a": torch.ones(3)}, run / CHECKPOINT / "training.safetensors")
    # Moments are no part of a model that is evaluated.
    load_small = run_attempt(load_run, (str(run),), tmp_path)
    assert load_small.memory_growth < MAX_MEMORY_GROWTH


def test_the_size_of_a_runs_images_is_bounded(run, tmp_path):
    from widemargin.training.config import TrainConfig

    for size in (4097, 65_536, 0, 2.0, True):
        settings = json.loads((run / "run.json").read_bytes())
        (run / "run.json").write_text(json.dumps({**settings, "input_size": size}))
        with pytest.raises(InputError, match=r"input_size.*1 to 4,096"):
            TrainConfig.read(run)
    assert TrainConfig(input_size=4096).input_size == 4096
    state = json.loads((run / CHECKPOINT / "state.json").read_bytes())
    (run / "run.json").write_bytes(load_corpus_files("run")["run.json"])
    (run / CHECKPOINT / "state.json").write_text(
        json.dumps({**state, "input_spec": {**state["input_spec"], "size": 65_536}})
    )
    assert "input_spec.size is not an integer from 1 to 4,096" in refusal_message(load_run, str(run), tmp_path=tmp_path)


def test_fewer_images_are_judged_at_once_where_they_are_large(run, tmp_path, monkeypatch):
    from widemargin.training import image_inputs
    from widemargin.training.run_loading import load_run

    for number in range(5):
        write_black_png(tmp_path / f"{number}.png", 20 + number, 30)
    done = load_run(run)
    paths, sizes = [tmp_path / f"{number}.png" for number in range(5)], []
    wanted = done.embed(paths)
    embed = done.model.embed
    monkeypatch.setattr(done.model, "embed", lambda x: sizes.append(len(x)) or embed(x))
    monkeypatch.setattr(
        image_inputs, "_MAX_BATCH_VALUES", 2 * done.input_spec["channels"] * done.input_spec["size"] ** 2
    )
    torch.testing.assert_close(done.embed(paths), wanted)
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_bad_epochs", math.inf),
        ("num_bad_epochs", 1.0),
        ("num_bad_epochs", -1),
        ("lr_scale", math.nan),
        ("lr_scale", 2),
    ],
)
def test_a_plateau_that_cannot_go_on_is_refused(name, value):
    """An infinite count ended in a traceback, a NaN in rates that are none."""
    state = {"epoch": 1, "step": 2, "seconds": 0.1, "best": None, "optimizer": {}, "precision": {}}
    plateau = {"best": math.inf, "num_bad_epochs": 0, "lr_scale": 0.1}
    assert run_files.check_training_state({**state, "plateau": plateau})["plateau"] == plateau
    with pytest.raises(ValueError, match=rf"plateau\.{name} is no"):
        run_files.check_training_state({**state, "plateau": {**plateau, name: value}})
