"""How a single model sees rows of a bare matrix: units first, then the scaling of its training rows."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from .train import Rows


class Unit(NamedTuple):
    """Middle and size [F] of the columns, so that digits are kept whatever the unit and the origin of a number."""

    middle: NDArray[np.float64]
    size: NDArray[np.float64]

    @classmethod
    def of(cls, x: NDArray[np.float64]) -> Unit:
        """Median, and largest distance from it; 0 and 1 where a column has none."""
        known = ~np.isnan(x).all(axis=0)
        middle, size = np.zeros(x.shape[1]), np.ones(x.shape[1])
        middle[known] = np.nanmedian(x[:, known], axis=0)
        size[known] = np.nanmax(np.abs(x[:, known] - middle[known]), axis=0)
        return cls(middle, np.where(size > 0, size, 1.0))

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return (np.asarray(x, np.float64) - self.middle) / self.size


def sized(x: NDArray[np.float64], largest: float = 1e100, first: int = 0) -> NDArray[np.float64]:
    """The matrix, once its numbers are seen to be small enough for squares and sums of them."""
    wrong = (np.abs(x) > largest).any(axis=1)
    if wrong.any():
        row = first + int(wrong.argmax())
        raise InputError(f"row {row} of X holds a number too large to learn from; scale or clip X first")
    return x


def seen(view: Rows, x: NDArray[np.float64], first: int = 0) -> Tensor:
    """Rows [n, F] as the model sees them, in double precision; `first` is the number of the first one."""
    rows = torch.arange(len(x)).unsqueeze(0)
    found = replace(view, x=torch.from_numpy(x)).seen(rows)[0]
    return torch.from_numpy(sized(found.numpy(), 1e15, first))  # training is in single precision
