"""Optimizers by name; weight decay only where a length matters."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ..classifier import MarginModel
from ..errors import InputError
from ..run import Run


def optimizer(run: Run, model: MarginModel) -> torch.optim.Optimizer:
    """The optimizer of a run over the model's parameter groups."""
    groups = model.parameter_groups(run.weight_decay)
    if run.opt == "adam":
        return torch.optim.Adam(groups, lr=run.lr)
    if run.opt == "adamw":
        return torch.optim.AdamW(groups, lr=run.lr)
    if run.opt == "sgd":
        return torch.optim.SGD(groups, lr=run.lr, momentum=run.momentum, nesterov=run.momentum > 0)
    return _muon(run, model)


def _muon(run: Run, model: MarginModel) -> torch.optim.Optimizer:
    """timm's Muon on the network's matrices and kernels; AdamW, its own fallback, on everything else."""
    try:
        importlib.import_module("widemargin.mended_torchvision")  # timm needs torchvision

        muon = importlib.import_module("timm.optim").Muon
    except ImportError:
        raise InputError('--opt muon is timm\'s: pip install "widemargin[vision]"') from None
    matrices = model.matrices()
    hidden = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in hidden]
    decayed = {id(p) for p in model.objective.decayed()}
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": run.weight_decay, "use_fallback": False},
        {"params": [p for p in rest if id(p) in decayed], "weight_decay": run.weight_decay, "use_fallback": True},
        {"params": [p for p in rest if id(p) not in decayed], "weight_decay": 0.0, "use_fallback": True},
    ]
    found: torch.optim.Optimizer = muon([group for group in groups if group["params"]], lr=run.lr, momentum=0.95)
    return found


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The same rate for all groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate
