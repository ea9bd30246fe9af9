"""What adds up over the steps of an epoch: loss, right answers, angles, mining; kept where an epoch is cut in two."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import ranks
from ..objective import Objective
from ..precision import widest
from .histogram import AngleHistogram
from .mined import Mined


class EpochSums:
    """Sums of this process; `state` gives those of all."""

    def __init__(self, device: torch.device) -> None:
        self.totals = torch.zeros(3, dtype=widest(device), device=device)  # loss, right answers, images
        self.histogram, self.mined = AngleHistogram(device), Mined()
        self.logit: Tensor | None = None  # largest of the last batch in which it was a number

    @torch.no_grad()
    def add(self, objective: Objective, losses: Tensor, embedded: Tensor, y: Tensor) -> None:
        """One batch; nothing waits for the device."""
        right = torch.zeros((), device=y.device)  # none where there are no answers
        if objective.classifies:
            logits = objective.logits(embedded)
            right = (logits.argmax(1) == y).sum()
            largest = logits.abs().amax()
            self.logit = largest if self.logit is None else torch.where(largest.isfinite(), largest, self.logit)
        totals = self.totals
        totals += torch.stack((losses.detach().to(totals).sum(), right.to(totals), torch.full_like(totals[0], len(y))))
        self.mined.add(objective.mined(), embedded)
        if objective.head is not None:
            self.histogram.add(objective.head, embedded, y)

    def sizes(self) -> str:
        """Largest logit and angle to the own class in the last step where they were numbers, in words."""
        logit, theta = (math.nan if v is None else float(v) for v in (self.logit, self.histogram.largest))
        told = [f"logit {logit:.3g}"] if math.isfinite(logit) else []
        told += [f"angle to the own class {math.degrees(theta):.0f}°"] if math.isfinite(theta) else []
        return f"; before that the largest {' and '.join(told)}" if told else ""

    def over_all(self) -> tuple[float, float, float]:
        """Loss, right answers and images of all processes."""
        loss, right, seen = ranks.add_up(self.totals).tolist()
        return loss, right, seen

    def state(self) -> dict[str, Any]:
        """Sums of all processes, as JSON takes them."""
        return {
            "totals": list(self.over_all()),
            "histogram": self.histogram.counts(),
            "mined": {name: float(value) for name, value in self.mined.sums.items()},
            "batches": self.mined.batches,
        }

    def load(self, state: dict[str, Any], first: bool) -> None:
        """Go on from there: the first process with what all had, the others with nothing."""
        if not first:
            return
        self.totals.copy_(torch.tensor(state["totals"], dtype=self.totals.dtype))
        for name in ("own", "others"):
            counts = getattr(self.histogram, name)
            counts.copy_(torch.tensor(state["histogram"][name], dtype=counts.dtype))
        self.mined.sums = {name: torch.tensor(value, dtype=torch.float64) for name, value in state["mined"].items()}
        self.mined.batches = state["batches"]
