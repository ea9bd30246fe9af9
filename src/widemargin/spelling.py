"""A run as the words of its command, `widemargin train …`: what `commands/train.py` reads, written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .run import Run

_IN_PLACE = ("data", "model", "loss")
_ELSEWHERE = ("augment", "augment_options", "model_options")
_OTHER_NAMES = {"repeats": "ra"}


def command_of(run: Run) -> list[str]:
    """Words that describe the same run when they are typed again; what is as by default is left out.

    A folder must be given by its whole path, and a set by its usual name, as the command itself writes them.

    >>> command_of(Run(data="mnist", model="fast", loss="arcgrad(s=10)", lr=0.05, neck=True, repeats=3))
    ['widemargin', 'train', 'mnist', 'fast', 'arcgrad(s=10)', '--lr', '0.05', '--neck', '--ra', '3']
    """
    usual = Run()
    words = ["widemargin", "train", *(str(getattr(run, name)) for name in _IN_PLACE)]
    for field in fields(Run):
        value = getattr(run, field.name)
        if field.name not in (*_IN_PLACE, *_ELSEWHERE) and value != getattr(usual, field.name):
            words += _option(_OTHER_NAMES.get(field.name, field.name).replace("_", "-"), value)
    if run.augment != usual.augment or run.augment_options:
        words += _option("augment", with_options(run.augment, run.augment_options))
    if run.model_options:
        words += ["--gin", *(f"build_model.{name}={value!r}" for name, value in run.model_options.items())]
    return words


def with_options(name: str, options: Mapping[str, Any]) -> str:
    """A name with options as we write them everywhere; those that stand in the name already come first.

    >>> with_options("fast", {}), with_options("resnet18(stem_type=deep)", {"output_stride": 8})
    ('fast', 'resnet18(stem_type=deep, output_stride=8)')
    """
    if not options:
        return name
    inside = ", ".join(f"{key}={value!r}" for key, value in options.items())
    before = name.strip().removesuffix(")")
    if before == name.strip():
        return f"{before}({inside})"
    return f"{before}{inside})" if before.rstrip().endswith(("(", ",")) else f"{before}, {inside})"


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    written = repr(float(value)) if isinstance(value, float) else str(value)
    return [f"--{name}={written}"] if written.startswith("-") else [f"--{name}", written]
