"""Metrics of embeddings without class weights: of unseen classes, or of losses that only train embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io.errors import InputError
from ..metrics.angles import mean_angle
from ..metrics.fewshot import FewShotMetrics, few_shot_metrics
from ..metrics.intervals import MIN_EVENTS
from ..metrics.retrieval import retrieval_metrics
from ..metrics.verification import VerificationMetrics, verification_metrics_of_embeddings
from ..numerics.angles import angle_between, unit_and_norm
from ..numerics.random import integers, permutation, uniform

EVALUATION_VERSION = 2
"""Version of these metrics: 1 drew pairs with replacement, 2 uses all distinct pairs, with intervals."""
_MIN_IMAGES_PER_CLASS = 20  # images that a class keeps at least
MAX_RETRIEVAL_IMAGES = 10_000  # every image is compared with every other, and a class of thousands has as many matches
_MAX_PAIRED_IMAGES = 3000  # all pairs of these images are scored: 4.5 million, which fit into memory


@dataclass(frozen=True, eq=False)
class EmbeddingMetrics:
    """Metrics in percent, their 95 % intervals over identities, and their values without each identity in turn."""

    values: dict[str, Any]
    intervals: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    leave_one_out: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Values by metric [K], identities in the order of their labels."""

    def __add__(self, other: EmbeddingMetrics) -> EmbeddingMetrics:
        return EmbeddingMetrics(
            {**self.values, **other.values},
            {**self.intervals, **other.intervals},
            {**self.leave_one_out, **other.leave_one_out},
        )


def evaluate_embeddings(x: Tensor, y: Tensor, seed: int = 0, *, intervals: bool = True) -> dict[str, Any]:
    """Compute metrics in percent with their `intervals`: neighbours, pairs, few-shot; angles in radians.

    Very many images are subsampled: `images` says how many were used, `paired_images` how many for pairs. `evaluate
    --protocol` uses all.
    """
    metrics = compute_embedding_metrics(x, y, seed, intervals=intervals)
    return {**metrics.values, "intervals": metrics.intervals} if intervals else metrics.values


def compute_embedding_metrics(x: Tensor, y: Tensor, seed: int = 0, *, intervals: bool = True) -> EmbeddingMetrics:
    """Compute the metrics of `evaluate_embeddings`, also without each identity in turn."""
    x, y = _subsample_images(x, y, seed, MAX_RETRIEVAL_IMAGES)
    retrieval = retrieval_metrics(x, y, ks=(1, 5))
    centres = x.new_zeros(int(y.max()) + 1, x.shape[1]).index_add_(0, y, x)
    present = torch.bincount(y, minlength=len(centres)).nonzero().squeeze(1)
    names = {"recall1": "recall@1", "recall5": "recall@5", "map_at_r": "map_at_r"}
    values = {"recall1": retrieval.recall[1], "recall5": retrieval.recall[5], "map_at_r": retrieval.map_at_r}
    result = EmbeddingMetrics(
        {"images": len(y), **values},
        {name: retrieval.intervals[key] for name, key in names.items()},
        {name: retrieval.leave_one_out[key] for name, key in names.items()},
    )
    paired = _subsample_images(x, y, seed, _MAX_PAIRED_IMAGES)
    result += EmbeddingMetrics({"paired_images": len(paired[1])})
    result += embedding_metrics_of_verification(verification_metrics_of_embeddings(*paired, intervals=intervals))
    angles = {"intra": mean_intra_angle(x, y, centres), "c_inter": mean_angle(centres, present)[0]}
    result += EmbeddingMetrics({"identities": len(present), "angles": angles})
    if len(present) >= 5:
        result += episode_metrics(few_shot_metrics(x, y, episodes=500, seed=seed))
    return result


