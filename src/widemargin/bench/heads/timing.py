"""How long a step of a head takes, against the limit: three matrix products into memory that is already there.

Everything in one process by turns, so that what else the machine does disturbs all alike; the figure is the smallest
time of the rounds over the limit's smallest. A step is forward and backward to embeddings and weights, gradients set
to None before it, as `zero_grad()` does; the first steps of each (compiling, allocating) do not count. Heads too large
to stand side by side in memory are timed by turns with the limit one after the other.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .contestants import HeadImplementation

MIN_CLASSES_TIMED_SEPARATELY = 500_000  # classes


def make_matmul_limit(samples: int, embedding_dim: int, num_classes: int) -> Callable[[], None]:
    """X·Wᵀ, G·W and Gᵀ·X with preallocated results; both layouts of the logits, whichever is faster is the limit."""
    x, weight = torch.randn(samples, embedding_dim), torch.randn(num_classes, embedding_dim)
    logits, to_x, to_weight = (
        torch.randn(num_classes, samples),
        torch.empty(samples, embedding_dim),
        torch.empty(num_classes, embedding_dim),
    )

    def products() -> None:
        torch.mm(weight, x.T, out=logits)
        torch.mm(logits.T, weight, out=to_x)
        torch.mm(logits, x, out=to_weight)

    return products


def make_step(head: nn.Module, x: Tensor, y: Tensor, keep_grad: bool = False) -> Callable[[], None]:
    """One training step without an optimizer; `keep` leaves the gradients' memory in place and zeroes it."""

    def step() -> None:
        head.zero_grad(set_to_none=not keep_grad)
        x.grad = None
        head(x, y).backward()

    return step


def batch(samples: int, embedding_dim: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Random embeddings and labels, the same for all."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(samples, embedding_dim, generator=draw)
    return x.requires_grad_(), torch.randint(num_classes, (samples,), generator=draw)


def time_heads(
    shape: tuple[int, int, int],
    implementations: list[HeadImplementation],
    rounds: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> dict[str, Any]:
    """Seconds of the limit and of every contestant."""
    spent: dict[str, list[float]] = defaultdict(list)
    for group, turns in _groups(shape, implementations, rounds):
        for name, seconds in _time_interleaved(shape, group, turns, on_progress).items():
            spent[name] += seconds
    return {"shape": list(shape), "threads": torch.get_num_threads(), "seconds": {n: min(s) for n, s in spent.items()}}


def count_progress_calls(shape: tuple[int, int, int], implementations: list[HeadImplementation], rounds: int) -> int:
    """How many times `told` is called."""
    return sum(turns * (len(group) + 1) for group, turns in _groups(shape, implementations, rounds))


def _groups(
    shape: tuple[int, int, int], implementations: list[HeadImplementation], rounds: int
) -> list[tuple[list[HeadImplementation], int]]:
    """Who stands side by side, and for how many turns."""
    return (
        [([contestant], min(rounds, 2)) for contestant in implementations]
        if shape[2] >= MIN_CLASSES_TIMED_SEPARATELY
        else [(implementations, rounds)]
    )


def _time_interleaved(
    shape: tuple[int, int, int],
    implementations: list[HeadImplementation],
    rounds: int,
    on_progress: Callable[[float], None],
) -> dict[str, list[float]]:
    samples, dim, classes = shape
    x, y = batch(samples, dim, classes)
    steps: dict[str, Callable[[], None]] = {"limit": make_matmul_limit(samples, dim, classes)}
    for contestant in implementations:
        torch.manual_seed(1)  # not the embeddings' own draw, or weights would lie along them
        steps[contestant.name] = make_step(contestant.make(dim, classes), x, y, contestant.keep_grad)
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step(), step()
    inner = max(1, min(200, 3_000_000 // (samples * classes)))  # small steps are timed together
    for _ in range(rounds):
        for name, step in steps.items():
            begun = time.perf_counter()
            for _ in range(inner):
                step()
            spent[name].append((time.perf_counter() - begun) / inner)
            on_progress(1.0)
    return spent
