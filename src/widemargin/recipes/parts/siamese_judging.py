"""Pairs for a Siamese network, and what its answers on other pairs are worth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...data.augment import Augment
from ...metrics.fewshot import judged_episodes
from ...training.protocols import scored_pairs
from ...training.siamese import PairNetwork, Pairs, pair_scores
from ...training.unseen import Judgement, distinct_pairs, pair_judgement, sampled_pairs, shot_judgement

_OF_EACH = 6000
_EPISODES = 100  # every question is asked pair by pair


def pairs_of(images: Any, seed: int, count: int = _OF_EACH) -> Pairs:
    """So many same and as many different pairs of images in memory, to learn from."""
    return Pairs(images.x, *sampled_pairs(images.y, seed, count))


def judge_siamese(network: PairNetwork, images: Any, augment: Augment, seed: int) -> Judgement:
    """Verification and 5-way-1-shot; there are no embeddings that could be looked up.

    Every pair takes a pass through the network, so that of all distinct pairs some are drawn.
    """
    pairs = Pairs(images.x, *distinct_pairs(images.y, seed, _OF_EACH))
    scores = pair_scores(network, pairs, augment)
    first, second = (images.y[places].numpy() for places in (pairs.first, pairs.second))
    checked = pair_judgement(scored_pairs(scores, first, second))

    def right(known: Tensor, asked: Tensor, answers: Tensor) -> Tensor:
        ways = len(known)
        places = (asked.repeat_interleave(ways), known.squeeze(1).repeat(len(asked)))
        questions = Pairs(images.x, *places, torch.ones(len(places[0]), dtype=torch.bool))
        said = torch.from_numpy(pair_scores(network, questions, augment)).view(len(asked), ways)
        return said.argmax(1) == answers

    return checked + shot_judgement(judged_episodes(images.y, right, episodes=_EPISODES, seed=seed))
