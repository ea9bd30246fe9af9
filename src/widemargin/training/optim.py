"""Optimizers by name, weight decay only where a length matters; and learning-rate schedules.

The rate is a pure function of the step, so a resumed run needs no scheduler's state; a plateau keeps three numbers.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch

from ..io.errors import InputError
from ..models.attach import MarginModel
from .config import TrainConfig


def build_optimizer(config: TrainConfig, model: MarginModel) -> torch.optim.Optimizer:
    """The optimizer of a run over the model's parameter groups."""
    groups = model.parameter_groups(config.weight_decay)
    if config.opt == "adam":
        return torch.optim.Adam(groups, lr=config.lr)
    if config.opt == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr)
    if config.opt == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0)
    return _build_muon(config, model)


def _build_muon(config: TrainConfig, model: MarginModel) -> torch.optim.Optimizer:
    """timm's Muon on the network's matrices and kernels; AdamW, its own fallback, on everything else."""
    try:
        importlib.import_module("widemargin.models.torchvision_compat")  # timm needs torchvision

        muon = importlib.import_module("timm.optim").Muon
    except ImportError:
        raise InputError('--opt muon is timm\'s: pip install "widemargin[vision]"') from None
    matrices = model.decayed_backbone_parameters()
    hidden = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in hidden]
    decayed = {id(p) for p in model.objective.decayed_parameters()}
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": config.weight_decay, "use_fallback": False},
        {"params": [p for p in rest if id(p) in decayed], "weight_decay": config.weight_decay, "use_fallback": True},
        {"params": [p for p in rest if id(p) not in decayed], "weight_decay": 0.0, "use_fallback": True},
    ]
    found: torch.optim.Optimizer = muon([group for group in groups if group["params"]], lr=config.lr, momentum=0.95)
    return found


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr


# One-cycle after Smith and Topin (arXiv 1708.07120) with torch's shares: a third of the way up, then down to nothing.
_PCT_START, _INITIAL_LR_RATIO, _FINAL_LR_RATIO = 0.3, 1.0 / 25.0, 1e-4


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int, lr_scale: float = 1.0) -> float:
    """The rate of a step; `lr_scale` is what a plateau has multiplied it by so far."""
    total = config.epochs * steps_per_epoch
    warmup = round(config.warmup_epochs * steps_per_epoch)
    if config.schedule == "onecycle":
        return one_cycle(step, total, config.lr)
    if step < warmup:
        return config.warmup_lr + (config.lr - config.warmup_lr) * step / warmup
    if config.schedule == "cosine":
        done = (step - warmup) / max(1, total - warmup)
        return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    return max(config.min_lr, config.lr * lr_scale) if config.schedule == "plateau" else config.lr


def one_cycle(step: int, total_steps: int, max_lr: float) -> float:
    """The rate of a step: up to `max_lr`, then down to nothing.

    >>> [round(one_cycle(step, 101, 1.0), 4) for step in (0, 30, 100)]
    [0.04, 1.0, 0.0]
    """
    top = max(1.0, _PCT_START * (total_steps - 1))
    if step <= top:
        low, high, fraction = max_lr * _INITIAL_LR_RATIO, max_lr, step / top
    else:
        low, high, fraction = (
            max_lr,
            max_lr * _INITIAL_LR_RATIO * _FINAL_LR_RATIO,
            (step - top) / max(1.0, total_steps - 1 - top),
        )
    return high + (low - high) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, fraction)))


class PlateauScheduler:
    """Divides the rate by ten when a figure has not improved for some epochs; its memory is three numbers."""

    def __init__(self, patience: int = 5, factor: float = 0.1) -> None:
        self.patience, self.factor = patience, factor
        self.best, self.num_bad_epochs, self.lr_scale = math.inf, 0, 1.0

    def step(self, loss: float) -> None:
        """Take the loss of an epoch into account."""
        if loss < self.best * (1.0 - 1e-4):
            self.best, self.num_bad_epochs = loss, 0
            return
        self.num_bad_epochs += 1
        if self.num_bad_epochs > self.patience:
            self.lr_scale, self.num_bad_epochs = self.lr_scale * self.factor, 0

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"best": self.best, "num_bad_epochs": self.num_bad_epochs, "lr_scale": self.lr_scale}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore what a checkpoint kept."""
        self.best, self.num_bad_epochs, self.lr_scale = state["best"], int(state["num_bad_epochs"]), state["lr_scale"]
