"""Pairs for a Siamese network, and what its answers on other pairs are worth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...data.augment import Augment
from ...metrics.fewshot import judged_episodes
from ...metrics.verification import folds_of, verify
from ...training.siamese import PairNetwork, Pairs, pair_scores
from ...training.unseen import pair_figures, sampled_pairs

_OF_EACH = 6000
_EPISODES = 100  # every question is asked pair by pair


def pairs_of(images: Any, seed: int, count: int = _OF_EACH) -> Pairs:
    """So many same and as many different pairs of images in memory."""
    return Pairs(images.x, *sampled_pairs(images.y, seed, count))


def judge_siamese(network: PairNetwork, images: Any, augment: Augment, seed: int) -> dict[str, Any]:
    """Verification and 5-way-1-shot; there are no embeddings that could be looked up."""
    pairs = pairs_of(images, seed)
    scores = pair_scores(network, pairs, augment)
    kinds = pairs.same.numpy()
    checked = verify(scores, kinds, folds_of(kinds), draws=0)

    def right(known: Tensor, asked: Tensor, answers: Tensor) -> Tensor:
        ways = len(known)
        places = (asked.repeat_interleave(ways), known.squeeze(1).repeat(len(asked)))
        questions = Pairs(images.x, *places, torch.ones(len(places[0]), dtype=torch.bool))
        said = torch.from_numpy(pair_scores(network, questions, augment)).view(len(asked), ways)
        return said.argmax(1) == answers

    shots = judged_episodes(images.y, right, episodes=_EPISODES, seed=seed)
    return {**pair_figures(checked), "five_way_one_shot": shots.accuracy}
