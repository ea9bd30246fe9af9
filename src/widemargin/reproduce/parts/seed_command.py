"""A recipe that is one command of the seeds: as printed, or its first epoch on a part of the images."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import Any

from ...io.text import normalize_flag
from ...training.config import TrainConfig
from ..seed_flags import add_train_arguments, config_from_options

# In CPU size a run only shows that model, neck, loss, augmentation and optimizer work together.
_CPU_OVERRIDES: dict[str, Any] = {
    "epochs": 1,
    "warmup_epochs": 0.0,
    "train_fraction": 0.02,
    "ckpt_freq": 0,
    "precision": "bf16-mixed",
}


def add_seed_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from . import image_runs

    image_runs.add_image_arguments(parser, seeds=None)


def make_seed_config(command: str, size: str, name: str) -> TrainConfig:
    """The config that a command of the seeds describes, in full or in CPU size."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_train_arguments(parser)
    options = parser.parse_args([normalize_flag(word) for word in shlex.split(command)[2:]])
    full = replace(config_from_options(options), name=name)
    return full if size == "full" else replace(full, **_CPU_OVERRIDES)


def run_seed_recipe(options: argparse.Namespace, recipe: str, command: str, name: str, seed_top1: float) -> None:
    """Train if it is missing, print ours beside theirs."""
    from pathlib import Path

    from ...training.evaluate import format_metrics
    from .image_runs import complete_image_runs
    from .runs import read_record

    wanted = make_seed_config(command, options.size, name)
    out = complete_image_runs([wanted], options, recipe)
    record = read_record(wanted, Path(options.runs_dir))
    if record is None:
        return
    test = record["test"]
    print(
        f"{wanted.model}, {wanted.loss}, {wanted.epochs} epochs of {100 * wanted.train_fraction:g} % "
        "of the training images:"
    )
    print(f"{format_metrics(test)} ({record['seconds']:.0f} s)")
    note = (
        "" if options.size == "full" else "; after one epoch of a fiftieth of the images this only shows that it runs"
    )
    print(f"the seed's own figure after all its epochs: {seed_top1:.2f} %{note}")
    print(f"wrote {out / 'records.jsonl'}")
