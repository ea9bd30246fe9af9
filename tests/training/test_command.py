"""A run as the words of its command: typed again, they describe the same run."""

import shlex
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs import RESNET, VIT, config_of_command
from widemargin.models.build import parse_model
from widemargin.training.config import (
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    TrainConfig,
    format_with_options,
)

# Another value than the usual one for every field of a run.
OTHER = {
    "data": "mnist",
    "model": "fast(width=0.5)",
    "loss": "arcface(s=learnable(20), m=warmup(0, 0.3, steps=8)) + 0.02*center",
    "epochs": 3,
    "batch_size": 64,
    "seed": 7,
    "embedding_dim": 48,
    "opt": "muon",
    "lr": 1 / 3,
    "weight_decay": 1e-17,
    "momentum": 0.0,
    "schedule": "plateau",
    "warmup_epochs": 1.5,
    "warmup_lr": 2e-6,
    "min_lr": 1e-5,
    "label_smoothing": 0.1,
    "class_weight": "effective",
    "class_weight_start": 0.8,
    "on_bad_image": "skip",
    "augment": "none",
    "augment_options": {
        "pad": 2,
        "pad_mode": "reflect",
        "flip": "alternating",
        "hflip": 0.3,
        "scale": (0.8, 1),
        "ratio": (0.75, 4 / 3),
        "interpolation": "bilinear",
        "rand": "rand-m9-mstd0.5-inc1",
        "erase": 0.1,
        "mixup": 0.8,
        "cutmix": 1.0,
        "mix_prob": 0.5,
        "switch": 0.25,
        "mix_each": True,
        "mean": (0.4914, 0.4822, 0.4465),
        "std": [0.2470, 0.2435, 0.2616],
        "eval_zoom": None,
    },
    "model_options": {
        "pretrained": True,
        "patch_size": 2,
        "stem_type": "deep",
        "widths": [32, 96, 96],
        "name": 'it\'s build_model.x=3, "quoted"',
        "nothing": None,
        "small": 1e-300,
        "more": {"a": [1, -2.5], "b": (False,)},
    },
    "neck": True,
    "repeated_augmentation": 3,
    "input_size": 64,
    "per_class": 4,
    "unseen_classes": 0.5,
    "label_separator": ";",
    "train_fraction": 0.1,
    "imbalance": 12.5,
    "val_fraction": 0.2,
    "accumulate": 2,
    "clip": 1.0,
    "ema": 0.999,
    "precision": "bf16-mixed",
    "compile": True,
    "channels_last": False,
    "sync_bn": False,
    "ckpt_freq": 2,
    "init_from": "runs/another one",
    "name": "$(touch x) `y` -- 'z'",
    "backend": "sampled",
    "sample_rate": 0.1,
    "head_lr_scale": 10.0,
    "freeze": "conv1,layer1",
    "freeze_epochs": 1,
    "sampling": "balanced",
    "val_classes": 0.25,
    "select_by": "tar",
    "knn_probe": 20,
    "average_last": 2,
    "grad_checkpointing": True,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def _unset_run_name(monkeypatch):
    monkeypatch.delenv("WANDB_NAME", raising=False)


def config_read_back(run: TrainConfig) -> TrainConfig:
    """The run of the command as a shell and the command itself read it."""
    words = shlex.split(shlex.join(run.to_command()))
    assert words[:2] == ["widemargin", "train"]
    return config_of_command(shlex.join(words[2:]))


def test_no_field_of_a_run_is_forgotten():
    assert set(OTHER) == {field.name for field in fields(TrainConfig)}


@pytest.mark.parametrize("name", OTHER)
def test_every_field_comes_back(name):
    run = TrainConfig(**{name: OTHER[name]})
    assert run != TrainConfig()
    assert config_read_back(run) == run


def test_all_fields_at_once_come_back():
    assert config_read_back(TrainConfig(**OTHER)) == TrainConfig(**OTHER)


@pytest.mark.parametrize("words", [VIT, RESNET, f"{VIT} --no-neck --augment 'paper(mixup=0.2)'"])
def test_the_seeds_commands_come_back_in_our_own_words(words, monkeypatch):
    monkeypatch.setenv("WANDB_NAME", "arcgrad_vitt_e200")
    run = config_of_command(words)
    monkeypatch.delenv("WANDB_NAME")
    spelt = run.to_command()
    assert "--margin-loss" not in spelt
    assert spelt[spelt.index("--name") + 1] == "arcgrad_vitt_e200"
    assert config_read_back(run) == run


def test_the_usual_run_is_three_words():
    assert TrainConfig().to_command() == ["widemargin", "train", "cifar10", "resnet18", "arcgrad(s=10)"]


def test_a_folder_comes_back(tmp_path):
    (tmp_path / "My Pets").mkdir()
    run = TrainConfig(data=str(tmp_path / "My Pets"))
    assert config_read_back(run) == run


NUMBERS = st.floats(0, 1e6)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "lr": NUMBERS,
            "weight_decay": NUMBERS,
            "warmup_lr": NUMBERS,
            "clip": NUMBERS,
            "train_fraction": st.floats(0, 1, exclude_min=True),
            "seed": st.integers(0, 2**63 - 1),
            "opt": st.sampled_from(OPTIMIZERS),
            "schedule": st.sampled_from(SCHEDULES),
            "precision": st.sampled_from(PRECISIONS),
            "name": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
            "neck": st.booleans(),
            "sync_bn": st.booleans(),
            "channels_last": st.booleans(),
            "augment": st.sampled_from(["none", "paper", "fast", "seed"]),
            "augment_options": st.dictionaries(st.sampled_from(["mixup", "erase", "scale", "pad"]), VALUES),
            "model_options": st.dictionaries(st.sampled_from(["width", "depth", "bias"]), VALUES),
        },
    )
)
def test_varied_runs_come_back(values):
    run = TrainConfig(**values)
    assert config_read_back(run) == run


