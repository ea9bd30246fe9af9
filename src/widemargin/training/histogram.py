"""How angles are spread in an epoch: to the own class and to the others (Figure 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import angle, ranks
from ..head import Head

NUM_BINS = 90  # two degrees each


class AngleHistogram:
    """Counts of θ to the own class and to the other classes, from embeddings that were computed anyway."""

    def __init__(self, device: torch.device) -> None:
        self.target = torch.zeros(NUM_BINS, dtype=torch.int64, device=device)
        self.non_target = torch.zeros(NUM_BINS, dtype=torch.int64, device=device)
        self.max_target_angle: Tensor | None = (
            None  # angle to the own class, of the last batch in which it was a number
        )

    @torch.no_grad()
    def add(self, head: Head, x: Tensor, y: Tensor) -> None:
        """One batch."""
        unit = angle.unit_and_norm(x.to(head.weight.dtype))[0]
        cos = unit @ angle.unit_and_norm(head.weight)[0].T
        theta = angle.safe_arccos(cos)
        bins = (theta * (NUM_BINS / angle.PI)).long().clamp_(0, NUM_BINS - 1)
        widest = theta.gather(1, y.unsqueeze(1)).amax()
        self.max_target_angle = (
            widest if self.max_target_angle is None else torch.where(widest.isfinite(), widest, self.max_target_angle)
        )
        own = bins.gather(1, y.unsqueeze(1)).squeeze(1)
        mine = torch.bincount(own, minlength=NUM_BINS)
        self.target += mine
        self.non_target += torch.bincount(bins.flatten(), minlength=NUM_BINS) - mine

    def counts(self) -> dict[str, list[int]]:
        """Both histograms over all processes, bins of two degrees from 0 to 180."""
        return {
            "own": ranks.all_reduce_sum(self.target).tolist(),
            "others": ranks.all_reduce_sum(self.non_target).tolist(),
        }
