"""A run as the words of its command, `widemargin train …`: what `commands/train.py` reads, written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .run import TrainConfig

_POSITIONAL_FIELDS = ("data", "model", "loss")
_COMPOSITE_FIELDS = ("augment", "augment_options", "model_options")
_FLAG_NAMES = {"repeats": "ra"}


def build_train_command(config: TrainConfig) -> list[str]:
    """Words that describe the same run when they are typed again; what is as by default is left out.

    A folder must be given by its whole path, and a set by its usual name, as the command itself writes them.

    >>> command_of(Run(data="mnist", model="fast", loss="arcgrad(s=10)", lr=0.05, neck=True, repeats=3))
    ['widemargin', 'train', 'mnist', 'fast', 'arcgrad(s=10)', '--lr', '0.05', '--neck', '--ra', '3']
    """
    defaults = TrainConfig()
    words = ["widemargin", "train", *(str(getattr(config, name)) for name in _POSITIONAL_FIELDS)]
    for field in fields(TrainConfig):
        value = getattr(config, field.name)
        if field.name not in (*_POSITIONAL_FIELDS, *_COMPOSITE_FIELDS) and value != getattr(defaults, field.name):
            words += _format_flag(_FLAG_NAMES.get(field.name, field.name).replace("_", "-"), value)
    if config.augment != defaults.augment or config.augment_options:
        words += _format_flag("augment", format_with_options(config.augment, config.augment_options))
    if config.model_options:
        words += ["--gin", *(f"build_model.{name}={value!r}" for name, value in config.model_options.items())]
    return words


def format_with_options(name: str, options: Mapping[str, Any]) -> str:
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


def _format_flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    written = repr(float(value)) if isinstance(value, float) else str(value)
    return [f"--{name}={written}"] if written.startswith("-") else [f"--{name}", written]
