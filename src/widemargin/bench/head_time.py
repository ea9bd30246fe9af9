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
from ..run import TrainConfig
from .train import CIFAR_IMAGE_SIZE, BareLoop, time_call

OVERHEAD_LOSSES = ("softmax", "arcgrad(s=10)")
OVERHEAD_EMBEDDING_DIM, OVERHEAD_CLASS_COUNTS = 512, (10, 100)
PAPER_EXTRA_PERCENT, MAX_EXTRA_PERCENT = 3.4, 1.0  # percent


def measure_head_overhead(
    batch: int, rounds: int, repeats: int, on_progress: Callable[[float], Any]
) -> list[dict[str, Any]]:
    """For each number of classes the seconds of both heads and of a step, and the difference in percent of it."""
    draw, device = torch.Generator().manual_seed(0), torch.device("cpu")
    images = torch.randn(batch, 3, CIFAR_IMAGE_SIZE, CIFAR_IMAGE_SIZE, generator=draw).contiguous(
        memory_format=torch.channels_last
    )
    input_spec = {
        "classes": [str(label) for label in range(OVERHEAD_CLASS_COUNTS[0])],
        "channels": 3,
        "size": CIFAR_IMAGE_SIZE,
    }
    labels = torch.randint(OVERHEAD_CLASS_COUNTS[0], (batch,), generator=draw)
    step = BareLoop(
        TrainConfig(model="resnet18", loss=OVERHEAD_LOSSES[0]), input_spec, [(images, labels, None)], device
    )
    heads = {
        classes: [_make_head_step(loss, classes, batch) for loss in OVERHEAD_LOSSES]
        for classes in OVERHEAD_CLASS_COUNTS
    }
    step()  # first calls are slow
    on_progress(1.0)
    steps: list[float] = []
    spent: dict[int, list[tuple[float, float]]] = {classes: [] for classes in OVERHEAD_CLASS_COUNTS}
    for _ in range(rounds):
        steps.append(time_call(step, device))
        for classes, works in heads.items():
            both = [[time_call(work, device) for work in works] for _ in range(repeats + 1)][1:]
            spent[classes].append((median(pair[0] for pair in both), median(pair[1] for pair in both)))
        on_progress(1.0)
    found = []
    for classes, pairs in spent.items():
        shares = [100.0 * (more - less) / whole for (less, more), whole in zip(pairs, steps, strict=True)]
        plain, ours = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        found.append(
            {
                "classes": classes,
                "batch": batch,
                "dim": OVERHEAD_EMBEDDING_DIM,
                "head_seconds": dict(zip(OVERHEAD_LOSSES, (plain, ours), strict=True)),
                "step_seconds": median(steps),
                "extra_percent": median(shares),
                "extras_percent": shares,
            }
        )
    return found


def _make_head_step(loss: str, num_classes: int, batch: int) -> Callable[[], None]:
    """Forward and backward of a head, with the gradients to embeddings and class weights."""
    draw = torch.Generator().manual_seed(1)
    objective = Objective(loss, OVERHEAD_EMBEDDING_DIM, num_classes)
    x = torch.randn(batch, OVERHEAD_EMBEDDING_DIM, generator=draw).requires_grad_()
    y = torch.randint(num_classes, (batch,), generator=draw)

    def head_step() -> None:
        x.grad = None
        objective.zero_grad()
        objective(x, y).mean().backward()

    return head_step
