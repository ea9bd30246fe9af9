"""Runs of the paper's image experiments: its own settings, and a size that two CPU cores can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import unknown_name_error
from ...run import TrainConfig
from ..table1 import TABLE1_LOSSES as TABLE1

# The paper's columns and our spelling of them: Table I's, but for ArcGrad's scale.
IMAGE_LOSSES = {method: loss for method, loss in TABLE1.items() if not method.startswith("arcgrad")}
IMAGE_LOSSES["arcgrad"] = "arcgrad(s=10)"
# Not in the paper: its author's later loss, and the margin ArcFace is most often compared with.
EXTRA_LOSSES = {"adaacos": "adaacos", "cosface": "cosface(s=20, m=0.1)"}
SIZES = ("full", "cpu")

# Table III, as printed. Adam at 0.1 is doubtful; `working` is the same with a rate at which Adam learns.
_PAPER_CONFIGS = {
    "cifar10": TrainConfig(
        data="cifar10", model="resnet18", epochs=120, batch_size=256, opt="adam", lr=0.1, weight_decay=5e-4
    ),
    "cifar100": TrainConfig(
        data="cifar100", model="resnet34", epochs=160, batch_size=128, opt="adam", lr=0.01, weight_decay=5e-4
    ),
}
_WORKING_LR = 1e-3
# One set of settings for all losses; rate and decay were compared on held-out training images, with ArcGrad alone.
_CPU_CONFIG = TrainConfig(
    model="fast(widths=(32, 96, 96), bias=False)",
    epochs=10,
    batch_size=250,
    opt="muon",
    lr=0.02,
    weight_decay=0.3,
    precision="bf16-mixed",
)
# How far these were chosen, and on what: docs/log.md.
HEADLINE_CONFIG = TrainConfig(
    data="cifar10",
    model="fast(bias=False)",
    loss="arcgrad(s=10)",
    epochs=32,
    batch_size=500,
    opt="muon",
    lr=0.02,
    weight_decay=0.3,
    label_smoothing=0.1,
    augment="fast",
    precision="bf16-mixed",
)


def make_image_config(
    size: str, data: str, loss: str, seed: int, *, as_printed: bool = True, **overrides: Any
) -> TrainConfig:
    """The run of a size on a data set; `changed` are fields that an experiment varies.

    >>> image_run("full", "cifar10", "softmax", 0).lr, image_run("full", "cifar10", "softmax", 0, printed=False).lr
    (0.1, 0.001)
    """
    if size not in SIZES:
        raise unknown_name_error("size", size, SIZES)
    base = replace(_CPU_CONFIG, data=data) if size == "cpu" else _PAPER_CONFIGS[data]
    if size == "full" and not as_printed:
        base = replace(base, lr=_WORKING_LR)
    return replace(base, loss=loss, seed=seed, **overrides)
