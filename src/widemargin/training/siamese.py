"""Siamese networks: one logit per pair of images, which says whether they show the same class; trained on pairs.

Two architectures: `merge="input"` lays both images on top of each other as channels of one, `merge="embedding"` embeds
each by the same network and looks at |e₁ − e₂|. Neither may depend on which image comes first: the latter does not,
the former sees every pair in both orders. Reference: Koch, Zemel and Salakhutdinov, Siamese Neural Networks for
One-shot Image Recognition (ICML workshop 2015), for the latter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.images.augment import Augment
from ..head.objective import Objective
from ..io.errors import InputError, spell_option, unknown_name_error
from ..numerics.random import make_generator, permutation, uniform
from .optim import one_cycle, set_lr

MERGES = ("input", "embedding")
_ORDER_STREAM, _STEP_STREAM = 11, 12  # purposes of generators, as in `data.images.batches`
_NUM_WHITENING_PAIRS = 2000


@dataclass(frozen=True, eq=False)
class ImagePairs:
    """Images, uint8 [N, C, H, W], and pairs of their places: `first` [M], `second` [M], `same` [M]."""

    x: Tensor
    first: Tensor
    second: Tensor
    same: Tensor

    def __len__(self) -> int:
        return len(self.same)


@dataclass(frozen=True)
class SiameseConfig:
    """How a pair network is trained."""

    merge: str = "embedding"
    model: str = "fast(widths=(32, 96, 96), bias=False)"
    epochs: int = 5
    batch_size: int = 100
    lr: float = 0.003
    weight_decay: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if self.merge not in MERGES:
            raise unknown_name_error("merge", str(self.merge), MERGES)
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0), ("lr", 0), ("weight_decay", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must be a number of at least {least}, got {getattr(self, name)}")


class PairNetwork(nn.Module):
    """Network on two batches of images; its logit [N] says whether the images of a pair show the same."""

    def __init__(self, config: SiameseConfig, channels: int, size: int) -> None:
        from ..models.build import build_backbone

        super().__init__()
        self.merge = config.merge
        in_channels = 2 * channels if self.merge == "input" else channels
        self.backbone = build_backbone(config.model, channels=in_channels, size=size)
        embedding_dim = self.backbone.embedding_dim
        assert isinstance(embedding_dim, int)
        self.objective = Objective("bce", embedding_dim, 1)

    def features(self, a: Tensor, b: Tensor) -> Tensor:
        """Features [N, D] of the pairs, which a linear layer turns into logits."""
        if self.merge == "input":
            merged: Tensor = self.backbone(torch.cat((a, b), 1))
            return merged
        both: Tensor = self.backbone(torch.cat((a, b)))
        one, other = both.chunk(2)
        return (one - other).abs()

    def forward(self, a: Tensor, b: Tensor, same: Tensor) -> Tensor:
        """Loss [N]."""
        loss: Tensor = self.objective(self.features(a, b), same.to(a.dtype))
        return loss

    def logits(self, a: Tensor, b: Tensor) -> Tensor:
        """Logit [N] of being the same, whichever comes first."""
        found = self.objective.logits(self.features(a, b)).squeeze(1)
        if self.merge == "input":
            found = (found + self.objective.logits(self.features(b, a)).squeeze(1)) / 2
        return found


def train_siamese(
    config: SiameseConfig,
    pairs: ImagePairs,
    augment: Augment,
    on_progress: Callable[[float, float], None] | None = None,
) -> PairNetwork:
    """A network trained on pairs; `on_progress(fraction, loss)` after every step, with its fraction of the work."""
    if len(pairs) < config.batch_size:
        raise InputError(
            f"{len(pairs)} pairs are fewer than a batch of {config.batch_size}; lower {spell_option('batch_size')}"
        )
    if bool(pairs.same.all()) or not bool(pairs.same.any()):
        raise InputError("all pairs are of the same kind; training needs pairs of equal and of different classes")
    torch.manual_seed(config.seed)
    network = PairNetwork(config, pairs.x.shape[1], augment.size or pairs.x.shape[2])
    _whiten(network, pairs, augment)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    steps = len(pairs) // config.batch_size
    total = steps * config.epochs
    for epoch in range(config.epochs):
        order = permutation(make_generator(_ORDER_STREAM, config.seed, epoch), len(pairs))
        for step in range(steps):
            rows = order[step * config.batch_size : (step + 1) * config.batch_size]
            draw = make_generator(_STEP_STREAM, config.seed, epoch, step)
            places = torch.stack((pairs.first[rows], pairs.second[rows]))
            swapped = uniform(draw, len(rows)) < 0.5  # the score must not depend on the order
            places = torch.where(swapped, places.flip(0), places)
            a, b = (augment(pairs.x[place], place, epoch, draw)[0] for place in places)
            set_lr(optimizer, one_cycle(epoch * steps + step, total, config.lr))
            loss = network(a, b, pairs.same[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if on_progress is not None:
                on_progress(1.0 / total, float(loss.detach()))
    return network.eval()


def _whiten(network: PairNetwork, pairs: ImagePairs, augment: Augment) -> None:
    whiten = getattr(network.backbone, "whiten", None)
    if whiten is None:
        return
    a, b = (
        augment.transform_for_evaluation(pairs.x[place[:_NUM_WHITENING_PAIRS]]) for place in (pairs.first, pairs.second)
    )
    whiten(torch.cat((a, b), 1) if network.merge == "input" else torch.cat((a, b)))


@torch.no_grad()
def pair_scores(
    network: PairNetwork, pairs: ImagePairs, augment: Augment, batch_size: int = 500
) -> NDArray[np.float64]:
    """Logit [M] of every pair that both images show the same."""
    network.eval()
    found = []
    for start in range(0, len(pairs), batch_size):
        rows = slice(start, start + batch_size)
        a, b = (augment.transform_for_evaluation(pairs.x[places[rows]]) for places in (pairs.first, pairs.second))
        found.append(network.logits(a, b))
    scores: NDArray[np.float64] = torch.cat(found).double().numpy()
    return scores
