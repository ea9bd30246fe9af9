"""How a single model sees rows of a bare matrix: units first, then the scaling of its training rows."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from .train import StackedTable


class ColumnScaler(NamedTuple):
    """Middle and size [F] of the columns, so that digits are kept whatever the unit and the origin of a number."""

    center: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def fit(cls, x: NDArray[np.float64]) -> ColumnScaler:
        """Median, and largest distance from it; 0 and 1 where a column has none."""
        known = ~np.isnan(x).all(axis=0)
        center, scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
        center[known] = np.nanmedian(x[:, known], axis=0)
        scale[known] = np.nanmax(np.abs(x[:, known] - center[known]), axis=0)
        return cls(center, np.where(scale > 0, scale, 1.0))

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return (np.asarray(x, np.float64) - self.center) / self.scale


def check_magnitude(x: NDArray[np.float64], max_abs: float = 1e100, first_row: int = 0) -> NDArray[np.float64]:
    """The matrix, once its numbers are seen to be small enough for squares and sums of them."""
    wrong = (np.abs(x) > max_abs).any(axis=1)
    if wrong.any():
        row = first_row + int(wrong.argmax())
        raise InputError(f"row {row} of X holds a number too large to learn from; scale or clip X first")
    return x


def preprocess_rows(table: StackedTable, x: NDArray[np.float64], first_row: int = 0) -> Tensor:
    """Rows [n, F] as the model sees them, in double precision; `first` is the number of the first one."""
    rows = torch.arange(len(x)).unsqueeze(0)
    found = replace(table, x=torch.from_numpy(x)).preprocess(rows)[0]
    return torch.from_numpy(check_magnitude(found.numpy(), 1e15, first_row))  # training is in single precision
