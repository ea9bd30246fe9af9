"""Checkpoints of models with sharded heads, through torch.distributed.checkpoint: any number of ranks reads them.

    save_sharded("run/step-1000", model, optimizer)     every rank calls it, each writes its own part
    load_sharded("run/step-1000", model, optimizer)     on another number of ranks too, and on one

Only tensors are stored; the optimizer's options are those it is made with. What is read is an index in JSON and plain
tensors: nothing is unpickled or run, whoever wrote the folder.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError
from .head import Head
from .others.shard import Shard


def save_sharded(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Write model and optimizer, every rank its own part."""
    from torch.distributed.checkpoint.state_dict_saver import save

    state: dict[str, Any] = {"model": model.state_dict()}
    if optimizer is not None:
        shards = _shards(model)
        for i, parameter in enumerate(_parameters(optimizer)):
            for name, value in optimizer.state.get(parameter, {}).items():
                kept = value if isinstance(value, Tensor) else torch.tensor(float(value))
                state[f"optimizer.{i}.{name}"] = _as_whole(kept, parameter, shards)
    from .sharded_index import Writer

    with _quietly_alone():
        save(state, storage_writer=Writer(str(folder)), no_dist=not _several())


def load_sharded(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Read what any number of ranks wrote into a model (and optimizer) made anew, each rank its own part."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    from .sharded_index import Reader, read_index

    place = str(folder)
    sizes = {
        name: tuple(found.size)
        for name, found in read_index(Path(folder)).state_dict_metadata.items()
        if isinstance(found, TensorStorageMetadata)
    }
    state: dict[str, Any] = {"model": model.state_dict()}
    _check(place, state["model"], sizes)
    kept: dict[Tensor, dict[str, Tensor]] = {}
    if optimizer is not None:
        shards = _shards(model)
        for i, parameter in enumerate(_parameters(optimizer)):
            start = f"optimizer.{i}."
            names = [name for name in sizes if name.startswith(start)]
            kept[parameter] = {name.removeprefix(start): _room(sizes[name], parameter, shards) for name in names}
            for name in names:
                state[name] = _as_whole(kept[parameter][name.removeprefix(start)], parameter, shards)
    with _quietly_alone():
        try:
            load(state, storage_reader=Reader(place), no_dist=not _several())
        except CheckpointException as error:
            raise InputError(f"{place}: damaged, cannot be read ({_first(error)}); take an earlier one") from None
    try:
        model.load_state_dict(state["model"])
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    if optimizer is not None:
        for parameter, values in kept.items():
            optimizer.state[parameter] = dict(values)


def _first(error: Any) -> str:
    """What went wrong on the first rank that failed, in one line."""
    failures = [failure[0] if isinstance(failure, tuple) else failure for failure in error.failures.values()]
    said = str(failures[0]).strip().splitlines() if failures else []
    return said[0][:200] if said else "a part is not what the index says"


def _several() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@contextmanager
def _quietly_alone() -> Iterator[None]:
    """torch warns that a single process is a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _check(place: str, wanted: dict[str, Any], sizes: dict[str, tuple[int, ...]]) -> None:
    for name, value in wanted.items():
        there = sizes.get(f"model.{name}")
        if there is None:
            raise InputError(f"{place} has no {name}: it is the checkpoint of another model")
        if there != tuple(value.shape) and not name.endswith("_extra_state"):
            raise InputError(f"{place}: {name} is {list(there)}, the model's is {list(value.shape)}")


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _shards(model: nn.Module) -> dict[int, Shard]:
    """Parameters that are split over ranks, by identity."""
    found: dict[int, Shard] = {}
    for module in model.modules():
        if isinstance(module, Head) and module.shard is not None:
            found[id(module.weight)] = module.shard
            if module.bias is not None:
                found[id(module.bias)] = module.shard
    return found


def _as_whole(value: Tensor, parameter: Tensor, shards: dict[int, Shard]) -> Tensor:
    shard = shards.get(id(parameter))
    return shard.whole(value) if shard is not None and value.shape == parameter.shape else value


def _room(size: tuple[int, ...], parameter: Tensor, shards: dict[int, Shard]) -> Tensor:
    """Room for what an optimizer keeps of a parameter: its own part of a split one."""
    shard = shards.get(id(parameter))
    if shard is not None and size == (shard.classes, *parameter.shape[1:]):
        return torch.zeros_like(parameter.detach())
    kind = parameter if size == tuple(parameter.shape) else torch.empty((), dtype=torch.float32)
    return torch.zeros(size, dtype=kind.dtype, device=kind.device)
