"""`--resume RUN` needs no other word; a run goes on with more epochs, and its record says so."""

import json
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from runs import assert_same, lines
from widemargin.cli.main import main
from widemargin.data.images.sets import ImageSet, load_images
from widemargin.io.errors import InputError
from widemargin.training.config import TrainConfig
from widemargin.training.optim import learning_rate
from widemargin.training.resume import RunFile, recorded_data_dir, resume_config
from widemargin.training.train import train

SMALL = TrainConfig(
    data="mnist",
    model="fast(width=0.125)",
    train_fraction=0.1,
    batch_size=100,
    epochs=2,
    augment="none",
    opt="sgd",
    lr=0.05,
    schedule="constant",
)


@cache
def _load_few_images(name: str, folder: Path) -> ImageSet:
    found = load_images(name, folder)
    few = torch.arange(3000)
    return ImageSet(found.name, found.train.take(few), found.test.take(few[:100]), found.mean, found.std)


@pytest.fixture(autouse=True)
def _few_images(monkeypatch):
    """The data sets are read once for all tests of this file, and only the start of them is used."""
    monkeypatch.setattr("widemargin.data.images.sets.load_images", _load_few_images)
    monkeypatch.delenv("WANDB_NAME", raising=False)


@pytest.fixture
def run(tmp_path, data_dir):
    """A run of two epochs that has ended."""
    train(SMALL, tmp_path / "run", data_dir=data_dir, quiet=True)
    return tmp_path / "run"


def record_of(folder: Path) -> dict:
    return json.loads((folder / "record.json").read_text())


def said_by(words: list[str], capsys) -> str:
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


def test_a_folder_is_all_that_is_needed(tmp_path, data_dir, monkeypatch, capsys):
    train(SMALL, tmp_path / "whole", data_dir=data_dir, quiet=True)
    train(SMALL, tmp_path / "run", data_dir=data_dir, quiet=True, stop_after=1)
    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)  # the folder that was given is recorded
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert f"wrote {tmp_path / 'run'}" in capsys.readouterr().out
    assert_same(tmp_path / "whole", tmp_path / "run")
    record = record_of(tmp_path / "run")
    assert record["command"].startswith("widemargin train mnist 'fast(width=0.125)'")
    assert "epochs_changed" not in record
    assert recorded_data_dir(tmp_path / "run") == str(data_dir)


def test_the_words_of_the_run_still_do(tmp_path, data_dir):
    train(SMALL, tmp_path / "run", data_dir=data_dir, quiet=True, stop_after=1)
    words = SMALL.to_command()[2:]
    where = ["--out", str(tmp_path / "run"), "--data-dir", str(data_dir), "--quiet"]
    assert main(["train", "--resume", *words, *where]) == 0  # the first word after --resume is the data's name
    assert main(["train", *words, "--resume", *where]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--lr", "0.1"], "holds another run (--lr is 0.05, not 0.1): omit it"),
        (["cifar10"], "holds another run (data is 'mnist', not 'cifar10')"),
        (["--smoothing", "0.2"], "(--label-smoothing is 0.0, not 0.2)"),
        (["--neck"], "(--neck is False, not True)"),
        (["--opt", "sdg"], "unknown --opt 'sdg'; did you mean 'sgd'?"),
        (["--out", "elsewhere"], "continues in that folder: omit --out"),
        (["--epochs", "1"], "epoch 2 has already started, so the run cannot end after 1"),
    ],
)
def test_words_that_contradict_the_run_are_one_line(run, words, says, capsys):
    before = (run / "run.json").read_bytes()
    assert says in said_by([*words, "--resume", str(run)], capsys)
    assert (run / "run.json").read_bytes() == before


def test_words_that_say_the_same_are_no_contradiction(run):
    assert main(["train", "--resume", str(run), "--lr", "0.05", "--no-neck", "--name", "again", "--quiet"]) == 0
    assert TrainConfig.read(run) == replace(SMALL, name="again")


