"""Few-shot and nearest-neighbour classification: classes known from a few examples.

Episodes are drawn from the same classes repeatedly: more episodes make the mean more certain for these classes, not for
others. So the interval is over classes: `V = w² ζ / K + σ² / E`, with w ways, K classes, E episodes with accuracies of
variance σ², and ζ the variance of a class's effect: that of the mean over the episodes of a class, minus what the
sampling of episodes adds (the first-order variance of a U-statistic).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io.errors import InputError
from ..numerics.angles import unit_and_norm
from ..numerics.validation import check_embeddings_and_labels, check_integer
from .intervals import MIN_EVENTS, MIN_IDENTITIES, jackknife_interval
from .neighbors import NeighborSearch
from .retrieval import check_search_inputs, interval_to_percent, resolve_gallery


@dataclass(frozen=True)
class FewShotMetrics:
    """Accuracy in percent over episodes, and half the width of its 95 % interval over classes."""

    accuracy: float
    error: float | None
    """None for fewer than ten classes, or fewer than ten distinct images ever classified correctly, or wrongly."""
    episodes: int
    low: float | None = None
    high: float | None = None
    num_classes: int = 0
    """Classes that episodes are drawn from."""
    leave_one_out: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """The accuracy without each class in turn; the interval is computed from their spread."""


def few_shot_metrics(
    x: Tensor, y: Tensor, *, ways: int = 5, shots: int = 1, queries: int = 5, episodes: int = 1000, seed: int = 0
) -> FewShotMetrics:
    """N-way-K-shot: a class is the mean direction of its shots; a query is assigned to the nearest class."""
    check_embeddings_and_labels("few shots", x, y)
    unit = unit_and_norm(x.float())[0]

    def is_correct(support: Tensor, query: Tensor, targets: Tensor) -> Tensor:
        return (unit[query] @ unit_and_norm(unit[support].mean(1))[0].T).argmax(1) == targets

    return evaluate_episodes(y, is_correct, ways=ways, shots=shots, queries=queries, episodes=episodes, seed=seed)


def evaluate_episodes(
    y: Tensor,
    is_correct: Callable[[Tensor, Tensor, Tensor], Tensor],
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 5,
    episodes: int = 1000,
    seed: int = 0,
) -> FewShotMetrics:
    """Accuracy of a classifier `is_correct(support [ways, shots], query [Q], targets [Q])` → [Q] over episodes.

    `support` and `query` are indices of images, `targets` the rows of `support` that are right.
    """
    for name, number in (("ways", ways), ("shots", shots), ("queries", queries), ("episodes", episodes)):
        check_integer(name, number, 1)
    classes, counts = torch.unique(y, return_counts=True)
    usable = classes[counts > shots]
    if len(usable) < ways:
        raise InputError(
            f"{ways} ways with {shots} shots need {ways} classes of {shots + 1} images or more; there are {len(usable)}"
        )
    members = {int(c): (y == c).nonzero().squeeze(1) for c in usable}
    generator = torch.Generator().manual_seed(seed)
    accuracies, episode_classes = [], []
    # Rows: classified wrongly, correctly. An image that is drawn again is not a new event.
    outcomes_seen = torch.zeros(2, len(y), dtype=torch.bool)
    for _ in range(episodes):
        episode_classes.append(torch.randperm(len(usable), generator=generator)[:ways])
        support, query, targets = [], [], []
        for k, name in enumerate(usable[episode_classes[-1]].tolist()):
            rows = members[name][torch.randperm(len(members[name]), generator=generator)]
            support.append(rows[:shots])
            query.append(rows[shots : shots + queries])
            targets += [k] * len(query[-1])
        rows = torch.cat(query)
        correct = is_correct(torch.stack(support), rows, torch.tensor(targets)).cpu()
        outcomes_seen[correct.long(), rows.cpu()] = True
        accuracies.append(float(correct.double().mean()))
    values = np.array(accuracies)
    rest = leave_one_class_out_means(values, torch.stack(episode_classes).numpy(), len(usable))
    enough = int(outcomes_seen.sum(1).min()) >= MIN_EVENTS
    ends = interval_to_percent(jackknife_interval(float(values.mean()), rest)) if rest is not None and enough else None
    low, high = (None, None) if ends is None else ends
    error = None if low is None or high is None else (high - low) / 2
    rest = None if rest is None else 100.0 * rest
    return FewShotMetrics(100.0 * float(values.mean()), error, episodes, low, high, len(usable), rest)


def leave_one_class_out_means(
    accuracies: NDArray[np.float64], episode_classes: NDArray[np.int64], num_classes: int
) -> NDArray[np.float64] | None:
    """Mean accuracy of episodes [E] of classes [E, ways] without each class; None for too few classes or episodes.

    Leaving out the episodes of a class would count the sampling of episodes once for each of its ways. So the effects
    of the classes are scaled to the joint spread of classes and sampling.
    """
    episodes, ways = episode_classes.shape
    episodes_per_class = np.bincount(episode_classes.reshape(-1), minlength=num_classes)
    if num_classes < max(MIN_IDENTITIES, ways + 1) or episodes_per_class.min() < 1:
        return None
    gaps = accuracies - accuracies.mean()
    noise = float(gaps.var(ddof=1)) if episodes > 1 else 0.0
    effect = np.bincount(episode_classes.reshape(-1), np.repeat(gaps, ways), num_classes) / episodes_per_class
    # Share of an episode's classes that remain possible without one class.
    retained = 1.0 - (ways - 1) / (num_classes - 1)
    class_variance = (
        (float((effect**2).mean()) - noise * float((1.0 / episodes_per_class).mean()))
        / retained**2
        * num_classes
        / (num_classes - 1)
    )
    variance = ways**2 * max(class_variance, 0.0) / num_classes + noise / episodes
    effect = effect - effect.mean()
    scale = np.sqrt(variance / max((num_classes - 1) * float((effect**2).mean()), 1e-300))
    means: NDArray[np.float64] = accuracies.mean() - effect * scale
    return means


def knn_accuracy(
    x: Tensor,
    y: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    k: int = 1,
    batch_size: int = 1024,
) -> float:
    """Percent of queries for which the k nearest neighbours vote for the right class; the nearest decides ties."""
    return 100.0 * float(knn_hits(x, y, gallery, gallery_labels, k=k, batch_size=batch_size).double().mean())


def knn_hits(
    x: Tensor,
    y: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    k: int = 1,
    batch_size: int = 1024,
) -> Tensor:
    """Return True for each query [N] whose k nearest neighbours vote for its class."""
    itself = gallery is None
    gallery, labels = resolve_gallery(x, y, gallery, gallery_labels)
    check_search_inputs(x, y, gallery, labels, batch_size)
    if not 1 <= check_integer("k", k, 1) <= len(gallery) - int(itself):
        raise InputError(f"k={k} nearest neighbours, but the gallery has only {len(gallery) - int(itself)}")
    search = NeighborSearch(gallery)
    right = []
    for start in range(0, len(x), batch_size):
        rows = slice(start, start + batch_size)
        skip = torch.arange(start, start + len(x[rows])) if itself else None
        _, neighbors = search(x[rows], k, skip)
        right.append(_vote(labels[neighbors]) == y[rows])
    return torch.cat(right)


def _vote(votes: Tensor) -> Tensor:
    """Return the most frequent value of each row; the first one in a tie."""
    counts = (votes.unsqueeze(2) == votes.unsqueeze(1)).sum(2)
    return votes.gather(1, counts.argmax(1, keepdim=True)).squeeze(1)
