"""What came before learned embeddings: pixels or their histogram as features, the L1 distance as similarity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...data.geometry import resize
from ...metrics.fewshot import judged_episodes
from ...metrics.verification import folds_of, verify
from ...training.unseen import pair_figures, sampled_pairs

FEATURES = ("pixels", "histograms")
_BINS = 32


def judge_traditional(images: Tensor, y: Tensor, size: int, kind: str, seed: int) -> dict[str, Any]:
    """The figures of uint8 images [N, C, H, W], as far as they need no embedding."""
    x = resize(images, size, "bicubic").float().flatten(1)
    near = -torch.cdist(x if kind == "pixels" else histograms(x), x if kind == "pixels" else histograms(x), p=1.0)
    first, second, same = sampled_pairs(y, seed, 6000)
    kinds = same.numpy()
    checked = verify(near[first, second].double().numpy(), kinds, folds_of(kinds), draws=0)
    others = near.fill_diagonal_(-torch.inf)
    found = y[others.topk(5, 1).indices] == y.unsqueeze(1)

    def right(known: Tensor, asked: Tensor, answers: Tensor) -> Tensor:
        return near[asked][:, known.squeeze(1)].argmax(1) == answers

    shots = judged_episodes(y, right, episodes=500, seed=seed)
    return {
        "recall1": 100.0 * float(found[:, 0].double().mean()),
        "recall5": 100.0 * float(found.any(1).double().mean()),
        **pair_figures(checked),
        "five_way_one_shot": shots.accuracy,
    }


def histograms(x: Tensor) -> Tensor:
    """Share of the pixels [N, P] of 0 … 255 in each of 32 bins, [N, 32]."""
    bins = (x * (_BINS / 256)).long().clamp(0, _BINS - 1)
    return torch.zeros(len(x), _BINS).scatter_add_(1, bins, torch.ones_like(x)) / x.shape[1]
