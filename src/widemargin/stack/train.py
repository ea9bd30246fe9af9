"""Training of a stack: K models on K training parts of one table, step by step together.

Model k sees nothing of the others: its weights, its order of rows and its adaptive state are its
own, so it is the model that would come out alone. Only the dropout masks of a step are shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from ..catalogue import Sum
from ..option import Loss
from .network import StackedNetwork, through
from .objective import StackedObjective, class_weight_start
from .protocol import Protocol

_SLAB = 1 << 20  # numbers that are gathered at once: in the cache, and few calls


@dataclass(frozen=True)
class Rows:
    """A table as the models of a stack see it: shared numbers, and each model's own scaling of them."""

    x: Tensor
    """[n, F]; NaN where a value is missing."""
    y: Tensor
    """[n] class indices."""
    classes: int
    shift: Tensor
    """[K, 1, F]: model k sees `x · scale + shift`."""
    scale: Tensor
    """[K, 1, F]"""
    fill: Tensor | None = None
    """[K, 1, F]: what stands in for a missing value; None where nothing is missing."""
    turn: Tensor | None = None
    """[K, P, P]: decorrelates the first P scaled columns, `(x · scale + shift) @ turn`; None leaves them alone."""

    def seen(self, rows: Tensor) -> Tensor:
        """Rows [K, B] of the table as the models see them, [K, B, F]."""
        x = self.x.index_select(0, rows.flatten()).view(*rows.shape, -1)
        if self.fill is not None:
            x = torch.where(torch.isnan(x), self.fill, x)
        x = x.mul_(self.scale).add_(self.shift)
        if self.turn is None:
            return x
        numbers = self.turn.shape[-1]
        turned = torch.bmm(x[..., :numbers], self.turn)
        return turned if numbers == x.shape[-1] else torch.cat([turned, x[..., numbers:]], -1)


