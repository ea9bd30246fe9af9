"""What ArcGrad's head takes more than softmax's, as a share of a training step of the paper's ResNet-18.

Forward and backward of both heads by turns, on embeddings of the network's size; the median of many, and beside it
the step of the network for the same number of images, in the same process. The paper reports 3.4 % for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from ..objective import Objective
from ..run import Run
from .train import SIDE, Bare, seconds

LOSSES = ("softmax", "arcgrad(s=10)")
DIM, CLASSES = 512, (10, 100)
PAPER, TARGET = 3.4, 1.0  # percent


def measure(batch: int, rounds: int, repeats: int, told: Callable[[float], Any]) -> list[dict[str, Any]]:
    """For each number of classes the seconds of both heads and of a step, and the difference in percent of it."""
    draw, device = torch.Generator().manual_seed(0), torch.device("cpu")
    images = torch.randn(batch, 3, SIDE, SIDE, generator=draw).contiguous(memory_format=torch.channels_last)
    sees = {"classes": [str(label) for label in range(CLASSES[0])], "channels": 3, "size": SIDE}
    labels = torch.randint(CLASSES[0], (batch,), generator=draw)
    step = Bare(Run(model="resnet18", loss=LOSSES[0]), sees, [(images, labels, None)], device)
    heads = {classes: [_work(loss, classes, batch) for loss in LOSSES] for classes in CLASSES}
    step()  # first calls are slow
    told(1.0)
    steps: list[float] = []
    spent: dict[int, list[tuple[float, float]]] = {classes: [] for classes in CLASSES}
    for _ in range(rounds):
        steps.append(seconds(step, device))
        for classes, works in heads.items():
            both = [[seconds(work, device) for work in works] for _ in range(repeats + 1)][1:]
            spent[classes].append((median(pair[0] for pair in both), median(pair[1] for pair in both)))
        told(1.0)
    found = []
    for classes, pairs in spent.items():
        shares = [100.0 * (more - less) / whole for (less, more), whole in zip(pairs, steps, strict=True)]
        plain, ours = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        found.append(
            {
                "classes": classes,
                "batch": batch,
                "dim": DIM,
                "head_seconds": dict(zip(LOSSES, (plain, ours), strict=True)),
                "step_seconds": median(steps),
                "extra_percent": median(shares),
                "extras_percent": shares,
            }
        )
    return found


def _work(loss: str, classes: int, batch: int) -> Callable[[], None]:
    """Forward and backward of a head, with the gradients to embeddings and class weights."""
    draw = torch.Generator().manual_seed(1)
    objective = Objective(loss, DIM, classes)
    x = torch.randn(batch, DIM, generator=draw).requires_grad_()
    y = torch.randint(classes, (batch,), generator=draw)

    def work() -> None:
        x.grad = None
        objective.zero_grad()
        objective(x, y).mean().backward()

    return work
