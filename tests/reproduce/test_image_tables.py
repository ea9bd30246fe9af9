"""Image recipes: their settings are the paper's, finished runs are never repeated, jobs do what a process does."""

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from small_sets import write_small_cifar
from widemargin.cli.main import main
from widemargin.io.errors import InputError
from widemargin.reproduce import longtail, seed_resnet18, seed_vit_tiny
from widemargin.reproduce.parts import runs
from widemargin.reproduce.parts.image_tables import MetricColumn
from widemargin.reproduce.parts.runs import HEADLINE_CONFIG, IMAGE_LOSSES, make_image_config
from widemargin.reproduce.seed_flags import make_seed_config
from widemargin.training.config import TrainConfig
from widemargin.viz.charts import draw_strip_plot
from widemargin.viz.matrices import draw_ridgeline

TINY = TrainConfig(
    data="cifar10", model="fast(widths=(8, 8, 8))", loss="arcgrad(s=10)", epochs=1, batch_size=50, opt="adamw", lr=0.01
)


@pytest.fixture
def tiny_sizes(monkeypatch):
    """A smaller CPU size: the test checks the procedure, not the results."""
    monkeypatch.setattr(runs, "_CPU_CONFIG", replace(TINY, augment="paper"))


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---------------------------------------------------------------- settings


def test_the_full_size_is_table_3_as_printed():
    ten = make_image_config("full", "cifar10", IMAGE_LOSSES["arcgrad"], 4)
    assert (ten.model, ten.epochs, ten.batch_size, ten.lr, ten.weight_decay) == ("resnet18", 120, 256, 0.1, 5e-4)
    assert (ten.opt, ten.schedule, ten.augment, ten.label_smoothing) == ("adam", "onecycle", "paper", 0.0)
    hundred = make_image_config("full", "cifar100", IMAGE_LOSSES["soft"], 0)
    assert (hundred.model, hundred.epochs, hundred.batch_size, hundred.lr) == ("resnet34", 160, 128, 0.01)
    assert IMAGE_LOSSES["arcface"] == "arcface(s=20, m=0.1)"
    assert IMAGE_LOSSES["arcgrad"] == "arcgrad(s=10)"
    with pytest.raises(InputError, match="size"):
        make_image_config("huge", "cifar10", "softmax", 0)


def test_the_seeds_commands_are_their_recipes():
    vit = make_seed_config(seed_vit_tiny.VIT_TINY_COMMAND, "full", "a name")
    assert (vit.model, vit.epochs, vit.repeated_augmentation, vit.label_smoothing, vit.neck) == (
        "vit_tiny_patch16_224",
        100,
        3,
        0.1,
        True,
    )
    assert (vit.opt, vit.lr, vit.weight_decay, vit.batch_size, vit.name) == ("adamw", 1e-3, 0.05, 256, "a name")
    assert vit.model_options == {"patch_size": 2, "img_size": 32}
    resnet = make_seed_config(seed_resnet18.RESNET18_COMMAND, "full", "x")
    assert (resnet.opt, resnet.lr, resnet.epochs, resnet.input_size) == ("muon", 0.002, 100, 64)
    assert resnet.loss == "arcgrad(s=10)"
    small = make_seed_config(seed_resnet18.RESNET18_COMMAND, "cpu", "x")
    assert (small.epochs, small.train_fraction, small.model_options) == (1, 0.02, resnet.model_options)


def test_the_headlines_seed_is_fixed_and_nothing_is_held_out():
    assert (
        HEADLINE_CONFIG.seed,
        HEADLINE_CONFIG.val_fraction,
        HEADLINE_CONFIG.train_fraction,
        HEADLINE_CONFIG.loss.split("(")[0],
    ) == (0, 0.0, 1.0, "arcgrad")


def test_folders_tell_runs_apart_and_do_not_depend_on_names():
    here = runs.run_folder(TINY, Path("runs"))
    assert runs.run_folder(replace(TINY, name="anything"), Path("runs")) == here
    others = [
        replace(TINY, seed=1),
        replace(TINY, train_fraction=0.5),
        replace(TINY, loss="softmax"),
        replace(TINY, lr=0.02),
    ]
    assert len({here, *(runs.run_folder(run, Path("runs")) for run in others)}) == 5
    assert runs.unique_configs([TINY, *others, TINY]) == [TINY, *others]


