"""Runs in tests: the seeds' commands, the config of a command line, what a run has logged, whether two are equal."""

import json
import shlex
from pathlib import Path

import torch
from safetensors.torch import load_file

from widemargin.cli.main import build_parser
from widemargin.io.text import normalize_flag
from widemargin.reproduce.seed_flags import config_from_options
from widemargin.training.config import TrainConfig
from widemargin.training.logging import MetricsLog

VIT = """--ckpt_freq 2 --opt adamw --lr 0.001 --weight_decay 0.05   --batch_size=256 --ra=3 --smoothing=0.1 --reprob 0.1
 --data_set CIFAR10 --data_location ../data --input_size 32 --model vit_tiny_patch16_224
 --gin "build_transform.scale=(0.8,1)" build_transform.mean="(0.4914, 0.4822, 0.4465)"
 build_transform.std="(0.2470, 0.2435, 0.2616)" build_model.patch_size=2 build_model.img_size=32
 --margin_loss arcgrad"""
RESNET = """--ckpt_freq 2 --opt muon --lr 0.002 --weight_decay 5e-4 --warmup_epochs=10 --epochs 100 --batch_size=128
 --ra=3 --smoothing=0.1 --reprob 0.1 --data_set CIFAR10 --data_location ../data --input_size 64 --model resnet18
 --gin "build_transform.scale=(0.8,1)" "build_transform.mean=(0.4914, 0.4822, 0.4465)"
 "build_transform.std=(0.2470, 0.2435, 0.2616)" build_model.stem_type='deep' build_model.output_stride=8
 MarginHead.s=10 --margin_loss arcgrad"""


def config_of_command(words: str) -> TrainConfig:
    """The run of a command line, as the command itself reads it."""
    argv = ["train", *(normalize_flag(word) for word in shlex.split(words))]
    return config_from_options(build_parser(argv).parse_args(argv))


def lines(folder: Path) -> list[dict]:
    """What was logged, without what a clock says."""
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "images_per_second")}
        for line in MetricsLog.read_epochs(folder / "metrics.jsonl")
    ]


def assert_same(one: Path, other: Path) -> None:
    """Weights, averages, moments, counters and lines of two runs are equal to the last bit."""
    for file in ("model.safetensors", "training.safetensors"):
        first, second = (load_file(folder / "checkpoints" / "last" / file) for folder in (one, other))
        assert list(first) == list(second)
        for name, value in first.items():
            assert torch.equal(value, second[name]), name
    states = [json.loads((folder / "checkpoints" / "last" / "state.json").read_text()) for folder in (one, other)]
    for state in states:
        del state["seconds"]
    assert states[0] == states[1]
    assert lines(one) == lines(other)
    assert [line["epoch"] for line in lines(one)] == list(range(1, len(lines(one)) + 1))
