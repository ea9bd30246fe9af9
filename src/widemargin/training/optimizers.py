"""Optimizers by name; weight decay only where a length matters."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ..classifier import MarginModel
from ..errors import InputError
from ..run import TrainConfig


def build_optimizer(config: TrainConfig, model: MarginModel) -> torch.optim.Optimizer:
    """The optimizer of a run over the model's parameter groups."""
    groups = model.parameter_groups(config.weight_decay)
    if config.opt == "adam":
        return torch.optim.Adam(groups, lr=config.lr)
    if config.opt == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr)
    if config.opt == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0)
    return _muon(config, model)


def _muon(config: TrainConfig, model: MarginModel) -> torch.optim.Optimizer:
    """timm's Muon on the network's matrices and kernels; AdamW, its own fallback, on everything else."""
    try:
        importlib.import_module("widemargin.mended_torchvision")  # timm needs torchvision

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
    """The same rate for all groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr
