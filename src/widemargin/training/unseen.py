"""Judging embeddings of classes without class weights: unseen ones, or those of a loss that only embeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..angle import between, direction
from ..classifier import MarginModel
from ..data.draws import integers, permutation, uniform
from ..errors import InputError
from ..metrics.angles import mean_angle
from ..metrics.fewshot import few_shot
from ..metrics.retrieval import retrieve
from ..metrics.verification import Verification, folds_of, verify

_PAIRS = 6000  # of each kind, as LFW has in all
_LEAST = 20  # images that a class keeps
MOST = 10_000  # every image looks at every other, and a class of thousands has as many to be found


@torch.no_grad()
def embed(model: MarginModel, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Embeddings [N, D] and labels [N] on the CPU."""
    like = next(model.parameters())
    was_training = model.training
    model.eval()
    found = [(model.embed(x.to(like.device, like.dtype)).float().cpu(), y) for x, y in batches]
    model.train(was_training)
    if not found:
        raise InputError("there are no images to judge on")
    return torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])


def judge_embeddings(x: Tensor, y: Tensor, seed: int = 0) -> dict[str, Any]:
    """Figures in percent: neighbours, pairs, few shots; angles in radians.

    Of very many images some are drawn, and `images` says how many; `evaluate --protocol retrieval` takes all.
    """
    x, y = _some(x, y, seed)
    found = retrieve(x, y, ks=(1, 5))
    centres = x.new_zeros(int(y.max()) + 1, x.shape[1]).index_add_(0, y, x)
    present = torch.bincount(y, minlength=len(centres)).nonzero().squeeze(1)
    result: dict[str, Any] = {
        "images": len(y),
        "recall1": found.recall[1],
        "recall5": found.recall[5],
        "map_at_r": found.map_at_r,
        **pair_figures(verify_sampled(x, y, seed)),
        "angles": {"intra": mean_intra(x, y, centres), "c_inter": mean_angle(centres, present)[0]},
    }
    if len(present) >= 5:
        result["five_way_one_shot"] = few_shot(x, y, episodes=500, seed=seed).accuracy
    return result


def _some(x: Tensor, y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """All images, or as many as can be judged in seconds: large classes are thinned, of very many some are drawn."""
    if len(y) <= MOST:
        return x, y
    draw = torch.Generator().manual_seed(seed)
    names, place, counts = torch.unique(y, return_inverse=True, return_counts=True)
    each = min(int(counts.max()), max(_LEAST, MOST // len(names)))
    chosen = permutation(draw, len(names))[: max(2, MOST // each)]
    order = permutation(draw, len(y))
    grouped = order[torch.argsort(place[order], stable=True)]  # class by class, within each at random
    rank = torch.arange(len(y), device=y.device) - (counts.cumsum(0) - counts)[place[grouped]]
    rows = grouped[(rank < each) & torch.isin(place[grouped], chosen)].sort().values
    return x[rows], y[rows]


def pair_figures(checked: Verification) -> dict[str, Any]:
    """What a verification says, in percent."""
    return {
        "auc": 100.0 * checked.auc.value,
        "eer": 100.0 * checked.eer.value,
        "pair_accuracy": checked.accuracy,
        "tar": {f"{far:g}": None if tar is None else 100.0 * tar.value for far, tar in checked.tar.items()},
    }


def mean_intra(x: Tensor, y: Tensor, centres: Tensor) -> float:
    """Mean angle between embeddings and the centre of their own class, which stands in for a weight."""
    return float(between(direction(x.double())[0], direction(centres.double())[0][y]).mean())


def verify_sampled(x: Tensor, y: Tensor, seed: int = 0, pairs: int = _PAIRS) -> Verification:
    """Verification on pairs drawn at random, as many same as different, in ten folds; without intervals."""
    first, second, same = sampled_pairs(y, seed, pairs)
    unit = direction(x.float())[0]
    scores = (unit[first] * unit[second]).sum(1).double().numpy()
    kinds = same.numpy()
    return verify(scores, kinds, folds_of(kinds), draws=0)


def sampled_pairs(y: Tensor, seed: int, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Places of both images of every pair, and whether they are of one class; the kinds take turns."""
    draw = torch.Generator().manual_seed(seed)
    counts = torch.bincount(y)
    order = torch.argsort(y, stable=True)
    start = counts.cumsum(0) - counts
    able = counts[y] > 1
    if not bool(able.any()) or int((counts > 0).sum()) < 2:
        raise InputError("pairs want two classes, and a class with two images")
    anchors = able.nonzero().squeeze(1)
    first = anchors[integers(draw, pairs, len(anchors))]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(y), device=y.device) - start[y[order]]
    step = 1 + (uniform(draw, pairs) * (counts[y[first]] - 1)).long()
    partner = order[start[y[first]] + (place[first] + step) % counts[y[first]]]
    other = integers(draw, pairs, len(y))
    stranger = integers(draw, pairs, len(y))
    while bool((clash := y[other] == y[stranger]).any()):
        stranger[clash] = integers(draw, int(clash.sum()), len(y))
    same = torch.arange(2 * pairs, device=y.device) % 2 == 0
    left, right = y.new_empty(2 * pairs), y.new_empty(2 * pairs)
    left[same], right[same] = first, partner
    left[~same], right[~same] = other, stranger
    return left, right, same
