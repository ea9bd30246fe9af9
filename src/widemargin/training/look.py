"""A look at a trained run: embeddings of some of its test images, its most confident mistakes, its pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..angle import direction
from ..errors import InputError
from ..metrics.verification import Verification, verify_embeddings
from .finished import Finished
from .unseen import embed

MOST = 1000  # images: enough to see, few enough to wait for
_MISTAKES = 12


@dataclass(frozen=True)
class Mistake:
    """An image that was named wrongly, and how sure the run was."""

    pixels: NDArray[np.uint8]
    true: str
    said: str
    chance: float


@dataclass(frozen=True, eq=False)
class Look:
    """What there is to see."""

    images: int
    directions: NDArray[np.float64]
    """Unit embeddings [N, D]."""
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    mistakes: list[Mistake]
    weights: NDArray[np.float64] | None
    """Unit class weights [C, D], where they are those of the images' classes."""
    pairs: Verification | None = None
    """What all pairs of the images say, where the run is judged by pairs."""
    told: str = ""
    """Which images of a folder these are, and what became of the others."""


@torch.no_grad()
def look(done: Finished, data_dir: str | None = None, most: int = MOST) -> Look:
    """Look at some test images, drawn with the run's seed."""
    inputs = done.inputs(data_dir)
    if list(inputs.classes) != done.sees["classes"]:
        raise InputError(f"{done.run.data_name} has other classes now than the run was trained on")
    test: Any = inputs.test
    rows = torch.randperm(len(test), generator=torch.Generator().manual_seed(done.run.seed))[:most].sort().values
    some = test.take(rows)
    x, y = embed(done.model, inputs.judged(some))
    objective = done.model.objective
    answers = objective.classifies and not done.run.unseen
    mistakes: list[Mistake] = []
    if answers and getattr(some, "x", None) is not None:
        chances, said = objective.logits(x.to(next(done.model.parameters()))).float().softmax(1).max(1)
        wrong = (said != y).nonzero().squeeze(1)
        for row in wrong[chances[wrong].argsort(descending=True)][:_MISTAKES].tolist():
            names = some.classes
            mistakes.append(Mistake(some.x[row].numpy(), names[y[row]], names[said[row]], float(chances[row])))
    head = objective.head
    weights = None if head is None or done.run.unseen else direction(head.weight.detach().double())[0].numpy()
    unit = direction(x.double())[0]
    pairs = None if answers else _pairs(x, y)
    told = " ".join(inputs.notes) if inputs.changes is None else inputs.changes.line()
    return Look(len(y), unit.numpy(), y.numpy(), tuple(some.classes), mistakes, weights, pairs, told)


def _pairs(x: Tensor, y: Tensor) -> Verification | None:
    """All pairs of the images; none where no class has two of them."""
    try:
        return verify_embeddings(x, y)
    except InputError:
        return None