# ---------------------------------------------------------------- from the command to the page


def test_a_table_is_made_once_and_shared(tmp_path, monkeypatch, tiny_sizes, capsys):
    data = write_small_cifar("cifar10", tmp_path / "data", monkeypatch)
    common = ["--size", "cpu", "--seeds", "1", "--runs-dir", str(tmp_path / "runs"), "--data-dir", str(data)]
    assert main(["reproduce", "table7", *common, "--epochs", "1", "--out", str(tmp_path / "seven")]) == 0
    printed = capsys.readouterr().out
    assert "8 of 8 runs are finished" in printed
    records = read_lines(tmp_path / "seven" / "records.jsonl")
    assert {record["loss"] for record in records} == {*IMAGE_LOSSES.values(), "adaacos", "cosface(s=20, m=0.1)"}
    for record in records:
        assert {"data", "loss", "model", "seed", "epochs", "seconds", "cores", "test", "angles"} <= set(record)
        assert record["test"]["top1"] > 0
        assert 0 < record["angles"]["wc_intra"] < 3.15
        assert f"{record['test']['top1']:.2f}" in printed
    page = (tmp_path / "seven" / "report.html").read_text()
    assert page.count("<svg") == 4  # accuracy and three angles

    def no_training(*_, **__):
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr("widemargin.training.train.train", no_training)
    assert main(["reproduce", "table6", *common, "--out", str(tmp_path / "six")]) == 0
    assert main(["reproduce", "table4", *common, "--augment", "paper", "--out", str(tmp_path / "four")]) == 0
    assert main(["reproduce", "figure4", *common, "--out", str(tmp_path / "f4")]) == 0
    assert "0.24" in capsys.readouterr().out  # the paper's WC-Intra
    assert (tmp_path / "f4" / "report.html").read_text().count("<svg") == 4
    assert main(["reproduce", "figure3", *common, "--list", "--out", str(tmp_path / "f3")]) == 0
    assert "0 of 16 runs are finished" in capsys.readouterr().out  # 10 epochs, not the one above


@pytest.mark.slow
def test_figure_3_with_fewer_images(tmp_path, monkeypatch, tiny_sizes, capsys):
    data = write_small_cifar("cifar10", tmp_path / "data", monkeypatch, train=500)
    words = ["--size", "cpu", "--seeds", "1", "--runs-dir", str(tmp_path / "runs"), "--data-dir", str(data)]
    monkeypatch.setattr("widemargin.reproduce.figure3.TRAIN_FRACTIONS", (1.0, 0.2))
    monkeypatch.setattr("widemargin.reproduce.figure3.FIGURE3_METHODS", ("arcgrad", "soft"))
    assert main(["reproduce", "figure3", *words, "--out", str(tmp_path / "out")]) == 0
    assert "20 %" in capsys.readouterr().out
    assert sorted({record["train_fraction"] for record in read_lines(tmp_path / "out" / "records.jsonl")}) == [0.2, 1.0]
    assert "percent of the training images" in (tmp_path / "out" / "report.html").read_text()


