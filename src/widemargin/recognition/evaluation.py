"""Metrics of embeddings of classes without class weights: unseen ones, or those of a loss that only embeds."""

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
"""The version of these figures: 1 drew pairs with replacement, 2 takes all distinct ones, with intervals."""
_MIN_IMAGES_PER_CLASS = 20  # images that a class keeps
MAX_RETRIEVAL_IMAGES = 10_000  # every image looks at every other, and a class of thousands has as many to be found
_MAX_PAIRED_IMAGES = 3000  # images of which all pairs are scored: 4.5 million, which fit into memory


@dataclass(frozen=True, eq=False)
class EmbeddingMetrics:
    """Figures in percent, their 95 % intervals over identities, and what they are without each identity in turn."""

    values: dict[str, Any]
    intervals: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    leave_one_out: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """By figure [K], identities in the order of their labels."""

    def __add__(self, other: EmbeddingMetrics) -> EmbeddingMetrics:
        return EmbeddingMetrics(
            {**self.values, **other.values},
            {**self.intervals, **other.intervals},
            {**self.leave_one_out, **other.leave_one_out},
        )


def evaluate_embeddings(x: Tensor, y: Tensor, seed: int = 0, *, intervals: bool = True) -> dict[str, Any]:
    """Figures in percent with their `intervals`: neighbours, pairs, few shots; angles in radians.

    Of very many images some are drawn, and `images` says how many, `paired_images` for pairs; `evaluate --protocol`
    takes all.
    """
    found = compute_embedding_metrics(x, y, seed, intervals=intervals)
    return {**found.values, "intervals": found.intervals} if intervals else found.values


def compute_embedding_metrics(x: Tensor, y: Tensor, seed: int = 0, *, intervals: bool = True) -> EmbeddingMetrics:
    """The metrics of `evaluate_embeddings`, also without each identity in turn."""
    x, y = _subsample_images(x, y, seed, MAX_RETRIEVAL_IMAGES)
    found = retrieval_metrics(x, y, ks=(1, 5))
    centres = x.new_zeros(int(y.max()) + 1, x.shape[1]).index_add_(0, y, x)
    present = torch.bincount(y, minlength=len(centres)).nonzero().squeeze(1)
    names = {"recall1": "recall@1", "recall5": "recall@5", "map_at_r": "map_at_r"}
    values = {"recall1": found.recall[1], "recall5": found.recall[5], "map_at_r": found.map_at_r}
    result = EmbeddingMetrics(
        {"images": len(y), **values},
        {name: found.intervals[key] for name, key in names.items()},
        {name: found.leave_one_out[key] for name, key in names.items()},
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
    """All images, or as many as can be evaluated in seconds: large classes are thinned, of very many some are drawn."""
    if len(y) <= max_images:
        return x, y
    draw = torch.Generator().manual_seed(seed)
    names, place, counts = torch.unique(y, return_inverse=True, return_counts=True)
    each = min(int(counts.max()), max(_MIN_IMAGES_PER_CLASS, max_images // len(names)))
    chosen = permutation(draw, len(names))[: max(2, max_images // each)]
    order = permutation(draw, len(y))
    grouped = order[torch.argsort(place[order], stable=True)]  # class by class, within each at random
    rank = torch.arange(len(y), device=y.device) - (counts.cumsum(0) - counts)[place[grouped]]
    rows = grouped[(rank < each) & torch.isin(place[grouped], chosen)].sort().values
    return x[rows], y[rows]


def embedding_metrics_of_verification(verification: VerificationMetrics) -> EmbeddingMetrics:
    """Verification metrics as `EmbeddingMetrics`, in percent."""
    found = {"auc": verification.auc, "eer": verification.eer}
    few = min(verification.num_same, verification.num_different) < MIN_EVENTS
    figures: dict[str, Any] = {name: None if few or one is None else 100.0 * one.value for name, one in found.items()}
    figures["pair_accuracy"] = verification.accuracy
    figures["tar"] = {f"{far:g}": None if tar is None else 100.0 * tar.value for far, tar in verification.tar.items()}
    intervals = {"pair_accuracy": verification.accuracy_interval}
    for name, one in (*found.items(), *((f"tar {far:g}", tar) for far, tar in verification.tar.items())):
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
    """Mean angle between embeddings and the centre of their own class, which stands in for a weight."""
    return float(angle_between(unit_and_norm(x.double())[0], unit_and_norm(centres.double())[0][y]).mean())


def sampled_pairs(y: Tensor, seed: int, num_pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs to learn from, drawn with replacement, kinds by turns: places of both images, and whether of one class."""
    draw = torch.Generator().manual_seed(seed)
    counts = torch.bincount(y)
    order = torch.argsort(y, stable=True)
    start = counts.cumsum(0) - counts
    able = counts[y] > 1
    if not bool(able.any()) or int((counts > 0).sum()) < 2:
        raise InputError("pairs want two classes, and a class with two images")
    anchors = able.nonzero().squeeze(1)
    first = anchors[integers(draw, num_pairs, len(anchors))]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(y), device=y.device) - start[y[order]]
    step = 1 + (uniform(draw, num_pairs) * (counts[y[first]] - 1)).long()
    partner = order[start[y[first]] + (place[first] + step) % counts[y[first]]]
    other = integers(draw, num_pairs, len(y))
    stranger = integers(draw, num_pairs, len(y))
    while bool((clash := y[other] == y[stranger]).any()):
        stranger[clash] = integers(draw, int(clash.sum()), len(y))
    same = torch.arange(2 * num_pairs, device=y.device) % 2 == 0
    left, right = y.new_empty(2 * num_pairs), y.new_empty(2 * num_pairs)
    left[same], right[same] = first, partner
    left[~same], right[~same] = other, stranger
    return left, right, same


def distinct_pairs(y: Tensor, seed: int, num_pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs to evaluate on: at most so many of each kind, each once; places of both images, whether of one class."""
    draw = np.random.default_rng(seed)
    labels = np.unique(y.numpy(), return_inverse=True)[1]
    order = np.argsort(labels, kind="stable")  # class by class
    sizes = np.bincount(labels)
    start = (np.cumsum(sizes) - sizes)[labels[order]]
    # In this order an image has `own` images of its class before it, and `start` of others: so many pairs end with it.
    own = np.arange(len(labels)) - start
    if not own.any() or not start.any():
        raise InputError("pairs want two classes, and a class with two images")
    sides: list[NDArray[np.int64]] = []
    for ending, begin in ((own, start), (start, np.zeros_like(start))):
        last = np.cumsum(ending)
        number = draw.choice(int(last[-1]), min(num_pairs, int(last[-1])), replace=False)
        right = np.searchsorted(last, number, side="right")
        sides += [order[begin[right] + number - (last - ending)[right]], order[right]]
    same = torch.arange(len(sides[0]) + len(sides[2])) < len(sides[0])
    first, second = (torch.from_numpy(np.concatenate(part)) for part in (sides[::2], sides[1::2]))
    return first, second, same