def test_no_run_folder_is_one_line(tmp_path, capsys):
    assert "not a run folder, it has no run.json" in said_by(["--resume", str(tmp_path)], capsys)


def test_a_constant_rate_extends_to_the_run_from_the_start(run, tmp_path, data_dir):
    longer = replace(SMALL, epochs=3)
    train(longer, tmp_path / "whole", data_dir=data_dir, quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(longer, run, data_dir=data_dir, quiet=True, resume=True)
    assert_same(tmp_path / "whole", run)
    assert record_of(run)["test"] == record_of(tmp_path / "whole")["test"]
    steps = lines(run)[1]["step"]
    assert record_of(run)["epochs_changed"] == [{"from": 2, "to": 3, "at_epoch": 2, "at_step": steps}]
    assert RunFile.read(run).config == longer
    assert json.loads((run / "record-2-epochs.json").read_text())["epochs"] == 2


def test_an_extended_onecycle_follows_the_new_length_and_says_so(tmp_path, data_dir):
    config, folder = replace(SMALL, schedule="onecycle"), tmp_path / "run"
    train(config, folder, data_dir=data_dir, quiet=True, stop_after=1)
    says = "from epoch 2 on, the onecycle schedule is that of 4 epochs instead of 2"
    with pytest.warns(UserWarning, match=says):
        assert main(["train", "--resume", str(folder), "--epochs", "4", "--quiet"]) == 0
    logged = lines(folder)
    per_epoch = logged[0]["step"]
    for line in logged:
        length = 2 if line["epoch"] == 1 else 4
        assert line["lr"] == learning_rate(replace(config, epochs=length), line["step"] - 1, per_epoch)
    change = {"from": 2, "to": 4, "at_epoch": 1, "at_step": per_epoch}
    assert record_of(folder)["epochs_changed"] == [change]
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0  # judged again: the history stays
    assert record_of(folder)["epochs_changed"] == [change]


def test_a_change_that_is_taken_back_leaves_no_trace(run, data_dir):
    train(replace(SMALL, epochs=5), run, data_dir=data_dir, quiet=True, resume=True, stop_after=0)
    assert len(RunFile.read(run).epochs_changed) == 1
    assert not (run / "record.json").exists()  # its checkpoint may be replaced any time
    train(SMALL, run, data_dir=data_dir, quiet=True, resume=True)
    assert RunFile.read(run).epochs_changed == ()
    assert "epochs_changed" not in record_of(run)


def test_a_recipe_does_not_take_an_extended_run_for_its_own(tmp_path):
    from widemargin.reproduce.parts.runs import read_record, run_folder

    folder = run_folder(SMALL, tmp_path)
    folder.mkdir()
    record = {"test": {"top1": 50.0}, "epochs_changed": [{"from": 1, "to": 2, "at_epoch": 1, "at_step": 3}]}
    (folder / "record.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="number of epochs was changed"):
        read_record(SMALL, tmp_path)


@pytest.mark.parametrize("extra", [{"data_dir": 3}, {"epochs_changed": [1]}, {"epochs_changed": [{"from": 1}]}])
def test_a_damaged_history_is_one_line(run, extra):
    (run / "run.json").write_text(SMALL.to_json(**extra))
    with pytest.raises(InputError, match=rf"run\.json: {next(iter(extra))} must be"):
        RunFile.read(run)


def test_a_config_from_a_folder_takes_no_other_fields(run):
    assert resume_config(run, {"epochs": 7, "name": "x"}) == replace(SMALL, epochs=7, name="x")
    with pytest.raises(InputError, match=r"lr is 0\.05, not 0\.2"):
        resume_config(run, {"lr": 0.2})


def test_resume_alone_names_no_run(capsys):
    assert main(["train", "--resume"]) == 2
    assert "name the run to continue" in capsys.readouterr().err
