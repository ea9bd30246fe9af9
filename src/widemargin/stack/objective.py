"""The objective of a stack: K models' heads and terms, from the same definitions as `Objective`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..catalogue import Sum, parse
from ..criterion import Criterion
from ..errors import InputError
from ..margin import Margin
from ..numbers import Numbers
from ..option import Loss
from ..others.road import loss_on
from ..others.stacked import Stacked
from ..term import Term


class StackedHead(nn.Module):
    """Class weights [K, C, D] of K models under one margin; adaptive state for each."""

    def __init__(self, margin: Margin, start: Tensor, smoothing: float = 0.0) -> None:
        super().__init__()
        models, classes, _ = start.shape
        self.margin, self.smoothing = margin.sized(classes), smoothing
        self.weight = nn.Parameter(start)
        self.bias = nn.Parameter(start.new_zeros(models, classes)) if margin.bias else None
        self.numbers = Numbers(self.margin, start.device, start.dtype, models=models)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss [K, N] of embeddings [K, N, D]; in train mode adaptive state advances."""
        now = self.numbers.now(y, x.dtype)
        road = Stacked(self.margin, x, self.weight, self.bias)
        steps, adapt = self.numbers.steps, self.training
        loss, used = loss_on(road, now, y, step=steps, adapt=adapt, smoothing=self.smoothing)
        if self.training:
            self.numbers.keep(used)
            self.numbers.advance()
        return loss

    def logits(self, x: Tensor) -> Tensor:
        """Logits [K, N, C]."""
        now = self.numbers.now(None, x.dtype)
        return Stacked(self.margin, x, self.weight, self.bias).logits(now).permute(1, 2, 0)

    def ranking(self, x: Tensor) -> Tensor:
        """Scores [K, N, C] whose largest is the answer: the logits at scale 1, which order classes alike.

        A scale of 0, where an adaptive margin may end, would make all logits equal and the first class the answer.
        """
        now = self.numbers.now(None, x.dtype)
        if self.bias is None:
            now = now.with_values(s=1.0)
        return Stacked(self.margin, x, self.weight, self.bias).logits(now).permute(1, 2, 0)

    @property
    def decays(self) -> bool:
        """Whether the lengths of the class weights matter, so that decay may shrink them."""
        return self.margin.keeps_w


class StackedCriterion(nn.Module):
    """A linear layer for each of K models under a classical loss on classes."""

    decays = True

    def __init__(self, criterion: Criterion, start: Tensor) -> None:
        super().__init__()
        if not criterion.chooses:
            raise InputError(f"{criterion.name} does not choose between classes; take cross_entropy, focal or a margin")
        self.criterion = criterion
        self.weight = nn.Parameter(start)
        self.bias = nn.Parameter(start.new_zeros(start.shape[0], 1, start.shape[1]))

    def logits(self, x: Tensor) -> Tensor:
        """Logits [K, N, C]."""
        return torch.baddbmm(self.bias, x, self.weight.mT)

    def ranking(self, x: Tensor) -> Tensor:
        """Scores [K, N, C] whose largest is the answer."""
        return self.logits(x)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss [K, N]."""
        return self.criterion(self.logits(x).flatten(0, 1), y.flatten()).view_as(y)


class StackedTerm(nn.Module):
    """A term on the embeddings of K models.

    Where samples of different classes never meet in a term, K models of C classes are one model of K·C classes.
    Otherwise (pairs, triplets) every model has a part of its own, one after the other.
    """

    decays = False

    def __init__(self, term: Term, start: Tensor) -> None:
        super().__init__()
        models, classes, dim = start.shape
        self.together = term.classes_apart
        built = (
            [term.build(dim, models * classes)] if self.together else [term.build(dim, classes) for _ in range(models)]
        )
        self.parts = nn.ModuleList(part.to(start) for part in built)
        self.register_buffer("first_class", torch.arange(models, device=start.device).unsqueeze(1) * classes)

    first_class: Tensor

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss [K, N]."""
        if self.together:
            flat: Tensor = self.parts[0](x.flatten(0, 1), (y + self.first_class).flatten())
            return flat.view_as(y)
        return torch.stack([part(x[k], y[k]) for k, part in enumerate(self.parts)])


class StackedObjective(nn.Module):
    """A weighted sum of losses for K models at once; `start` [K, C, D] are the class weights to begin with."""

    def __init__(self, spec: str | Sum | Loss, start: Tensor, smoothing: float = 0.0) -> None:
        super().__init__()
        value = parse(spec) if isinstance(spec, str) else spec
        self.spec = value if isinstance(value, Sum) else Sum(((1.0, value),))
        self.factors = [factor for factor, _ in self.spec.parts]
        self.parts = nn.ModuleList(_part(loss, start, smoothing) for _, loss in self.spec.parts)
        if not any(isinstance(part, StackedHead | StackedCriterion) for part in self.parts):
            raise InputError(f"{self.spec!r} has no class weights, so it cannot tell classes apart; add a margin to it")
        if smoothing and not any(isinstance(part, StackedHead) for part in self.parts):
            raise InputError(
                f"{self.spec!r} has no margin that could take smoothing; write cross_entropy(smoothing={smoothing:g})"
            )

    @property
    def head(self) -> StackedHead | StackedCriterion:
        """The first part with class weights: the one that decides."""
        return next(part for part in self.parts if isinstance(part, StackedHead | StackedCriterion))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss [K, N]."""
        total: Tensor | None = None
        for factor, part in zip(self.factors, self.parts, strict=True):
            loss = part(x, y) if factor == 1.0 else factor * part(x, y)
            total = loss if total is None else total + loss
        assert total is not None
        return total

    def logits(self, x: Tensor) -> Tensor:
        """Logits [K, N, C]."""
        return self.head.logits(x)

    def ranking(self, x: Tensor) -> Tensor:
        """Scores [K, N, C] whose largest is the answer."""
        return self.head.ranking(x)


def _part(loss: Loss, start: Tensor, smoothing: float) -> nn.Module:
    start = start.clone()  # every part has weights of its own
    if isinstance(loss, Margin):
        return StackedHead(loss, start, smoothing)
    if isinstance(loss, Criterion):
        return StackedCriterion(loss, start)
    if isinstance(loss, Term):
        return StackedTerm(loss, start)
    raise InputError(f"{loss!r} is not a margin, a term or a classical loss")


def class_weight_start(draws: Sequence[np.random.Generator], classes: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Class weights [K, C, D] in random directions, of length about 1, each model from its own generator."""
    rows = np.stack([draw.standard_normal((classes, dim)) for draw in draws]) * dim**-0.5
    return torch.from_numpy(rows).to(dtype)
