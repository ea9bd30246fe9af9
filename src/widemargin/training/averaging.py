"""Averages of checkpoints: the mean weights of the last epochs of a run, evaluated beside the last ones.

Izmailov et al., Averaging Weights Leads to Wider Optima (arXiv 1803.05407), over the ends of epochs. Running statistics
of batch norm are averaged like weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..io.errors import InputError
from . import checkpoint


def average_checkpoints(folders: Sequence[Path], out: Path) -> dict[str, Tensor]:
    """Write a checkpoint with the mean of the weights of others, as they are evaluated, and return the weights.

    What is no floating-point tensor, and the state, are those of the last one.
    """
    if not folders:
        raise InputError("there are no checkpoints to average")
    sums: dict[str, Tensor] = {}
    for number, folder in enumerate(folders, 1):
        weights, state = checkpoint.open_eval_weights(folder)
        found = weights.read()
        if sums and {name: value.shape for name, value in found.items() if name in sums} != {
            name: value.shape for name, value in sums.items()
        }:
            raise InputError(f"{folder}: has other weights than {folders[0]}, so they cannot be averaged")
        for name, value in found.items():
            if value.is_floating_point():
                sums[name] = value.double() if number == 1 else sums[name] + value.double()
    average = {
        name: (sums[name] / len(folders)).to(value.dtype) if name in sums else value for name, value in found.items()
    }
    checkpoint.save(out, average, {"averaged": torch.tensor(len(folders))}, state)
    return average


def epochs_to_average(epochs: int, average_last: int) -> range:
    """The epochs, counted from 1, whose weights are averaged.

    >>> list(epochs_to_average(10, 3)), list(epochs_to_average(2, 5)), list(epochs_to_average(10, 0))
    ([8, 9, 10], [1, 2], [])
    """
    return range(max(1, epochs - average_last + 1), epochs + 1) if average_last else range(0)
