"""What adds up over the steps of an epoch: loss, right answers, angles, mining; kept where an epoch is cut in two."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import ranks
from ..objective import Objective
from ..precision import widest_float_dtype
from .histogram import AngleHistogram
from .mined import MiningMeter


class EpochSums:
    """Sums of this process; `state` gives those of all."""

    def __init__(self, device: torch.device) -> None:
        self.totals = torch.zeros(3, dtype=widest_float_dtype(device), device=device)  # loss, right answers, images
        self.histogram, self.mining = AngleHistogram(device), MiningMeter()
        self.max_logit: Tensor | None = None  # largest of the last batch in which it was a number

    @torch.no_grad()
    def add(self, objective: Objective, losses: Tensor, embeddings: Tensor, y: Tensor) -> None:
        """One batch; nothing waits for the device."""
        right = torch.zeros((), device=y.device)  # none where there are no answers
        if objective.has_logits:
            logits = objective.logits(embeddings)
            right = (logits.argmax(1) == y).sum()
            largest = logits.abs().amax()
            self.max_logit = (
                largest if self.max_logit is None else torch.where(largest.isfinite(), largest, self.max_logit)
            )
        totals = self.totals
        totals += torch.stack((losses.detach().to(totals).sum(), right.to(totals), torch.full_like(totals[0], len(y))))
        self.mining.add(objective.mining_stats(), embeddings)
        if objective.head is not None:
            self.histogram.add(objective.head, embeddings, y)

    def describe_magnitudes(self) -> str:
        """Largest logit and angle to the own class in the last step where they were numbers, in words."""
        logit, theta = (math.nan if v is None else float(v) for v in (self.max_logit, self.histogram.max_target_angle))
        parts = [f"logit {logit:.3g}"] if math.isfinite(logit) else []
        parts += [f"angle to the own class {math.degrees(theta):.0f}°"] if math.isfinite(theta) else []
        return f"; before that the largest {' and '.join(parts)}" if parts else ""

    def global_totals(self) -> tuple[float, float, float]:
        """Loss, right answers and images of all processes."""
        loss, right, seen = ranks.all_reduce_sum(self.totals).tolist()
        return loss, right, seen

    def state_dict(self) -> dict[str, Any]:
        """Sums of all processes, as JSON takes them."""
        return {
            "totals": list(self.global_totals()),
            "histogram": self.histogram.counts(),
            "mined": {name: float(value) for name, value in self.mining.sums.items()},
            "batches": self.mining.num_batches,
        }

    def load_state_dict(self, state: dict[str, Any], is_rank_zero: bool) -> None:
        """Go on from there: the first process with what all had, the others with nothing."""
        if not is_rank_zero:
            return
        self.totals.copy_(torch.tensor(state["totals"], dtype=self.totals.dtype))
        for name in ("own", "others"):
            counts = getattr(self.histogram, name)
            counts.copy_(torch.tensor(state["histogram"][name], dtype=counts.dtype))
        self.mining.sums = {name: torch.tensor(value, dtype=torch.float64) for name, value in state["mined"].items()}
        self.mining.num_batches = state["batches"]
