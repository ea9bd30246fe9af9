"""A recipe that is one command of the seeds: as printed, or its first epoch on a part of the images."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import Any

from ...run import Run

# A machine without a GPU sees the same model, neck, loss, augmentation and optimizer work together, no more.
_CPU: dict[str, Any] = {"epochs": 1, "warmup_epochs": 0.0, "share": 0.02, "ckpt_freq": 0, "precision": "bf16-mixed"}


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from . import image_options

    image_options.add(parser, seeds=None)


def seed_run(command: str, size: str, name: str) -> Run:
    """The run that a command of the seeds describes, in a size."""
    from ...cli import dashed, parser
    from ...commands.train import run_of

    options = parser().parse_args([dashed(word) for word in shlex.split(command)[1:]])
    full = replace(run_of(options), name=name)
    return full if size == "full" else replace(full, **_CPU)


def run(options: argparse.Namespace, recipe: str, command: str, name: str, theirs: float) -> None:
    """Train if it is missing, print ours beside theirs."""
    from pathlib import Path

    from ...training.judging import headline
    from .image_options import carried_out
    from .run_list import record_of

    wanted = seed_run(command, options.size, name)
    out = carried_out([wanted], options, recipe)
    record = record_of(wanted, Path(options.runs))
    if record is None:
        return
    test = record["test"]
    print(f"{wanted.model}, {wanted.loss}, {wanted.epochs} epochs of {100 * wanted.share:g} % of the training images:")
    print(f"{headline(test)} ({record['seconds']:.0f} s)")
    note = (
        "" if options.size == "full" else "; after one epoch of a fiftieth of the images this only shows that it runs"
    )
    print(f"the seed's own figure after all its epochs: {theirs:.2f} %{note}")
    print(f"wrote {out / 'records.jsonl'}")
