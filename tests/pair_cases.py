"""Batches and references in plain Python for losses on pairs and triplets."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

import widemargin as wm

MININGS = ("all", "hard", "semihard", "distance", "pool")
PAIR_LOSSES = (
    "contrastive",
    "contrastive(form=hadsell)",
    "contrastive(m=1.5, normalize=False)",
    "contrastive(m=1.5, form=hadsell, normalize=False)",
    *(f"triplet(mining={mining})" for mining in MININGS),
    "triplet(alpha=2, mining=all, normalize=False)",
)


def batch(labels: list[int], dim: int = 4, seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Random embeddings in double precision with the given labels."""
    random = torch.Generator().manual_seed(seed)
    return spread * torch.randn(len(labels), dim, dtype=torch.float64, generator=random), torch.tensor(labels)


def loss_and_stats(spec: str, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, int]]:
    """Loss [N] of a pair loss by itself, and the statistics it reports."""
    objective = wm.Objective(spec, x.shape[1], 50)
    loss = objective(x, y)
    (part,) = objective.parts.values()
    return loss, {name: int(value) for name, value in part.stats.items()}


def squared_distance(a: list[float], b: list[float], normalize: bool) -> float:
    if normalize:
        a, b = ([v / math.hypot(*p) for v in p] for p in (a, b))
    return sum((u - v) ** 2 for u, v in zip(a, b, strict=True))


def distances_of(x: Tensor, normalize: bool = True) -> list[list[float]]:
    rows = x.tolist()
    return [[squared_distance(a, b, normalize) for b in rows] for a in rows]


def triplets_by_loops(distance: list[list[float]], labels: list[int], mining: str, alpha: float) -> list[list[tuple]]:
    """For each anchor its mined (positive, negative) pairs."""
    everyone = range(len(labels))
    mined = []
    for a in everyone:
        positives = [p for p in everyone if p != a and labels[p] == labels[a]]
        negatives = [n for n in everyone if labels[n] != labels[a]]
        found = list(product(positives, negatives))
        if mining == "hard" and found:
            found = [(max(positives, key=lambda p: distance[a][p]), min(negatives, key=lambda n: distance[a][n]))]
        if mining == "semihard":
            found = [(p, n) for p, n in found if distance[a][p] < distance[a][n] < distance[a][p] + alpha]
        mined.append(found)
    return mined


def mean_hinges(distance: list[list[float]], mined: list[list[tuple]], alpha: float) -> list[float]:
    losses = []
    for a, found in enumerate(mined):
        hinges = [max(0.0, distance[a][p] - distance[a][n] + alpha) for p, n in found]
        losses.append(sum(hinges) / len(hinges) if hinges else 0.0)
    return losses
