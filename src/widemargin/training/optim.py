"""Optimizers by name, with weight decay only on parameters whose norm matters; learning-rate schedules.

The rate is a pure function of the step, so a resumed run needs no scheduler's state; a plateau keeps three numbers.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..head.head import Head
from ..head.row_optimizer import RowOptimizer
from ..io.errors import InputError, spell_option
from ..models.attach import MarginModel
from ..numerics.precision import widest_float_dtype
from .config import TrainConfig


def build_optimizer(config: TrainConfig, model: MarginModel) -> torch.optim.Optimizer:
    """The optimizer of a run over the model's parameter groups; class weights with a sparse gradient row by row."""
    rowwise = {id(head.weight): head for head in model.modules() if isinstance(head, Head) and head.sample_rate < 1.0}
    groups = [
        {**group, "params": [parameter for parameter in group["params"] if id(parameter) not in rowwise]}
        for group in (_muon_groups if config.opt == "muon" else _plain_groups)(config, model)
    ]
    groups = _scale_head_lr([group for group in groups if group["params"]], model, config.head_lr_scale)
    optimizer = _optimizer_factory(config)(groups)
    if not rowwise:
        return optimizer
    make, options = _row_optimizer_factory(config)
    decayed = {id(parameter) for parameter in model.objective.decayed_parameters()}
    rows = [
        RowOptimizer(head.weight, make, weight_decay=config.weight_decay if key in decayed else 0.0, **options)
        for key, head in rowwise.items()
    ]
    return RowwiseOptimizer(optimizer, rows, config.head_lr_scale)


def _plain_groups(config: TrainConfig, model: MarginModel) -> list[dict[str, Any]]:
    return model.parameter_groups(config.weight_decay)


def _optimizer_factory(config: TrainConfig) -> Callable[[list[dict[str, Any]]], torch.optim.Optimizer]:
    if config.opt == "adam":
        return lambda groups: torch.optim.Adam(groups, lr=config.lr)
    if config.opt == "adamw":
        return lambda groups: torch.optim.AdamW(groups, lr=config.lr)
    if config.opt == "sgd":
        nesterov = config.momentum > 0
        return lambda groups: torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=nesterov)
    muon = _import_muon()
    return lambda groups: muon(groups, lr=config.lr, momentum=0.95)


def _row_optimizer_factory(config: TrainConfig) -> tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]:
    """The optimizer for rows of class weights, and its options; under Muon it is AdamW, as for a dense head."""
    if config.opt == "sgd":
        return torch.optim.SGD, {"lr": config.lr, "momentum": config.momentum, "nesterov": config.momentum > 0}
    return torch.optim.Adam if config.opt == "adam" else torch.optim.AdamW, {"lr": config.lr}


def _scale_head_lr(groups: list[dict[str, Any]], model: MarginModel, scale: float) -> list[dict[str, Any]]:
    """The groups with the parameters of the objective in groups of their own, whose rate `set_lr` multiplies."""
    if scale == 1.0:
        return groups
    of_head = {id(parameter) for parameter in model.objective.parameters()}
    found = []
    for group in groups:
        for is_head in (False, True):
            part = [parameter for parameter in group["params"] if (id(parameter) in of_head) == is_head]
            if part:
                found.append({**group, "params": part, "lr_scale": scale if is_head else 1.0})
    return found


class RowwiseOptimizer(torch.optim.Optimizer):
    """`inner` for most parameters and `RowOptimizer`s for class weights with sparse gradients, as one optimizer.

    State and groups are those of all, so that schedules, gradient scaling and checkpoints need not know.
    """

    def __init__(self, inner: torch.optim.Optimizer, rows: Sequence[RowOptimizer], lr_scale: float) -> None:
        self.inner, self.rows = inner, tuple(rows)
        own = [{"params": [row.parameter], "lr": row.param_groups[0]["lr"], "lr_scale": lr_scale} for row in rows]
        super().__init__([*inner.param_groups, *own], {})
        self.state = inner.state
        self._store_row_state()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of every part on the gradients that are there."""
        self.inner.step()
        for row, group in self._row_groups():
            row.param_groups[0]["lr"] = group["lr"]
            row.step()
        self._store_row_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of all parts."""
        super().load_state_dict(state_dict)
        self.inner.state, self.inner.param_groups = self.state, self.param_groups[: -len(self.rows)]
        for row, _ in self._row_groups():
            memory = self.state.get(row.parameter, {})
            row.row_state = {n: v for n, v in memory.items() if _is_row_state(v, row.parameter)}
            row.scalars = {n: v for n, v in memory.items() if not _is_row_state(v, row.parameter)}

    def _row_groups(self) -> Iterable[tuple[RowOptimizer, dict[str, Any]]]:
        return zip(self.rows, self.param_groups[-len(self.rows) :], strict=True)

    def _store_row_state(self) -> None:
        for row in self.rows:
            if row.row_state or row.scalars:
                self.state[row.parameter] = {**row.row_state, **row.scalars}


def _is_row_state(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[Tensor], max_norm: float, split: Sequence[Tensor], all_reduce_sum: Callable[[Tensor], Tensor]
) -> None:
    """Scale all gradients down to a norm of at most `max_norm`, sparse ones too.

    Of the parameters `split` each rank holds a part of its own: `all_reduce_sum` adds their squares over the ranks.
    """
    split_ids = {id(parameter) for parameter in split}
    values: list[Tensor] = []
    local: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
        values.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
        if id(parameter) in split_ids:
            local.append(values[-1])
    if not values:
        return
    widest = widest_float_dtype(values[0].device)
    square = torch.stack([value.to(widest).square().sum() for value in values]).sum()
    if split_ids:
        here = square.new_zeros(()) if not local else torch.stack([v.to(widest).square().sum() for v in local]).sum()
        square = square - here + all_reduce_sum(here)
    factor = (max_norm / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for value in values:
        value.mul_(factor.to(value.dtype))


def _import_muon() -> Any:
    try:
        importlib.import_module("widemargin.models.torchvision_compat")  # timm needs torchvision

        return importlib.import_module("timm.optim").Muon
    except ImportError:
        raise InputError(f'{spell_option("opt", "muon")} needs timm: pip install "widemargin[vision]"') from None


def _muon_groups(config: TrainConfig, model: MarginModel) -> list[dict[str, Any]]:
    """Muon for the network's matrices and kernels; AdamW, its own fallback, for everything else."""
    matrices = model.decayed_backbone_parameters()
    hidden = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in hidden]
    decayed = {id(p) for p in model.objective.decayed_parameters()}
    return [
        {"params": matrices, "weight_decay": config.weight_decay, "use_fallback": False},
        {"params": [p for p in rest if id(p) in decayed], "weight_decay": config.weight_decay, "use_fallback": True},
        {"params": [p for p in rest if id(p) not in decayed], "weight_decay": 0.0, "use_fallback": True},
    ]


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameter groups; a group's `lr_scale` multiplies it."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


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
        """Update with the loss of an epoch."""
        if loss < self.best * (1.0 - 1e-4):
            self.best, self.num_bad_epochs = loss, 0
            return
        self.num_bad_epochs += 1
        if self.num_bad_epochs > self.patience:
            self.lr_scale, self.num_bad_epochs = self.lr_scale * self.factor, 0

    def state_dict(self) -> dict[str, float]:
        """State for a checkpoint."""
        return {"best": self.best, "num_bad_epochs": self.num_bad_epochs, "lr_scale": self.lr_scale}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the state of a checkpoint."""
        self.best, self.num_bad_epochs, self.lr_scale = state["best"], int(state["num_bad_epochs"]), state["lr_scale"]
