"""Batch norm over all processes: the statistics of the whole batch instead of one process's part of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import InputError

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def convert_sync_batchnorm(model: ModuleT) -> ModuleT:
    """The model with every batch norm synced, its weights, statistics and names of tensors as they were.

    timm's norms that hold an activation are converted by timm: torch's own conversion would lose the activation.
    """
    convert: Callable[[ModuleT], ModuleT] = nn.SyncBatchNorm.convert_sync_batchnorm
    known: tuple[type[nn.Module], ...] = (nn.SyncBatchNorm,)
    if "timm" in sys.modules:
        layers = importlib.import_module("timm.layers")
        convert, known = layers.convert_sync_batchnorm, (*known, layers.BatchNormAct2d)
    for name, module in model.named_modules():
        own = isinstance(module, _BatchNorm) and type(module).forward is not _BatchNorm.forward
        if own and not isinstance(module, known):
            raise InputError(f"{name}, a {type(module).__name__}, cannot be synced over processes: take --no-sync-bn")
    return convert(model)
