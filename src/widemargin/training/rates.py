"""The learning rate as a pure function of the step, so that a resumed run needs no scheduler's state."""

from __future__ import annotations

import math

from ..run import Run

# One-cycle after Smith and Topin (arXiv 1708.07120) with torch's shares: a third of the way up, then down to nothing.
_RISE, _START, _END = 0.3, 1.0 / 25.0, 1e-4


def learning_rate(run: Run, step: int, steps_per_epoch: int, dropped: float = 1.0) -> float:
    """The rate of a step; `dropped` is what a plateau has multiplied it by so far."""
    total = run.epochs * steps_per_epoch
    warmup = round(run.warmup_epochs * steps_per_epoch)
    if run.schedule == "onecycle":
        return one_cycle(step, total, run.lr)
    if step < warmup:
        return run.warmup_lr + (run.lr - run.warmup_lr) * step / warmup
    if run.schedule == "cosine":
        done = (step - warmup) / max(1, total - warmup)
        return run.min_lr + (run.lr - run.min_lr) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    return max(run.min_lr, run.lr * dropped) if run.schedule == "plateau" else run.lr


def one_cycle(step: int, total: int, peak: float) -> float:
    """The rate of a step: up to `peak`, then down to nothing.

    >>> [round(one_cycle(step, 101, 1.0), 4) for step in (0, 30, 100)]
    [0.04, 1.0, 0.0]
    """
    top = max(1.0, _RISE * (total - 1))
    if step <= top:
        low, high, share = peak * _START, peak, step / top
    else:
        low, high, share = peak, peak * _START * _END, (step - top) / max(1.0, total - 1 - top)
    return high + (low - high) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))


class Plateau:
    """Divides the rate by ten when a figure has not improved for some epochs; its memory is three numbers."""

    def __init__(self, patience: int = 5, factor: float = 0.1) -> None:
        self.patience, self.factor = patience, factor
        self.best, self.waited, self.dropped = math.inf, 0, 1.0

    def told(self, loss: float) -> None:
        """The loss of an epoch."""
        if loss < self.best * (1.0 - 1e-4):
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited > self.patience:
            self.dropped, self.waited = self.dropped * self.factor, 0

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"best": self.best, "waited": self.waited, "dropped": self.dropped}

    def load(self, state: dict[str, float]) -> None:
        """What a checkpoint kept."""
        self.best, self.waited, self.dropped = state["best"], int(state["waited"]), state["dropped"]
