"""Cross-validation of one loss on one table: all folds of all runs train at once.

Every loss sees the same partitions, the same starts and the same order of rows for the same seed, so
that differences between losses are differences of the losses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .catalogue import Sum
from .data.encode import Encoded, check_width, decorrelation, encode, scaling
from .data.table import Table
from .errors import InputError
from .option import Loss
from .results import TRAIN_ROWS
from .stack.angles import stack_angles
from .stack.protocol import Protocol
from .stack.train import Rows, Stack

# Weights of a stack of models: with gradients and moments four times as many numbers, well below 100 MiB.
_STACK_WEIGHTS = 1 << 22
# Rows that a stack draws in all its training: its order is kept, 8 bytes for each.
_STACK_DRAWS = 1 << 25
_EVALUATED = 1 << 22
# What one model may have and draw: more is a slip in an option, and would end in an allocation that fails.
LARGEST_MODEL, MOST_DRAWS = 1 << 27, 1 << 28
LARGEST_SEED = (1 << 31) - 1


@dataclass(frozen=True)
class Partition:
    """Which rows each model learns from, and which it is judged on."""

    training: NDArray[np.int64]
    test: NDArray[np.int64]


class Score(NamedTuple):
    """What one loss reached on one table."""

    folds: list[float]
    """Accuracy in percent of every fold of every run."""
    angles: dict[str, float]
    """WC-Intra, W-Inter and C-Inter of the training parts in radians, mean over the models."""
    seconds: float
    train: Sequence[float] = ()
    """Accuracy in percent of every model on (at most TRAIN_ROWS of) the rows it has learnt from, without dropout."""


def partitions(y: NDArray[np.int64], runs: int, folds: int, seed: int, stratify: bool = False) -> list[Partition]:
    """`runs` random partitions into `folds` parts; stratified ones deal the rows of each class out in turn."""
    rows = len(y)
    _check_split(rows, runs, folds, seed)
    found = []
    for run in range(runs):
        order = np.random.default_rng([seed, run]).permutation(rows)
        if stratify:
            order = order[np.argsort(y[order], kind="stable")]
            parts = [order[start::folds] for start in range(folds)]
        else:
            parts = np.array_split(order, folds)
        for part in parts:
            tested = np.zeros(rows, np.bool_)
            tested[part] = True
            found.append(Partition(np.flatnonzero(~tested), np.flatnonzero(tested)))
    return found


def sample(rows: NDArray[np.int64], y: NDArray[np.int64], most: int, seed: Sequence[int]) -> NDArray[np.int64]:
    """The rows, or `most` of them drawn by chance in which every class keeps its share.

    >>> y = np.array([0] * 80 + [1] * 20)
    >>> np.bincount(y[sample(np.arange(100), y, 10, [0])]).tolist()
    [8, 2]
    """
    if len(rows) <= most:
        return rows
    order = np.random.default_rng(seed).permutation(rows)
    order = order[np.argsort(y[order], kind="stable")]
    places = ((np.arange(most) + 0.5) * len(order) / most).astype(np.int64)  # at equal distances: stratified
    return np.sort(order[places])


def _check_split(rows: int, runs: int, folds: int, seed: int) -> None:
    if runs < 1:
        raise InputError(f"runs must be at least 1, got {runs}")
    if not 2 <= folds <= rows:
        raise InputError(f"folds must be between 2 and the number of rows ({rows}), got {folds}")
    if not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"seed must be between 0 and {LARGEST_SEED}, got {seed}")


def check(table: Table, runs: int, folds: int, seed: int, protocol: Protocol) -> None:
    """Every mistake that can be seen without work, before any is done."""
    _check_split(len(table), runs, folds, seed)
    weights = _weights(check_width(table), protocol, len(table.classes))
    if weights > LARGEST_MODEL:
        raise InputError(
            f"{table.name}: a model has {weights} weights; {LARGEST_MODEL} are the limit, take fewer hidden"
        )
    if protocol.epochs * len(table) > MOST_DRAWS or protocol.min_steps * min(protocol.batch, len(table)) > MOST_DRAWS:
        raise InputError(f"{table.name}: a model draws more than {MOST_DRAWS} rows; take fewer epochs or min_steps")


def _weights(inputs: int, protocol: Protocol, classes: int) -> int:
    return sum(a * b for a, b in pairwise((inputs, *protocol.hidden, classes)))


def cross_validate(
    table: Table,
    loss: str | Sum | Loss,
    split: Sequence[Partition],
    protocol: Protocol,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    told: Callable[[float], None] | None = None,
) -> Score:
    """Train on every training part at once, and judge on the test parts; `told` hears shares of the work."""
    begun = time.perf_counter()
    encoded = encode(table)
    plan = protocol.plan(min(len(part.training) for part in split))
    weights = _weights(encoded.x.shape[1], protocol, len(table.classes))
    many = max(1, min(len(split), _STACK_WEIGHTS // weights, _STACK_DRAWS // (plan[0] * plan[1])))
    stacks = math.ceil(len(split) / many)
    correct: list[float] = []
    train: list[float] = []
    angles: list[torch.Tensor] = []
    for block in np.array_split(np.arange(len(split)), stacks):
        chosen = [split[k] for k in block]
        training = [part.training for part in chosen]
        rows = rows_for(encoded, table.y, len(table.classes), training, dtype)
        stack = Stack(loss, rows, training, [(seed, int(k)) for k in block], protocol, plan)
        stack.run(told=None if told is None else _share(told, plan[0] * stacks))
        correct += _accuracies(stack, [part.test for part in chosen], table.y)
        seen = [sample(split[k].training, table.y, TRAIN_ROWS, [seed, int(k), 4]) for k in block]
        train += _accuracies(stack, seen, table.y)
        angles.append(stack_angles(stack, training))
    wc_intra, w_inter, c_inter = torch.cat(angles).unbind(1)
    # A model that diverged makes the first two NaN, and is not passed over; of one class alone the third is unknown.
    named = {"wc_intra": wc_intra.mean(), "w_inter": w_inter.mean(), "c_inter": c_inter.nanmean()}
    angles_of_all = {name: value.item() for name, value in named.items()}
    return Score(correct, angles_of_all, time.perf_counter() - begun, train)


def _share(told: Callable[[float], None], steps: int) -> Callable[[int], None]:
    return lambda done: told(done / steps)


def rows_for(
    encoded: Encoded,
    y: NDArray[np.int64],
    classes: int,
    parts: Sequence[NDArray[np.int64]],
    dtype: torch.dtype = torch.float32,
) -> Rows:
    """A table as the models that learn from `parts` of it see it."""

    def tensor(values: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy(values).to(dtype)

    scales = scaling(encoded, parts)
    fill = None if scales.fill is None else tensor(scales.fill).unsqueeze(1)
    shift, scale = tensor(scales.shift).unsqueeze(1), tensor(scales.scale).unsqueeze(1)
    turn = decorrelation(encoded, parts, scales)
    return Rows(
        tensor(encoded.x), torch.from_numpy(y), classes, shift, scale, fill, None if turn is None else tensor(turn)
    )


def _accuracies(stack: Stack, parts: Sequence[NDArray[np.int64]], y: NDArray[np.int64]) -> list[float]:
    """Percent right of each model on its part of the rows."""
    predicted = predictions(stack, parts)
    return [float((predicted[k, : len(part)] == y[part]).mean() * 100.0) for k, part in enumerate(parts)]


def predictions(stack: Stack, parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Predicted classes [K, most] of each model's rows; shorter parts are filled up."""
    most = max(len(part) for part in parts)
    padded = torch.from_numpy(np.stack([np.resize(part, most) for part in parts]))
    widest = max(stack.rows.x.shape[1], *stack.protocol.hidden, stack.rows.classes)
    step = max(1, _EVALUATED // (len(parts) * widest))
    found = [stack.answers(padded[:, start : start + step]) for start in range(0, most, step)]
    return torch.cat(found, 1).numpy()
