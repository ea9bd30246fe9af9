"""Learning-rate range test: the rate grows exponentially from step to step, and the loss tells when it is too large.

Smith's test (arXiv 1506.01186) on a fresh model of the run, over the run's own batches, with its own optimizer; the
model is thrown away, nothing is kept of it. The test ends early when the smoothed loss exceeds four times its best,
or is no number any more.

The suggestion is a tenth of the rate at which the smoothed loss is lowest. More exactly, of the first rate that comes
within 2 % of the whole fall: on the sphere, and behind batch norm, lengths do not matter, so the loss may stay low
however large the rate is, and where on such a floor the lowest point lies is chance. The other usual rule, the rate of
the steepest descent, is far too cautious here (figures in docs/log.md).

A loss that never rises again shows no rate that is too large (`bounded` is False): the suggestion is then no more than
the upper end of what is worth trying.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from statistics import fmean, stdev
from typing import Any

import torch

from .. import ranks
from ..data.batches import Batch
from ..errors import InputError
from ..precision import widest_float_dtype
from ..progress import progress_bar
from ..run import TrainConfig
from .diagnosis import DivergedError
from .moving import Trainer
from .optimizers import set_lr

MIN_LR, MAX_LR, NUM_STEPS = 1e-7, 10.0, 100
_SMOOTHING = 0.9  # weight of what came before in the smoothed loss
_DIVERGENCE_FACTOR = 4.0  # times the best smoothed loss
_BASELINE_STEPS = 10  # steps that only show where the loss begins
_FLOOR_FRACTION = 0.02  # share of the fall that is as good as nothing


@dataclass(frozen=True)
class LRRangeTest:
    """The rates that were tried, the loss of each step, the same smoothed, and what follows from them."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed_losses: tuple[float, ...]
    lowest_loss_lr: float | None
    """The rate at which the loss is lowest; None if it never fell."""
    suggestion: float | None
    is_bounded: bool
    """Whether the loss rose again, so that some rate was seen to be too large."""
    stop_reason: str


def run_lr_range_test(
    config: TrainConfig,
    data_dir: str | None = None,
    *,
    low: float = MIN_LR,
    high: float = MAX_LR,
    steps: int = NUM_STEPS,
    devices: Any = "auto",
    quiet: bool = False,
) -> LRRangeTest:
    """Try rates from `low` to `high` on a fresh model of the run; nothing is written."""
    if not (0 < low < high < math.inf and steps > _BASELINE_STEPS):
        raise InputError(
            f"rates must rise from above 0 in more than {_BASELINE_STEPS} steps, got {low}, {high}, {steps}"
        )
    trainer = Trainer(replace(config, ema=0.0), data_dir, devices)
    trainer.model.train()
    lrs, losses, stop_reason = [], [], f"at the highest rate, {high:g}"
    show_progress = trainer.rank == 0 and not quiet
    with (
        closing(_batches(trainer)) as batches,
        progress_bar("rates", steps) if show_progress else nullcontext(_ignore_progress) as on_progress,
    ):
        for step in range(steps):
            lr = low * (high / low) ** (step / (steps - 1))
            set_lr(trainer.optimizer, lr)
            loss = _one_step(trainer, batches)
            if not math.isfinite(loss):
                stop_reason = f"at a rate of {lr:.2g}, where the loss is no number"
                break
            lrs.append(lr)
            losses.append(loss)
            smooth = smooth_losses(losses)
            if smooth[-1] > _DIVERGENCE_FACTOR * min(smooth):
                stop_reason = (
                    f"at a rate of {lr:.2g}, where the loss is more than {_DIVERGENCE_FACTOR:g} times its best"
                )
                break
            on_progress(1.0)
    lowest = find_lowest_loss_lr(lrs, losses)
    suggestion = None if lowest is None else float(f"{lowest / 10.0:.2g}")
    is_bounded = len(lrs) < steps or has_loss_risen(losses)
    return LRRangeTest(
        tuple(lrs), tuple(losses), tuple(smooth_losses(losses)), lowest, suggestion, is_bounded, stop_reason
    )


def smooth_losses(losses: Sequence[float]) -> list[float]:
    """Exponential average, each step by its own weight: no pull towards 0 at the beginning.

    >>> smoothed([2.0, 2.0, 1.0])
    [2.0, 2.0, 1.6309963099630997]
    """
    found, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = _SMOOTHING * total + (1.0 - _SMOOTHING) * loss, _SMOOTHING * weight + (1.0 - _SMOOTHING)
        found.append(total / weight)
    return found


def find_lowest_loss_lr(lrs: Sequence[float], losses: Sequence[float]) -> float | None:
    """The first rate whose smoothed loss is down on the floor; None if it fell by no more than single losses differ."""
    if len(losses) <= _BASELINE_STEPS:
        return None
    begin, smooth = losses[:_BASELINE_STEPS], smooth_losses(losses)
    best, fall = min(smooth), fmean(begin) - min(smooth)
    if fall <= stdev(begin):
        return None
    later = list(zip(lrs, smooth, strict=True))[_BASELINE_STEPS:]
    return next((rate for rate, loss in later if loss <= best + _FLOOR_FRACTION * fall), None)


def has_loss_risen(losses: Sequence[float]) -> bool:
    """Whether the smoothed loss has left the floor at the end."""
    smooth = smooth_losses(losses)
    return smooth[-1] > min(smooth) + _FLOOR_FRACTION * (fmean(losses[:_BASELINE_STEPS]) - min(smooth))


def _one_step(trainer: Trainer, batches: Iterator[Batch]) -> float:
    """The mean loss before a step, over all processes; then the step."""
    config, device = trainer.config, trainer.fabric.device
    sums = torch.zeros(2, dtype=widest_float_dtype(device), device=device)
    for number in range(config.accumulate):
        images, y, mix = trainer.fabric.to_device(next(batches))
        try:
            losses, _ = trainer.backward(images, y, mix, sync_gradients=number + 1 == config.accumulate)
        except DivergedError:
            return math.nan
        sums += torch.stack((losses.detach().to(sums).sum(), torch.full_like(sums[0], len(y))))
    trainer.update()
    total, seen = ranks.all_reduce_sum(sums).tolist()
    return float(total / seen)


def _batches(trainer: Trainer) -> Generator[Batch, None, None]:
    """The run's batches, epoch after epoch."""
    for epoch in count():
        yield from trainer.inputs.batches.iter_epoch(epoch)


def _ignore_progress(fraction: float) -> None:
    """What is told where nobody looks."""
