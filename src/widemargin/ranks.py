"""What the processes of one training share; every function is the identity in a single process."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor


def several() -> bool:
    """Whether more than one process trains together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def speaks() -> bool:
    """Whether this is the process that prints for all, as torchrun or SLURM has numbered them."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def gather_rows(rows: Tensor) -> Tensor:
    """The rows of all ranks in rank order, without a gradient; ranks may hold unequal numbers."""
    rows = rows.detach()
    if not several():
        return rows
    size = torch.tensor([rows.shape[0]], device=rows.device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    counts = [int(s) for s in sizes]
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def add_up(total: Tensor) -> Tensor:
    """Sum of `total` over all ranks."""
    if several():
        total = total.clone()
        dist.all_reduce(total)
    return total
