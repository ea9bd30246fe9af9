"""Pairs for a Siamese network, and what its answers on other pairs are worth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...data.augment import Augment
from ...metrics.fewshot import evaluate_episodes
from ...training.protocols import verify_scored_pairs
from ...training.siamese import ImagePairs, PairNetwork, pair_scores
from ...training.unseen import EmbeddingMetrics, distinct_pairs, episode_metrics, sampled_pairs, verification_metrics

_PAIRS_PER_KIND = 6000
_SIAMESE_EPISODES = 100  # every question is asked pair by pair


def sample_training_pairs(images: Any, seed: int, count: int = _PAIRS_PER_KIND) -> ImagePairs:
    """So many same and as many different pairs of images in memory, to learn from."""
    return ImagePairs(images.x, *sampled_pairs(images.y, seed, count))


def evaluate_siamese(network: PairNetwork, images: Any, augment: Augment, seed: int) -> EmbeddingMetrics:
    """Verification and 5-way-1-shot; there are no embeddings that could be looked up.

    Every pair takes a pass through the network, so that of all distinct pairs some are drawn.
    """
    pairs = ImagePairs(images.x, *distinct_pairs(images.y, seed, _PAIRS_PER_KIND))
    scores = pair_scores(network, pairs, augment)
    first, second = (images.y[places].numpy() for places in (pairs.first, pairs.second))
    checked = verification_metrics(verify_scored_pairs(scores, first, second))

    def is_correct(known: Tensor, asked: Tensor, answers: Tensor) -> Tensor:
        ways = len(known)
        places = (asked.repeat_interleave(ways), known.squeeze(1).repeat(len(asked)))
        questions = ImagePairs(images.x, *places, torch.ones(len(places[0]), dtype=torch.bool))
        said = torch.from_numpy(pair_scores(network, questions, augment)).view(len(asked), ways)
        return said.argmax(1) == answers

    return checked + episode_metrics(evaluate_episodes(images.y, is_correct, episodes=_SIAMESE_EPISODES, seed=seed))
