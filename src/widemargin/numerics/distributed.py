"""Exchange between the processes of one training; every function is the identity in a single process."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def has_multiple_ranks() -> bool:
    """Whether more than one process trains together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_rank_zero() -> bool:
    """Whether this is the process that prints for all, as torchrun or SLURM has numbered them."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def gather_rows(rows: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """The rows of all ranks of a group (None: of all there are) in rank order, without a gradient.

    Ranks may hold unequal numbers.
    """
    rows = rows.detach()
    if not has_multiple_ranks():
        return rows
    size = torch.tensor([rows.shape[0]], device=rows.device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    counts = [int(s) for s in sizes]
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


class SyncGroup:
    """The processes that share adaptive numbers and centres: those of a process group, or this process alone.

    Only what was given a group communicates, and only with that group: a head that one rank calls by itself must not
    wait for the others. A copy has the same group; a pickle is read by other processes and has none.
    """

    def __init__(self, group: ProcessGroup | None, owner_name: str) -> None:
        self.group, self._owner_name, self._warned = group, owner_name, False

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows of all processes that share, in rank order, without a gradient."""
        if self.group is not None:
            return gather_rows(rows, self.group)
        if not self._warned and has_multiple_ranks():
            self._warned = True
            warnings.warn(
                f"{self._owner_name} adapts to the samples of this process alone; where several ranks train one model, "
                "pass group=torch.distributed.group.WORLD (or the group of these ranks)",
                stacklevel=2,
            )
        return rows.detach()

    def __deepcopy__(self, memo: Any) -> SyncGroup:
        return SyncGroup(self.group, self._owner_name)

    def __reduce__(self) -> Any:
        return SyncGroup, (None, self._owner_name)


def check_group(group: Any) -> None:
    """Raise an InputError unless `group` is None or a process group that this process belongs to."""
    if group is None:
        return
    from ..io.errors import InputError, format_value

    if not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise InputError(
            f"group={format_value(group)} must be a process group of torch.distributed that this process belongs to, "
            "such as torch.distributed.group.WORLD"
        )


def all_reduce_sum(total: Tensor) -> Tensor:
    """Sum of `total` over all ranks."""
    if has_multiple_ranks():
        total = total.clone()
        dist.all_reduce(total)
    return total
