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
from ..precision import widest
from ..progress import bar
from ..run import Run
from .diagnosis import DivergedError
from .moving import Training
from .optimizers import set_rate

LOW, HIGH, STEPS = 1e-7, 10.0, 100
_MEMORY = 0.9  # weight of what came before in the smoothed loss
_DIVERGED = 4.0  # times the best smoothed loss
_FIRST = 10  # steps that only show where the loss begins
_FLOOR = 0.02  # share of the fall that is as good as nothing


@dataclass(frozen=True)
class RateTest:
    """The rates that were tried, the loss of each step, the same smoothed, and what follows from them."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    lowest: float | None
    """The rate at which the loss is lowest; None if it never fell."""
    suggestion: float | None
    bounded: bool
    """Whether the loss rose again, so that some rate was seen to be too large."""
    ended: str


def find_rate(
    run: Run,
    data_dir: str | None = None,
    *,
    low: float = LOW,
    high: float = HIGH,
    steps: int = STEPS,
    devices: Any = "auto",
    quiet: bool = False,
) -> RateTest:
    """Try rates from `low` to `high` on a fresh model of the run; nothing is written."""
    if not (0 < low < high < math.inf and steps > _FIRST):
        raise InputError(f"rates must rise from above 0 in more than {_FIRST} steps, got {low}, {high}, {steps}")
    training = Training(replace(run, ema=0.0), data_dir, devices)
    training.model.train()
    rates, losses, ended = [], [], f"at the highest rate, {high:g}"
    shown = training.rank == 0 and not quiet
    with closing(_batches(training)) as batches, bar("rates", steps) if shown else nullcontext(_unseen) as told:
        for step in range(steps):
            rate = low * (high / low) ** (step / (steps - 1))
            set_rate(training.optimizer, rate)
            loss = _one_step(training, batches)
            if not math.isfinite(loss):
                ended = f"at a rate of {rate:.2g}, where the loss is no number"
                break
            rates.append(rate)
            losses.append(loss)
            smooth = smoothed(losses)
            if smooth[-1] > _DIVERGED * min(smooth):
                ended = f"at a rate of {rate:.2g}, where the loss is more than {_DIVERGED:g} times its best"
                break
            told(1.0)
    lowest = lowest_at(rates, losses)
    suggestion = None if lowest is None else float(f"{lowest / 10.0:.2g}")
    bounded = len(rates) < steps or rose_again(losses)
    return RateTest(tuple(rates), tuple(losses), tuple(smoothed(losses)), lowest, suggestion, bounded, ended)


def smoothed(losses: Sequence[float]) -> list[float]:
    """Exponential average, each step by its own weight: no pull towards 0 at the beginning.

    >>> smoothed([2.0, 2.0, 1.0])
    [2.0, 2.0, 1.6309963099630997]
    """
    found, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = _MEMORY * total + (1.0 - _MEMORY) * loss, _MEMORY * weight + (1.0 - _MEMORY)
        found.append(total / weight)
    return found


def lowest_at(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """The first rate whose smoothed loss is down on the floor; None if it fell by no more than single losses differ."""
    if len(losses) <= _FIRST:
        return None
    begin, smooth = losses[:_FIRST], smoothed(losses)
    best, fall = min(smooth), fmean(begin) - min(smooth)
    if fall <= stdev(begin):
        return None
    later = list(zip(rates, smooth, strict=True))[_FIRST:]
    return next((rate for rate, loss in later if loss <= best + _FLOOR * fall), None)


def rose_again(losses: Sequence[float]) -> bool:
    """Whether the smoothed loss has left the floor at the end."""
    smooth = smoothed(losses)
    return smooth[-1] > min(smooth) + _FLOOR * (fmean(losses[:_FIRST]) - min(smooth))


def _one_step(training: Training, batches: Iterator[Batch]) -> float:
    """The mean loss before a step, over all processes; then the step."""
    run, device = training.run, training.fabric.device
    sums = torch.zeros(2, dtype=widest(device), device=device)
    for number in range(run.accumulate):
        images, y, mix = training.fabric.to_device(next(batches))
        try:
            losses, _ = training.backward(images, y, mix, last=number + 1 == run.accumulate)
        except DivergedError:
            return math.nan
        sums += torch.stack((losses.detach().to(sums).sum(), torch.full_like(sums[0], len(y))))
    training.update()
    total, seen = ranks.add_up(sums).tolist()
    return float(total / seen)


def _batches(training: Training) -> Generator[Batch, None, None]:
    """The run's batches, epoch after epoch."""
    for epoch in count():
        yield from training.inputs.batches.epoch(epoch)


def _unseen(share: float) -> None:
    """What is told where nobody looks."""
