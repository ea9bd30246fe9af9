"""How angles are spread in an epoch: to the own class and to the others (Figure 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import angle, ranks
from ..head import Head

BINS = 90  # two degrees each


class AngleHistogram:
    """Counts of θ to the own class and to the other classes, from embeddings that were computed anyway."""

    def __init__(self, device: torch.device) -> None:
        self.own = torch.zeros(BINS, dtype=torch.int64, device=device)
        self.others = torch.zeros(BINS, dtype=torch.int64, device=device)
        self.largest: Tensor | None = None  # angle to the own class, of the last batch in which it was a number

    @torch.no_grad()
    def add(self, head: Head, x: Tensor, y: Tensor) -> None:
        """One batch."""
        unit = angle.direction(x.to(head.weight.dtype))[0]
        cos = unit @ angle.direction(head.weight)[0].T
        theta = angle.from_cosine(cos)
        bins = (theta * (BINS / angle.PI)).long().clamp_(0, BINS - 1)
        widest = theta.gather(1, y.unsqueeze(1)).amax()
        self.largest = widest if self.largest is None else torch.where(widest.isfinite(), widest, self.largest)
        own = bins.gather(1, y.unsqueeze(1)).squeeze(1)
        mine = torch.bincount(own, minlength=BINS)
        self.own += mine
        self.others += torch.bincount(bins.flatten(), minlength=BINS) - mine

    def counts(self) -> dict[str, list[int]]:
        """Both histograms over all processes, bins of two degrees from 0 to 180."""
        return {"own": ranks.add_up(self.own).tolist(), "others": ranks.add_up(self.others).tolist()}
