"""Runs of the paper's image experiments: its own settings, and a size that two CPU cores can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import unknown
from ...run import Run
from ..table1 import METHODS as TABLE1

# The paper's columns and our spelling of them: Table I's, but for ArcGrad's scale.
METHODS = {method: loss for method, loss in TABLE1.items() if not method.startswith("arcgrad")}
METHODS["arcgrad"] = "arcgrad(s=10)"
# Not in the paper: its author's later loss, and the margin ArcFace is most often compared with.
BESIDE = {"adaacos": "adaacos", "cosface": "cosface(s=20, m=0.1)"}
SIZES = ("full", "cpu")

# Table III, as printed. Adam at 0.1 is doubtful; `working` is the same with a rate at which Adam learns.
_PRINTED = {
    "cifar10": Run(data="cifar10", model="resnet18", epochs=120, batch_size=256, opt="adam", lr=0.1, weight_decay=5e-4),
    "cifar100": Run(
        data="cifar100", model="resnet34", epochs=160, batch_size=128, opt="adam", lr=0.01, weight_decay=5e-4
    ),
}
_WORKING_RATE = 1e-3
# One set of settings for all losses; rate and decay were compared on held-out training images, with ArcGrad alone.
_CPU = Run(
    model="fast(widths=(32, 96, 96), bias=False)",
    epochs=10,
    batch_size=250,
    opt="muon",
    lr=0.02,
    weight_decay=0.3,
    precision="bf16-mixed",
)
# How far these were chosen, and on what: docs/log.md.
HEADLINE = Run(
    data="cifar10",
    model="fast(bias=False)",
    loss="arcgrad(s=10)",
    epochs=32,
    batch_size=500,
    opt="muon",
    lr=0.02,
    weight_decay=0.3,
    smoothing=0.1,
    augment="fast",
    precision="bf16-mixed",
)


def image_run(size: str, data: str, loss: str, seed: int, *, printed: bool = True, **changed: Any) -> Run:
    """The run of a size on a data set; `changed` are fields that an experiment varies.

    >>> image_run("full", "cifar10", "softmax", 0).lr, image_run("full", "cifar10", "softmax", 0, printed=False).lr
    (0.1, 0.001)
    """
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    base = replace(_CPU, data=data) if size == "cpu" else _PRINTED[data]
    if size == "full" and not printed:
        base = replace(base, lr=_WORKING_RATE)
    return replace(base, loss=loss, seed=seed, **changed)
