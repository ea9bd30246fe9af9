"""Few-shot and nearest neighbours: classes known from a handful of examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..angle import direction
from ..errors import InputError
from ..labels import check_embedded
from ..roster import whole
from .retrieval import both_or_none, check_searched, nearest


@dataclass(frozen=True)
class Episodes:
    """Accuracy in percent over episodes, and the half width of its 95 % interval."""

    accuracy: float
    error: float
    episodes: int


def few_shot(
    x: Tensor, y: Tensor, *, ways: int = 5, shots: int = 1, queries: int = 5, episodes: int = 1000, seed: int = 0
) -> Episodes:
    """N-way-K-shot: classes are known by the mean direction of their shots; queries go to the nearest."""
    check_embedded("few shots", x, y)
    unit = direction(x.float())[0]

    def right(known: Tensor, asked: Tensor, answers: Tensor) -> Tensor:
        return (unit[asked] @ direction(unit[known].mean(1))[0].T).argmax(1) == answers

    return judged_episodes(y, right, ways=ways, shots=shots, queries=queries, episodes=episodes, seed=seed)


def judged_episodes(
    y: Tensor,
    right: Callable[[Tensor, Tensor, Tensor], Tensor],
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 5,
    episodes: int = 1000,
    seed: int = 0,
) -> Episodes:
    """Accuracy of any answers: `right(known [ways, shots], asked [Q], answers [Q])` → [Q], all places of images."""
    for name, number in (("ways", ways), ("shots", shots), ("queries", queries), ("episodes", episodes)):
        whole(name, number, 1)
    classes, counts = torch.unique(y, return_counts=True)
    usable = classes[counts > shots]
    if len(usable) < ways:
        raise InputError(
            f"{ways} ways with {shots} shots want {ways} classes of {shots + 1} images or more; {len(usable)} have them"
        )
    members = {int(c): (y == c).nonzero().squeeze(1) for c in usable}
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(episodes):
        chosen = usable[torch.randperm(len(usable), generator=draw)[:ways]]
        known, asked, answers = [], [], []
        for k, name in enumerate(chosen.tolist()):
            rows = members[name][torch.randperm(len(members[name]), generator=draw)]
            known.append(rows[:shots])
            asked.append(rows[shots : shots + queries])
            answers += [k] * len(asked[-1])
        found.append(float(right(torch.stack(known), torch.cat(asked), torch.tensor(answers)).double().mean()))
    values = 100.0 * torch.tensor(found, dtype=torch.float64)
    error = 1.96 * float(values.std()) / math.sqrt(episodes) if episodes > 1 else math.nan
    return Episodes(float(values.mean()), error, episodes)


def knn_accuracy(
    x: Tensor,
    y: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    k: int = 1,
    batch: int = 1024,
) -> float:
    """Percent of queries whose k nearest vote for their class, a tie going to the nearest of the tied."""
    itself = gallery is None
    gallery, labels = both_or_none(x, y, gallery, gallery_labels)
    check_searched(x, y, gallery, labels, batch)
    unit = direction(x.float())[0]
    others = unit if itself else direction(gallery.float())[0]
    if not 1 <= whole("k", k, 1) <= len(others) - int(itself):
        raise InputError(f"k={k} nearest neighbours: the gallery has {len(others) - int(itself)}")
    right = 0
    for start in range(0, len(unit), batch):
        rows = slice(start, start + batch)
        skip = torch.arange(start, start + len(unit[rows])) if itself else None
        _, found = nearest(unit[rows], others, k, skip)
        right += int((_vote(labels[found]) == y[rows]).sum())
    return 100.0 * right / len(y)


def _vote(votes: Tensor) -> Tensor:
    """The most frequent of each row; of several the one that comes first."""
    counts = (votes.unsqueeze(2) == votes.unsqueeze(1)).sum(2)
    return votes.gather(1, counts.argmax(1, keepdim=True)).squeeze(1)