class Stack:
    """K models of one loss in training: `run` goes on, `logits` and `embed` look.

    Args:
        spec: the loss, one for all models.
        rows: the table.
        training: the rows of each model's training part.
        seeds: for each model the numbers its random draws start from; the first is the same for all.
        protocol: how to train.
        plan: steps and batch size, where they should not follow from the smallest training part here.
    """

    def __init__(
        self,
        spec: str | Sum | Loss,
        rows: Rows,
        training: Sequence[np.ndarray],
        seeds: Sequence[Sequence[int]],
        protocol: Protocol,
        plan: tuple[int, int] | None = None,
    ) -> None:
        self.rows, self.protocol, self.step = rows, protocol, 0
        self.steps, self.batch = plan or protocol.plan(min(len(part) for part in training))
        dtype, device = rows.x.dtype, rows.x.device
        starts = [np.random.default_rng([*seed, 0]) for seed in seeds]
        self.network = StackedNetwork((rows.x.shape[1], *protocol.hidden), starts, dtype).to(device)
        start = class_weight_start(starts, rows.classes, protocol.hidden[-1], dtype).to(device)
        self.objective = StackedObjective(spec, start, protocol.smoothing)
        self.order = _order(training, seeds, self.steps, self.batch, device)
        # One stream per layer, so that masks do not depend on how many steps are drawn at once.
        self._masks = [np.random.default_rng([seeds[0][0], 1, layer]) for layer in range(len(protocol.hidden) - 1)]
        self._adamw = _AdamW(self._parameters(), protocol.weight_decay)

    def _parameters(self) -> list[tuple[Tensor, bool]]:
        found = [(p, True) for p in self.network.weights] + [(p, False) for p in self.network.biases]
        for part in self.objective.parts:
            weight = getattr(part, "weight", None)
            found += [(p, bool(part.decays) and p is weight) for p in part.parameters()]
        return found

    def run(self, steps: int | None = None, told: Callable[[int], None] | None = None) -> None:
        """The next `steps` steps (all that remain by default); `told` hears how many were done."""
        end = self.steps if steps is None else min(self.steps, self.step + steps)
        models, features = len(self.order), self.rows.x.shape[1]
        slab = max(1, _SLAB // (models * self.batch * max(features, 1)))
        self.objective.train()
        layers = self.network.layers()
        even = torch.full((models, self.batch), 1.0 / self.batch, dtype=self.rows.x.dtype, device=self.rows.x.device)
        while self.step < end:
            count = min(slab, end - self.step)
            order = self.order[:, self.step * self.batch : (self.step + count) * self.batch]
            x, y, masks = self._by_step(self.rows.seen(order)), self._by_step(self.rows.y[order]), self._dropout(count)
            for i in range(count):
                embedded = through(layers, x[i], [mask[i] for mask in masks])
                self.objective(embedded, y[i]).backward(even)  # every model's mean
                self._adamw.step(self._learning_rate(self.step))
                self.step += 1
            if told is not None:
                told(count)

    def _by_step(self, rows: Tensor) -> Tensor:
        """[K, steps·B, …] → [steps, K, B, …]."""
        return rows.view(len(rows), -1, self.batch, *rows.shape[2:]).transpose(0, 1).contiguous()

    def _learning_rate(self, step: int) -> float:
        done = step / self.steps
        rising = min(1.0, (done + 1.0 / self.steps) / self.protocol.warmup) if self.protocol.warmup else 1.0
        return self.protocol.lr * rising * 0.5 * (1.0 + math.cos(math.pi * done))

    def _dropout(self, steps: int) -> list[Tensor]:
        """Masks [steps, B, H] of every hidden layer, scaled so that means are kept."""
        share = self.protocol.dropout
        if not share:
            return []
        like = self.rows.x
        widths = zip(self._masks, self.protocol.hidden[:-1], strict=True)
        kept = [draw.random((steps, self.batch, width), np.float32) >= share for draw, width in widths]
        return [torch.from_numpy(mask).to(like.device, like.dtype).div_(1.0 - share) for mask in kept]

    @torch.no_grad()
    def embed(self, rows: Tensor) -> Tensor:
        """Embeddings [K, B, D] of rows [K, B] of the table."""
        embedded: Tensor = self.network(self.rows.seen(rows))
        return embedded

    @torch.no_grad()
    def logits(self, rows: Tensor) -> Tensor:
        """Logits [K, B, C] of rows [K, B] of the table."""
        self.objective.eval()
        return self.objective.logits(self.embed(rows))

    @torch.no_grad()
    def answers(self, rows: Tensor) -> Tensor:
        """Predicted classes [K, B] of rows [K, B] of the table."""
        self.objective.eval()
        return self.objective.ranking(self.embed(rows)).argmax(-1)


class _AdamW:
    """AdamW (arXiv 1711.05101) with torch's own kernel; the optimizer object around it costs more than it here."""

    def __init__(self, parameters: Sequence[tuple[Tensor, bool]], weight_decay: float) -> None:
        self.parameters = [p for p, _ in parameters]
        self.decayed = [p for p, wanted in parameters if wanted]
        self.weight_decay = weight_decay
        self.first, self.second = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        self.counts = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step down the gradients, which are then forgotten."""
        if self.weight_decay:
            torch._foreach_mul_(self.decayed, 1.0 - lr * self.weight_decay)
        adamw(
            self.parameters,
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters],
            self.first,
            self.second,
            [],
            self.counts,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
        for p in self.parameters:
            p.grad = None


def _order(
    training: Sequence[np.ndarray], seeds: Sequence[Sequence[int]], steps: int, batch: int, device: torch.device
) -> Tensor:
    """Which rows every model sees, [K, steps·B]: its training part again and again, shuffled anew."""
    order = np.empty((len(training), steps * batch), np.int64)
    for k, (part, seed) in enumerate(zip(training, seeds, strict=True)):
        passes = math.ceil(steps * batch / len(part))
        shuffled = np.random.default_rng([*seed, 2]).permuted(np.tile(part, (passes, 1)), axis=1)
        order[k] = shuffled.ravel()[: steps * batch]
    return torch.from_numpy(order).to(device)