def test_the_long_tail_in_small(tmp_path, monkeypatch, tiny_sizes, capsys):
    data = write_small_cifar("cifar10", tmp_path / "data", monkeypatch, train=2000)
    every = longtail.methods()
    chosen = {title: every[title] for title in ("ldam, DRW", "logit_adjusted", "arcgrad(s=4.2)")}
    monkeypatch.setattr(longtail, "methods", lambda: chosen)
    words = ["--seeds", "1", "--runs-dir", str(tmp_path / "runs"), "--data-dir", str(data)]
    assert main(["reproduce", "longtail", *words, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    for title, record in zip(chosen, read_lines(tmp_path / "out" / "records.jsonl"), strict=True):
        assert record["imbalance"] == 100
        assert record["class_weight_start"] == (0.8 if "DRW" in title else 0.0)
        accuracy = record["class_accuracy"]
        assert record["test"]["balanced_accuracy"] == pytest.approx(sum(accuracy) / 10)
        groups = [sum(accuracy[:4]) / 4, sum(accuracy[4:8]) / 4, sum(accuracy[8:]) / 2]
        [row] = [line for line in printed.splitlines() if f"│ {title} " in line]
        assert re.findall(r"\d+\.\d\d", row) == [f"{v:.2f}" for v in (record["test"]["balanced_accuracy"], *groups)]
    assert (tmp_path / "out" / "report.html").read_text().count("<svg") == 4


def test_the_long_tails_runs_differ_by_loss_and_class_weights_alone():
    configs = longtail.runs()
    assert [config.seed for config in configs["softmax"]] == [0, 1, 2]
    assert len({runs.run_folder(config, Path("runs")) for own in configs.values() for config in own}) == 27
    for own in configs.values():
        assert replace(own[0], loss="softmax", class_weight="none", class_weight_start=0.0) == configs["softmax"][0]
    with pytest.raises(InputError, match="--seeds must be at least 1"):
        longtail.run(argparse.Namespace(seeds=0))


def test_cifar_100_in_the_official_layout(tmp_path, monkeypatch, tiny_sizes, capsys):
    data = write_small_cifar("cifar100", tmp_path / "data", monkeypatch)
    monkeypatch.setattr(runs, "IMAGE_LOSSES", {"arcgrad": "arcgrad(s=10)"})
    monkeypatch.setattr("widemargin.reproduce.parts.image_tables.IMAGE_LOSSES", IMAGE_LOSSES)
    monkeypatch.setattr("widemargin.reproduce.parts.image_tables.EXTRA_LOSSES", {})
    words = ["--size", "cpu", "--seeds", "1", "--runs-dir", str(tmp_path / "runs"), "--data-dir", str(data)]
    assert main(["reproduce", "table5", *words, "--out", str(tmp_path / "out")]) == 0
    assert "75.12" in capsys.readouterr().out
    assert {record["data"] for record in read_lines(tmp_path / "out" / "records.jsonl")} == {"cifar100"}


def test_a_spoilt_record_is_one_line(tmp_path):
    folder = runs.run_folder(TINY, tmp_path)
    folder.mkdir()
    (folder / "record.json").write_text("{}")
    with pytest.raises(InputError, match="not the record of a run; delete its folder"):
        runs.read_record(TINY, tmp_path)


def test_a_run_that_diverges_does_not_keep_the_others(tmp_path, monkeypatch, capsys):
    data = write_small_cifar("cifar10", tmp_path / "data", monkeypatch)
    wild = replace(TINY, lr=1e30, opt="sgd", loss="softmax")
    runs.run_locally([wild, TINY], tmp_path / "runs", str(data))
    assert runs.missing_configs([wild, TINY], tmp_path / "runs") == [wild]
    assert "loss" in capsys.readouterr().err


def test_a_list_continues_from_the_records_of_another_machine(tmp_path, tiny_sizes, monkeypatch, capsys):
    data = write_small_cifar("cifar10", tmp_path / "data", monkeypatch)
    monkeypatch.setattr("widemargin.reproduce.parts.image_tables.select_losses", lambda options: {"soft": "softmax"})
    words = ["reproduce", "table7", "--size", "cpu", "--data-dir", str(data), "--out"]
    first, second = ([*words, str(tmp_path / name), "--runs-dir", str(tmp_path / f"runs_{name}")] for name in "ab")
    assert main([*first, "--seeds", "1"]) == 0
    [kept] = read_lines(tmp_path / "a" / "records.jsonl")
    kept["test"]["top1"] = 12.5  # so that a repeated run would show
    (tmp_path / "here.jsonl").write_text(json.dumps(kept) + "\n" + json.dumps({**kept, "run": "another"}) + "\n")
    assert main([*second, "--seeds", "2", "--records", str(tmp_path / "here.jsonl")]) == 0
    assert "1 finished run added" in capsys.readouterr().out
    found = read_lines(tmp_path / "b" / "records.jsonl")
    assert [record["seed"] for record in found] == [0, 1, 0]
    assert found[0] == kept
    assert found[2]["run"] == "another"  # of this recipe with other options

    (tmp_path / "bad.jsonl").write_text(json.dumps(kept) + "\n{}\n")
    assert main([*second, "--records", str(tmp_path / "bad.jsonl")]) == 2
    assert "bad.jsonl, line 2: not the record of a run" in capsys.readouterr().err


def test_figure_4_leaves_out_runs_without_a_log(tmp_path, tiny_sizes, capsys):
    words = ["reproduce", "figure4", "--size", "cpu", "--runs-dir", str(tmp_path / "runs"), "--out", str(tmp_path)]
    configs = [make_image_config("cpu", "cifar10", loss, 0, augment="paper") for loss in IMAGE_LOSSES.values()]
    test = {"test": {"top1": 50.0}}
    lines = [{"run": runs.run_folder(config, Path()).name, "loss": config.loss, **test} for config in configs]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([*words, "--records", str(tmp_path / "records.jsonl")]) == 0
    assert (tmp_path / "report.html").is_file()


# ---------------------------------------------------------------- jobs


@pytest.mark.slow
def test_jobs_do_what_a_process_does(tmp_path, data_dir):
    """submitit's own local executor: real processes, on real images."""
    pytest.importorskip("submitit")
    run = replace(TINY, train_fraction=0.01)
    jobs = runs.submit_jobs([run], tmp_path / "jobs", str(data_dir), cluster="local", timeout_min=5)
    [answer] = [job.result() for job in jobs]
    runs.run_locally([run], tmp_path / "here", str(data_dir))
    sent, here = (runs.read_record(run, tmp_path / place) for place in ("jobs", "here"))
    assert answer == sent["test"]
    assert sent["test"]["top1"] == here["test"]["top1"]  # threads differ, and with them last digits of the loss
    assert not runs.missing_configs([run], tmp_path / "jobs")


def test_a_preempted_job_is_sent_again():
    pytest.importorskip("submitit")
    job = runs.Job(TINY.to_json(), "folder", None)
    again = job.checkpoint()
    assert again.function is job


def test_slurm_where_there_is_none_is_one_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    words = [
        "reproduce",
        "headline",
        "--executor",
        "slurm",
        "--runs-dir",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("widemargin: --executor slurm")
    assert error.count("\n") == 1


# ---------------------------------------------------------------- pictures


def test_columns_show_means_spreads_and_the_winner():
    column = MetricColumn("top-1", {"a": [1.0, 2.0], "b": [3.0], "c": []}, {"a": 1.25})
    assert (column.format_mean("a"), column.format_mean("b"), column.format_mean("c")) == ("1.50 ± 0.71", "3.00", "–")
    assert (column.format_paper_value("a"), column.format_paper_value("b")) == ("1.25", "–")
    assert column.best_method(["a", "b", "c"]) == "b"
    assert replace(column, better_direction="low").best_method(["a", "b"]) == "a"


def test_pictures_escape_names():
    hostile = "<script>"
    assert hostile not in draw_strip_plot([hostile], [[1.0, 2.0]], [None], ["#000"], hostile, hostile).to_svg()
    assert hostile not in draw_ridgeline([hostile, "2"], [[1, 2], [0, 0]], "#000", hostile).to_svg()


def test_run_folders_keep_their_names():
    """Finished runs are found by a hash of the settings that differ from the defaults: it may never change."""
    expected = [
        (TrainConfig(), "cifar10-resnet18-arcgrad_s=10-120e-seed0-44136fa3"),
        (HEADLINE_CONFIG, "cifar10-fast_bias=False-arcgrad_s=10-32e-seed0-b5d4ea72"),
        (
            make_image_config("cpu", "cifar10", "arcgrad(s=10)", 1),
            "cifar10-fast_widths=_32_96_96_bias=False-arcgrad_s=10-10e-seed1-b86a3a6d",
        ),
        (
            make_image_config("full", "cifar100", "softmax", 3, as_printed=False),
            "cifar100-resnet34-softmax-160e-seed3-825611df",
        ),
        (
            make_seed_config(seed_resnet18.RESNET18_COMMAND, "full", "arcgrad"),
            "cifar10-resnet18-arcgrad_s=10-100e-seed0-19f6a1a7",
        ),
        (
            make_seed_config(seed_vit_tiny.VIT_TINY_COMMAND, "cpu", "arcgrad_vitt_e200"),
            "cifar10-vit_tiny_patch16_224-arcgrad_s=10-1e-seed0-b1cc24cb",
        ),
    ]
    for config, name in expected:
        assert runs.run_folder(config, Path("runs")) == Path("runs", name)
