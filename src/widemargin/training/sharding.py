"""Heads whose classes are split over the processes of a run: kept out of DDP, whole in checkpoints, split on load.

A checkpoint holds all classes in one tensor, put together on rank 0 one rank's part after the other. So it is the
checkpoint of any other run: any number of processes can resume it, each taking its own classes, and one can evaluate or
export it. Rank 0 needs memory for the whole head and its optimizer state while it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..head.backends.sharded import ClassShard
from ..head.head import Head


def class_shards(model: nn.Module) -> dict[str, ClassShard]:
    """Parameters of which this process holds some classes only, by name; none in a single process."""
    found: dict[str, ClassShard] = {}
    for path, module in model.named_modules():
        if isinstance(module, Head) and module.shard is not None and module.shard.world_size > 1:
            names = ("weight",) if module.bias is None else ("weight", "bias")
            found |= {f"{path}.{name}" if path else name: module.shard for name in names}
    return found


def exclude_from_ddp(step: nn.Module, model: nn.Module, prefix: str) -> None:
    """Exclude split parameters from DDP, which would overwrite all ranks' classes with those of rank 0."""
    if names := [f"{prefix}{name}" for name in class_shards(model)]:
        ddp: Any = nn.parallel.DistributedDataParallel
        ddp._set_params_and_buffers_to_ignore_for_model(step, names)


def gather_classes(tensors: Mapping[str, Tensor], shards: Mapping[str, ClassShard]) -> dict[str, Tensor]:
    """The tensors on rank 0 with split ones whole and on the CPU; every rank must call this."""
    found = dict(tensors)
    for name, shard in shards.items():
        local = tensors.get(name)
        if local is not None and local.ndim and len(local) == len(shard):  # not an optimizer's count of steps
            is_rank_zero = shard.rank == 0
            whole = torch.empty(shard.num_classes if is_rank_zero else 0, *local.shape[1:], dtype=local.dtype)
            # A shard that begins behind the last class takes nothing: the other ranks only send.
            shard.copy_rows(local, whole, ClassShard(shard.num_classes, 0 if is_rank_zero else 1, 1))
            found[name] = whole
    return found


def local_classes(tensors: Mapping[str, Tensor], shards: Mapping[str, ClassShard]) -> dict[str, Tensor]:
    """The tensors with this rank's part of those that are split."""
    found = dict(tensors)
    for name, shard in shards.items():
        if name in found and found[name].ndim and len(found[name]) == shard.num_classes:
            found[name] = found[name][shard.start : shard.stop]
    return found


def optimizer_shards(optimizer: torch.optim.Optimizer, model: nn.Module, names: Iterable[str]) -> dict[str, ClassShard]:
    """The shards of those of the optimizer's tensors (`optimizer.INDEX.NAME`) that belong to a split parameter."""
    by_parameter = {id(model.get_parameter(name)): shard for name, shard in class_shards(model).items()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    found = {}
    for name in names:
        _, index, _ = name.split(".", 2)
        shard = by_parameter.get(id(parameters[int(index)]))
        if shard is not None:
            found[name] = shard
    return found
