"""What mining found in an epoch: triplets, active ones, anchors without any; and whether all embeddings collapsed."""

from __future__ import annotations

import torch
from torch import Tensor

_COLLAPSE_SPREAD = 1e-3  # spread of unit embeddings below which all are as good as one point


class MiningMeter:
    """Means over the batches of an epoch of what the terms of an objective report."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.num_batches = 0

    @torch.no_grad()
    def add(self, stats: dict[str, dict[str, Tensor]], embeddings: Tensor) -> None:
        """One batch; nothing waits for the device."""
        if not stats:
            return
        self.num_batches += 1
        found = {
            f"{term}/{name}": value.double() for term, term_stats in stats.items() for name, value in term_stats.items()
        }
        unit = torch.nn.functional.normalize(embeddings.float())
        found["spread"] = (1.0 - unit.mean(0).square().sum()).clamp(min=0).double()
        for name, value in found.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def means(self) -> dict[str, float]:
        """Figures per batch, and `collapsed` where all embeddings have become one point."""
        found = {name: float(value) / self.num_batches for name, value in self.sums.items()}
        if found.get("spread", 1.0) < _COLLAPSE_SPREAD:
            found["collapsed"] = 1.0
        return found
