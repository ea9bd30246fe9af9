"""WC-Intra, W-Inter and C-Inter of every model of a stack at once; the definitions are those of `metrics.angles`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import angle
from ..precision import widest_float_dtype
from .train import StackedTrainer

_ANGLES_CHUNK_VALUES = 1 << 22


@torch.no_grad()
def stack_angles(trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]]) -> Tensor:
    """[K, 3] in radians: WC-Intra, W-Inter, C-Inter of each model, centres from its own rows."""
    weight = trainer.objective.head.weight.detach().to(widest_float_dtype(trainer.table.x.device))
    sums, counts = _sum_by_class(trainer, parts, weight)
    present = counts > 0
    unit_w, unit_c = angle.unit_and_norm(weight)[0], angle.unit_and_norm(sums)[0]
    own = torch.where(present, angle.angle_between(unit_w, unit_c), 0.0).sum(1) / present.sum(1)
    everyone = torch.ones_like(present)
    return torch.stack([own, _mean_of_pairs(unit_w, everyone), _mean_of_pairs(unit_c, present)], 1)


def _sum_by_class(trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the embeddings of each class, whose direction is the centre's, and how many there are."""
    models, classes, dim = like.shape
    sums, counts = torch.zeros_like(like), like.new_zeros(models, classes)
    most = max(len(part) for part in parts)
    padded = torch.from_numpy(np.stack([np.resize(part, most) for part in parts]))
    real = torch.from_numpy(np.stack([np.arange(most) < len(part) for part in parts]))
    first = torch.arange(models).unsqueeze(1) * classes
    step = max(1, _ANGLES_CHUNK_VALUES // (models * max(trainer.table.x.shape[1], *trainer.config.hidden)))
    for start in range(0, most, step):
        rows, kept = padded[:, start : start + step], real[:, start : start + step]
        place = (trainer.table.y[rows] + first)[kept]
        embedded = trainer.embed(rows)[kept]
        sums.view(-1, dim).index_add_(0, place, embedded.to(sums.dtype))
        counts.view(-1).index_add_(0, place, torch.ones_like(place, dtype=counts.dtype))
    return sums, counts


def _mean_of_pairs(unit: Tensor, present: Tensor) -> Tensor:
    """Mean angle [K] over the pairs of present rows; NaN where there are fewer than two."""
    pairs = (present.unsqueeze(2) & present.unsqueeze(1)).triu(1)
    theta = torch.where(pairs, angle.safe_arccos(unit @ unit.mT), 0.0)
    return theta.sum((1, 2)) / pairs.sum((1, 2))
