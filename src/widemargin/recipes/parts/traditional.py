"""What came before learned embeddings: pixels or their histogram as features, the L1 distance as similarity."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...data.geometry import resize
from ...metrics.fewshot import evaluate_episodes
from ...metrics.folds import identity_folds
from ...metrics.identity_intervals import leave_one_out_means, mean_interval
from ...metrics.pair_tables import ScoredPairs
from ...metrics.retrieval import percent
from ...metrics.verification import verification_metrics_of_pairs
from ...training.unseen import EmbeddingMetrics, episode_metrics, verification_metrics

FEATURES = ("pixels", "histograms")
_BINS = 32


def evaluate_l1_features(images: Tensor, y: Tensor, size: int, kind: str, seed: int) -> EmbeddingMetrics:
    """The figures of uint8 images [N, C, H, W], as far as they need no embedding."""
    x = resize(images, size, "bicubic").float().flatten(1)
    features = x if kind == "pixels" else histograms(x)
    near = -torch.cdist(features, features, p=1.0)
    labels = np.unique(y.numpy(), return_inverse=True)[1].astype(np.int64)
    i, j = np.triu_indices(len(labels), 1)
    pairs = ScoredPairs(near.double().numpy()[i, j], labels[i], labels[j])
    result = verification_metrics(verification_metrics_of_pairs(pairs, identity_folds(labels)))
    others = near.fill_diagonal_(-torch.inf)
    found = y[others.topk(5, 1).indices] == y.unsqueeze(1)
    for name, hits in (("recall1", found[:, 0]), ("recall5", found.any(1))):
        sums, counts = np.bincount(labels, hits.double().numpy()), np.bincount(labels)
        value, without = 100.0 * float(hits.double().mean()), 100.0 * leave_one_out_means(sums, counts)
        result += EmbeddingMetrics({name: value}, {name: percent(mean_interval(sums, counts))}, {name: without})

    def is_correct(known: Tensor, asked: Tensor, answers: Tensor) -> Tensor:
        return near[asked][:, known.squeeze(1)].argmax(1) == answers

    return result + episode_metrics(evaluate_episodes(y, is_correct, episodes=500, seed=seed))


def histograms(x: Tensor) -> Tensor:
    """Share of the pixels [N, P] of 0 … 255 in each of 32 bins, [N, 32]."""
    bins = (x * (_BINS / 256)).long().clamp(0, _BINS - 1)
    return torch.zeros(len(x), _BINS).scatter_add_(1, bins, torch.ones_like(x)) / x.shape[1]
