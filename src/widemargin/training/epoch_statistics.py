"""Sums over the steps of an epoch: loss, correct predictions, histograms of angles (Figure 4), mining statistics.

A checkpoint in the middle of an epoch keeps them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..head.head import Head
from ..head.objective import Objective
from ..numerics import angles, distributed
from ..numerics.precision import widest_float_dtype

NUM_BINS = 90  # two degrees each


class AngleHistogram:
    """Histograms of the angles to the target class and to the other classes, from embeddings of the training step."""

    def __init__(self, device: torch.device) -> None:
        self.target = torch.zeros(NUM_BINS, dtype=torch.int64, device=device)
        self.non_target = torch.zeros(NUM_BINS, dtype=torch.int64, device=device)
        self.max_target_angle: Tensor | None = None  # of the last batch in which it was finite

    @torch.no_grad()
    def add(self, head: Head, x: Tensor, y: Tensor) -> None:
        """Count the angles of one batch; for sub-centres the angle to the nearest one."""
        unit = angles.unit_and_norm(x.to(head.weight.dtype))[0].unsqueeze(1)
        cos = angles.nearest_cosines(unit, angles.group_weights(angles.unit_and_norm(head.weight)[0]))
        theta = angles.safe_arccos(cos)
        bins = (theta * (NUM_BINS / angles.PI)).long().clamp_(0, NUM_BINS - 1)
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
            "target": distributed.all_reduce_sum(self.target).tolist(),
            "non_target": distributed.all_reduce_sum(self.non_target).tolist(),
        }


_COLLAPSE_SPREAD = 1e-3  # spread of unit embeddings below which they count as one point


class MiningMeter:
    """Means over an epoch of the statistics that the pair losses of an objective report.

    These are triplets, active ones, anchors without any; and the spread of all embeddings.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.num_batches = 0

    @torch.no_grad()
    def add(self, stats: dict[str, dict[str, Tensor]], embeddings: Tensor) -> None:
        """Add the statistics of one batch, without waiting for the device."""
        if not stats:
            return
        self.num_batches += 1
        found = {
            f"{loss}/{name}": value.double() for loss, loss_stats in stats.items() for name, value in loss_stats.items()
        }
        unit = torch.nn.functional.normalize(embeddings.float())
        found["spread"] = (1.0 - unit.mean(0).square().sum()).clamp(min=0).double()
        for name, value in found.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def means(self) -> dict[str, float]:
        """Means per batch, and `collapsed` if all embeddings have become one point."""
        found = {name: float(value) / self.num_batches for name, value in self.sums.items()}
        if found.get("spread", 1.0) < _COLLAPSE_SPREAD:
            found["collapsed"] = 1.0
        return found


class EpochSums:
    """Sums of this process; `state_dict` returns those of all processes."""

    def __init__(self, device: torch.device) -> None:
        self.totals = torch.zeros(
            3, dtype=widest_float_dtype(device), device=device
        )  # loss, correct predictions (of several labels all correct), images
        self.histogram, self.mining = AngleHistogram(device), MiningMeter()
        self.max_logit: Tensor | None = None  # largest of the last batch in which it was finite

    @torch.no_grad()
    def add(self, objective: Objective, losses: Tensor, embeddings: Tensor, y: Tensor) -> None:
        """Add one batch, without waiting for the device."""
        right = torch.zeros((), device=y.device)  # stays 0 for objectives without predictions
        if objective.has_logits:
            logits = objective.logits(embeddings)
            right = (logits.argmax(1) == y).sum() if y.ndim == 1 else ((logits > 0) == y).all(1).sum()
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
        """Largest logit and target angle of the last step in which they were finite, as text."""
        logit, theta = (math.nan if v is None else float(v) for v in (self.max_logit, self.histogram.max_target_angle))
        parts = [f"logit {logit:.3g}"] if math.isfinite(logit) else []
        parts += [f"angle to the target class {math.degrees(theta):.0f}°"] if math.isfinite(theta) else []
        return f"; before that the largest {' and '.join(parts)}" if parts else ""

    def global_totals(self) -> tuple[float, float, float]:
        """Loss, correct predictions and images of all processes."""
        loss, right, seen = distributed.all_reduce_sum(self.totals).tolist()
        return loss, right, seen

    def state_dict(self) -> dict[str, Any]:
        """Sums of all processes, as JSON values."""
        return {
            "totals": list(self.global_totals()),
            "histogram": self.histogram.counts(),
            "mining": {name: float(value) for name, value in self.mining.sums.items()},
            "batches": self.mining.num_batches,
        }

    def load_state_dict(self, state: dict[str, Any], is_rank_zero: bool) -> None:
        """Continue from saved sums: rank 0 takes those of all processes, the others start at zero."""
        if not is_rank_zero:
            return
        self.totals.copy_(torch.tensor(state["totals"], dtype=self.totals.dtype))
        for name in ("target", "non_target"):
            counts = getattr(self.histogram, name)
            counts.copy_(torch.tensor(state["histogram"][name], dtype=counts.dtype))
        self.mining.sums = {name: torch.tensor(value, dtype=torch.float64) for name, value in state["mining"].items()}
        self.mining.num_batches = state["batches"]
