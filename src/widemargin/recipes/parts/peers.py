"""Losses of pytorch-metric-learning inside our own loop: the same network, batches and optimizer, another loss."""

from __future__ import annotations

import importlib
import math
from typing import Any

from torch import Tensor, nn

from ...errors import InputError
from ...objective import Objective
from ...training.network import ObjectiveFactory

PEER_PREFIX = "pml:"


class PeerObjective(Objective):
    """A loss on embeddings and labels, with a miner if it has one; it only embeds, as far as we are concerned."""

    def __init__(self, loss: nn.Module, miner: nn.Module | None = None) -> None:
        nn.Module.__init__(self)
        self.parts, self.factors, self.last_losses = nn.ModuleDict(), {}, {}
        self.loss, self.miner = loss, miner

    def forward(self, x: Tensor, y: Tensor, **_: Any) -> Tensor:
        """Their mean over the batch, for every sample of it."""
        mean: Tensor = self.loss(x, y, None if self.miner is None else self.miner(x, y))
        return mean.expand(len(y))


def peer_objective_factory(name: str) -> ObjectiveFactory:
    """What makes a peer's loss, by our name for it: `pml:arcface(s=16, m=0.2)`, `pml:triplet(alpha=0.2)`, …"""
    from ...literal import parse_call

    kind, options = parse_call(name.removeprefix(PEER_PREFIX), "the loss")

    def make_objective(dim: int, classes: int) -> Objective:
        try:
            losses: Any = importlib.import_module("pytorch_metric_learning.losses")
            miners: Any = importlib.import_module("pytorch_metric_learning.miners")
        except ImportError:
            raise InputError("the peers want it: pip install pytorch-metric-learning==2.9.0") from None
        # What is no part of a loss is as ours: class weights begin as long, distances are squared.
        begin = {"weight_init_func": lambda weight: nn.init.normal_(weight, std=dim**-0.5)}
        if kind == "arcface":  # takes degrees
            return PeerObjective(
                losses.ArcFaceLoss(classes, dim, margin=math.degrees(options["m"]), scale=options["s"], **begin)
            )
        if kind == "cosface":
            return PeerObjective(losses.CosFaceLoss(classes, dim, margin=options["m"], scale=options["s"], **begin))
        squared = importlib.import_module("pytorch_metric_learning.distances").LpDistance(power=2)
        miner = miners.TripletMarginMiner(options["alpha"], "semihard", distance=squared)
        return PeerObjective(losses.TripletMarginLoss(options["alpha"], distance=squared), miner)

    return make_objective