def test_options_stand_in_the_name():
    for name, options in [
        ("fast", {"width": 0.5}),
        ("fast( )", {"width": 0.5}),
        ("fast(width=0.5)", {"bias": False}),
        ("fast(widths=(1, 2, 3),)", {"bias": False}),
        ("timm:resnet18.a1_in1k", {"stem_type": "deep, (x)"}),
    ]:
        first, inside = parse_model(name)
        assert parse_model(format_with_options(name, options)) == (first, {**inside, **options})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--augment 'paper(erase=0.2)' --reprob 0.1", "erase of the augmentation is given twice"),
        (
            "--augment 'seed(scale=(0.5, 1))' --gin 'build_transform.scale=(0.8,1)'",
            "scale of the augmentation is given",
        ),
        ("--augment 'paper(pad'", "cannot read --augment 'paper(pad'"),
        ("--augment 'paper(2)'", "options are given by name"),
        ("--augment 'paper(colour=2)'", "unknown option of an augmentation 'colour'"),
        ("--augment 'paper(scale=0.5)'", "scale=0.5 of an augmentation must be several numbers"),
        ("--augment 'paper(pad=four)'", "pad='four' of an augmentation must be a number"),
        ("--augment 'paper(mixup=True)'", "mixup=True of an augmentation must be a number"),
        ("--augment 'paper(flip=3)'", "flip=3 of an augmentation must be a word"),
        ("--augment 'paper(mix_each=1)'", "mix_each=1 of an augmentation must be True or False"),
        ("--augment 'papre(pad=2)'", "unknown augmentation 'papre'; did you mean 'paper'?"),
    ],
)
def test_mistakes_in_an_augmentation_are_one_line(words, says, tmp_path, data_dir, capsys):
    from widemargin.cli.main import main

    given = ["train", "mnist", "fast", "softmax", *shlex.split(words), "--out", str(tmp_path / "run")]
    assert main([*given, "--data-dir", str(data_dir)]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said


def test_the_augmentation_that_is_meant():
    run = config_of_command("mnist fast softmax --augment 'seed(scale=(0.8, 1), mixup=0)' --reprob 0.1")
    assert (run.augment, run.augment_options) == ("seed", {"scale": (0.8, 1), "mixup": 0, "erase": 0.1})
    assert config_of_command("mnist fast softmax --augment fast") == replace(run, augment="fast", augment_options={})
