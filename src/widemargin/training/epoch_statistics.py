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
_MAX_LOGITS = 1 << 24  # logits computed per step for statistics only; with many classes some samples count
_MAX_SHARDED_LOGITS = 1 << 20  # fewer where they are exchanged between processes
_MANY_WEIGHTS = (
    1 << 22
)  # size of the class weights from which on only some steps count, because reading them takes longest
_PREDICTION_INTERVAL = 16  # interval between steps that count


class AngleHistogram:
    """Histograms of the angles to the target class and to the other classes, from the embeddings of a training step."""

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
        for name in [name for name in found if name.endswith("/anchors_without")]:
            found[f"{name}_percent"] = 100.0 * found[name] / max(1, len(embeddings))
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


def _num_predicted(objective: Objective, batch_size: int, step: int) -> int:
    """Samples of a batch whose logits are computed for the statistics: all, unless the classes are very many."""
    if objective.head is None:
        return batch_size
    head = objective.head
    if head.num_classes * head.embedding_dim >= _MANY_WEIGHTS and step % _PREDICTION_INTERVAL:
        return 0
    limit = _MAX_LOGITS if head.shard is None or head.shard.world_size == 1 else _MAX_SHARDED_LOGITS
    return min(batch_size, max(1, limit // head.num_classes))


def batch_recall(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Samples whose nearest other sample of the batch is of their class, and samples that have one of their class.

    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.2]])
    >>> [int(count) for count in batch_recall(x, torch.tensor([0, 0, 1, 1]))]
    [3, 4]
    """
    unit = torch.nn.functional.normalize(x.detach().float())
    nearest = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(1)
    has_partner = (y.unsqueeze(1) == y).sum(1) > 1
    return ((y[nearest] == y) & has_partner).sum(), has_partner.sum()


class EpochSums:
    """Sums of this process; `state_dict` returns those of all processes."""

    def __init__(self, device: torch.device) -> None:
        # Loss, correct predictions (of several labels all correct), images, and images whose prediction was looked at.
        self.totals = torch.zeros(4, dtype=widest_float_dtype(device), device=device)
        self.histogram, self.mining = AngleHistogram(device), MiningMeter()
        self.steps = 0
        self.max_logit: Tensor | None = None  # largest of the last batch in which it was finite

    @torch.no_grad()
    def add(self, objective: Objective, losses: Tensor, embeddings: Tensor, y: Tensor) -> None:
        """Add one batch, without waiting for the device."""
        count = _num_predicted(objective, len(y), self.steps)
        self.steps += 1
        x, labels, head = embeddings[:count], y[:count], objective.head
        predicted = torch.full_like(self.totals[0], count)
        right = torch.zeros((), device=y.device)
        if not objective.has_logits:
            right, predicted = batch_recall(embeddings, y)
        elif count:
            logits = objective.logits(x)
            right = (logits.argmax(1) == labels).sum() if y.ndim == 1 else ((logits > 0) == labels).all(1).sum()
            largest = logits.abs().amax()
            self.max_logit = (
                largest if self.max_logit is None else torch.where(largest.isfinite(), largest, self.max_logit)
            )
        totals = self.totals
        images = torch.full_like(totals[0], len(y))
        totals += torch.stack((losses.detach().to(totals).sum(), right.to(totals), images, predicted.to(totals)))
        self.mining.add(objective.mining_stats(), embeddings)
        if count and head is not None and (head.shard is None or head.shard.world_size == 1):
            self.histogram.add(head, x, labels)

    def describe_magnitudes(self) -> str:
        """Largest logit and target angle of the last step in which they were finite, as text."""
        logit, theta = (math.nan if v is None else float(v) for v in (self.max_logit, self.histogram.max_target_angle))
        parts = [f"logit {logit:.3g}"] if math.isfinite(logit) else []
        parts += [f"angle to the target class {math.degrees(theta):.0f}°"] if math.isfinite(theta) else []
        return f"; before that the largest {' and '.join(parts)}" if parts else ""

    def global_totals(self) -> tuple[float, float, float]:
        """Mean loss, correct predictions in percent, and images, of all processes."""
        loss, right, seen, predicted = distributed.all_reduce_sum(self.totals).tolist()
        return loss / max(1.0, seen), 100.0 * right / max(1.0, predicted), seen

    def state_dict(self) -> dict[str, Any]:
        """Sums of all processes, as JSON values."""
        return {
            "totals": distributed.all_reduce_sum(self.totals).tolist(),
            "histogram": self.histogram.counts(),
            "mining": {name: float(value) for name, value in self.mining.sums.items()},
            "batches": self.mining.num_batches,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any], is_rank_zero: bool) -> None:
        """Continue from saved sums: rank 0 takes those of all processes, the others start at zero."""
        self.steps = state.get("steps", 0)
        if not is_rank_zero:
            return
        totals = state["totals"]  # three in a checkpoint of an earlier version, which looked at every prediction
        self.totals.copy_(torch.tensor([*totals, *totals[2:][: 4 - len(totals)]], dtype=self.totals.dtype))
        for name in ("target", "non_target"):
            counts = getattr(self.histogram, name)
            counts.copy_(torch.tensor(state["histogram"][name], dtype=counts.dtype))
        self.mining.sums = {name: torch.tensor(value, dtype=torch.float64) for name, value in state["mining"].items()}
        self.mining.num_batches = state["batches"]
