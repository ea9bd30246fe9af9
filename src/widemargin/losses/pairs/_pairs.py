"""Distances between all embeddings of a batch, and which pairs are of one class."""

from __future__ import annotations

import torch
from torch import Tensor

from ...numerics import angles


def squared_distances(x: Tensor, normalize: bool) -> Tensor:
    """Squared Euclidean distances [N, N], on unit embeddings where `normalize` says so."""
    x = angles.unit_and_norm(x)[0] if normalize else x
    # Far from their mean, two squares would swallow the difference of points that are close together.
    x = x - x.detach().sum(0, keepdim=True) / max(len(x), 1)
    squares = x.square().sum(1)
    return torch.relu(squares.unsqueeze(1) + squares.unsqueeze(0) - 2.0 * (x @ x.T))


def pair_masks(y: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of one class without the diagonal, and pairs of two classes: two [N, N] masks."""
    equal = y.unsqueeze(1) == y.unsqueeze(0)
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    return equal & ~itself, ~equal