def _subsample_images(x: Tensor, y: Tensor, seed: int, max_images: int) -> tuple[Tensor, Tensor]:
    """Return all images, or as many as can be evaluated in seconds: large classes are thinned, very many subsampled."""
    if len(y) <= max_images:
        return x, y
    draw = torch.Generator().manual_seed(seed)
    names, place, counts = torch.unique(y, return_inverse=True, return_counts=True)
    each = min(int(counts.max()), max(_MIN_IMAGES_PER_CLASS, max_images // len(names)))
    chosen = permutation(draw, len(names))[: max(2, max_images // each)]
    order = permutation(draw, len(y))
    grouped = order[torch.argsort(place[order], stable=True)]  # by class, in random order within each
    rank = torch.arange(len(y), device=y.device) - (counts.cumsum(0) - counts)[place[grouped]]
    rows = grouped[(rank < each) & torch.isin(place[grouped], chosen)].sort().values
    return x[rows], y[rows]


def embedding_metrics_of_verification(verification: VerificationMetrics) -> EmbeddingMetrics:
    """Verification metrics as `EmbeddingMetrics`, in percent."""
    metrics = {"auc": verification.auc, "eer": verification.eer}
    few = min(verification.num_same, verification.num_different) < MIN_EVENTS
    figures: dict[str, Any] = {name: None if few or one is None else 100.0 * one.value for name, one in metrics.items()}
    figures["pair_accuracy"] = verification.accuracy
    figures["tar"] = {f"{far:g}": None if tar is None else 100.0 * tar.value for far, tar in verification.tar.items()}
    intervals = {"pair_accuracy": verification.accuracy_interval}
    for name, one in (*metrics.items(), *((f"tar {far:g}", tar) for far, tar in verification.tar.items())):
        ends = None if one is None or one.low is None or one.high is None else (100.0 * one.low, 100.0 * one.high)
        intervals[name] = ends
    renamed = {"accuracy": "pair_accuracy"}
    return EmbeddingMetrics(
        figures, intervals, {renamed.get(k, k): 100.0 * values for k, values in verification.leave_one_out.items()}
    )


def episode_metrics(episodes: FewShotMetrics) -> EmbeddingMetrics:
    """Few-shot metrics of five ways and one shot as `EmbeddingMetrics`."""
    ends = None if episodes.low is None or episodes.high is None else (episodes.low, episodes.high)
    without = {} if episodes.leave_one_out is None else {"five_way_one_shot": episodes.leave_one_out}
    return EmbeddingMetrics({"five_way_one_shot": episodes.accuracy}, {"five_way_one_shot": ends}, without)


def mean_intra_angle(x: Tensor, y: Tensor, centres: Tensor) -> float:
    """Mean angle between embeddings and the centre of their own class, which replaces a class weight."""
    return float(angle_between(unit_and_norm(x.double())[0], unit_and_norm(centres.double())[0][y]).mean())


def sampled_pairs(y: Tensor, seed: int, num_pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw training pairs with replacement, alternating same and different: indices of both images, and `same`."""
    draw = torch.Generator().manual_seed(seed)
    counts = torch.bincount(y)
    order = torch.argsort(y, stable=True)
    start = counts.cumsum(0) - counts
    able = counts[y] > 1
    if not bool(able.any()) or int((counts > 0).sum()) < 2:
        raise InputError("pairs need at least two classes, and one class with at least two images")
    anchors = able.nonzero().squeeze(1)
    first = anchors[integers(draw, num_pairs, len(anchors))]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(y), device=y.device) - start[y[order]]
    step = 1 + (uniform(draw, num_pairs) * (counts[y[first]] - 1)).long()
    partner = order[start[y[first]] + (place[first] + step) % counts[y[first]]]
    other = integers(draw, num_pairs, len(y))
    different = integers(draw, num_pairs, len(y))
    while bool((clash := y[other] == y[different]).any()):
        different[clash] = integers(draw, int(clash.sum()), len(y))
    same = torch.arange(2 * num_pairs, device=y.device) % 2 == 0
    left, right = y.new_empty(2 * num_pairs), y.new_empty(2 * num_pairs)
    left[same], right[same] = first, partner
    left[~same], right[~same] = other, different
    return left, right, same


def distinct_pairs(y: Tensor, seed: int, num_pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw distinct evaluation pairs, at most `num_pairs` of each kind: indices of both images, and `same`."""
    draw = np.random.default_rng(seed)
    labels = np.unique(y.numpy(), return_inverse=True)[1]
    order = np.argsort(labels, kind="stable")  # by class
    sizes = np.bincount(labels)
    start = (np.cumsum(sizes) - sizes)[labels[order]]
    # In this order an image follows `own` images of its class and `start` of others: so many pairs end with it.
    own = np.arange(len(labels)) - start
    if not own.any() or not start.any():
        raise InputError("pairs need at least two classes, and one class with at least two images")
    sides: list[NDArray[np.int64]] = []
    for ending, begin in ((own, start), (start, np.zeros_like(start))):
        last = np.cumsum(ending)
        number = draw.choice(int(last[-1]), min(num_pairs, int(last[-1])), replace=False)
        right = np.searchsorted(last, number, side="right")
        sides += [order[begin[right] + number - (last - ending)[right]], order[right]]
    same = torch.arange(len(sides[0]) + len(sides[2])) < len(sides[0])
    first, second = (torch.from_numpy(np.concatenate(part)) for part in (sides[::2], sides[1::2]))
    return first, second, same
