"""Few-shot and nearest neighbours: classes known from a handful of examples.

Episodes are drawn from the same classes again and again: more of them make the mean surer for these classes, not for
others. So the interval of few shots is over classes: `V = w² ζ / K + σ² / E`, with w ways, K classes, E episodes whose
accuracies have the variance σ², and ζ the variance of a class's effect, which is that of the mean of the episodes a
class is in, less what the draw of the episodes adds (the first-order variance of a U-statistic).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..angle import direction
from ..errors import InputError
from ..labels import check_embedded
from ..roster import whole
from .identity_intervals import LEAST_EVENTS, LEAST_IDENTITIES, interval
from .retrieval import both_or_none, check_searched, nearest, percent


@dataclass(frozen=True)
class Episodes:
    """Accuracy in percent over episodes, and half the width of its 95 % interval over classes."""

    accuracy: float
    error: float | None
    """None for fewer than ten classes, and where fewer than ten images are ever answered rightly, or wrongly."""
    episodes: int
    low: float | None = None
    high: float | None = None
    classes: int = 0
    """Classes that episodes are drawn from."""
    without: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """The accuracy without each class in turn, whose spread is that of the interval."""


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
    found, drawn = [], []
    ever = torch.zeros(2, len(y), dtype=torch.bool)  # answered wrongly, rightly: an image asked again is no new event
    for _ in range(episodes):
        drawn.append(torch.randperm(len(usable), generator=draw)[:ways])
        chosen = usable[drawn[-1]]
        known, asked, answers = [], [], []
        for k, name in enumerate(chosen.tolist()):
            rows = members[name][torch.randperm(len(members[name]), generator=draw)]
            known.append(rows[:shots])
            asked.append(rows[shots : shots + queries])
            answers += [k] * len(asked[-1])
        rows = torch.cat(asked)
        is_right = right(torch.stack(known), rows, torch.tensor(answers)).cpu()
        ever[is_right.long(), rows.cpu()] = True
        found.append(float(is_right.double().mean()))
    values = np.array(found)
    rest = without_classes(values, torch.stack(drawn).numpy(), len(usable))
    enough = int(ever.sum(1).min()) >= LEAST_EVENTS
    ends = percent(interval(float(values.mean()), rest)) if rest is not None and enough else None
    low, high = (None, None) if ends is None else ends
    error = None if low is None or high is None else (high - low) / 2
    rest = None if rest is None else 100.0 * rest
    return Episodes(100.0 * float(values.mean()), error, episodes, low, high, len(usable), rest)


def without_classes(values: NDArray[np.float64], drawn: NDArray[np.int64], classes: int) -> NDArray[np.float64] | None:
    """The mean of episodes [E] with classes [E, ways] without each of so many classes; None where that cannot be told.

    Leaving out the episodes of a class would count the draw of the episodes once for each of its ways. So the effects
    of the classes are scaled to the spread that they and the draw have together.
    """
    episodes, ways = drawn.shape
    times = np.bincount(drawn.reshape(-1), minlength=classes)
    if classes < max(LEAST_IDENTITIES, ways + 1) or times.min() < 1:
        return None
    gaps = values - values.mean()
    noise = float(gaps.var(ddof=1)) if episodes > 1 else 0.0
    effect = np.bincount(drawn.reshape(-1), np.repeat(gaps, ways), classes) / times
    kept = 1.0 - (ways - 1) / (classes - 1)  # the others of an episode are those that are left
    of_class = (float((effect**2).mean()) - noise * float((1.0 / times).mean())) / kept**2 * classes / (classes - 1)
    variance = ways**2 * max(of_class, 0.0) / classes + noise / episodes
    effect = effect - effect.mean()
    scale = np.sqrt(variance / max((classes - 1) * float((effect**2).mean()), 1e-300))
    found: NDArray[np.float64] = values.mean() - effect * scale
    return found


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
    return 100.0 * float(knn_right(x, y, gallery, gallery_labels, k=k, batch=batch).double().mean())


def knn_right(
    x: Tensor,
    y: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    k: int = 1,
    batch: int = 1024,
) -> Tensor:
    """Whether the k nearest of each query [N] vote for its class."""
    itself = gallery is None
    gallery, labels = both_or_none(x, y, gallery, gallery_labels)
    check_searched(x, y, gallery, labels, batch)
    unit = direction(x.float())[0]
    others = unit if itself else direction(gallery.float())[0]
    if not 1 <= whole("k", k, 1) <= len(others) - int(itself):
        raise InputError(f"k={k} nearest neighbours: the gallery has {len(others) - int(itself)}")
    right = []
    for start in range(0, len(unit), batch):
        rows = slice(start, start + batch)
        skip = torch.arange(start, start + len(unit[rows])) if itself else None
        _, found = nearest(unit[rows], others, k, skip)
        right.append(_vote(labels[found]) == y[rows])
    return torch.cat(right)


def _vote(votes: Tensor) -> Tensor:
    """The most frequent of each row; of several the one that comes first."""
    counts = (votes.unsqueeze(2) == votes.unsqueeze(1)).sum(2)
    return votes.gather(1, counts.argmax(1, keepdim=True)).squeeze(1)
