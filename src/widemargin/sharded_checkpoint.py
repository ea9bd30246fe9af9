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
from .others.shard import ClassShard


def save_sharded(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Write model and optimizer, every rank its own part."""
    from torch.distributed.checkpoint.state_dict_saver import save

    state: dict[str, Any] = {"model": model.state_dict()}
    if optimizer is not None:
        shards = _shards(model)
        for i, parameter in enumerate(_parameters(optimizer)):
            for name, value in optimizer.state.get(parameter, {}).items():
                tensor = value if isinstance(value, Tensor) else torch.tensor(float(value))
                state[f"optimizer.{i}.{name}"] = _as_dtensor_if_sharded(tensor, parameter, shards)
    from .sharded_index import JsonIndexWriter

    with _ignore_single_process_warning():
        save(state, storage_writer=JsonIndexWriter(str(folder)), no_dist=not _is_distributed())


def load_sharded(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Read what any number of ranks wrote into a model (and optimizer) made anew, each rank its own part."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    from .sharded_index import JsonIndexReader, read_index

    path = str(folder)
    sizes = {
        name: tuple(found.size)
        for name, found in read_index(Path(folder)).state_dict_metadata.items()
        if isinstance(found, TensorStorageMetadata)
    }
    state: dict[str, Any] = {"model": model.state_dict()}
    _check_shapes(path, state["model"], sizes)
    optimizer_state: dict[Tensor, dict[str, Tensor]] = {}
    if optimizer is not None:
        shards = _shards(model)
        for i, parameter in enumerate(_parameters(optimizer)):
            start = f"optimizer.{i}."
            names = [name for name in sizes if name.startswith(start)]
            optimizer_state[parameter] = {
                name.removeprefix(start): _allocate_optimizer_state(sizes[name], parameter, shards) for name in names
            }
            for name in names:
                state[name] = _as_dtensor_if_sharded(
                    optimizer_state[parameter][name.removeprefix(start)], parameter, shards
                )
    with _ignore_single_process_warning():
        try:
            load(state, storage_reader=JsonIndexReader(path), no_dist=not _is_distributed())
        except CheckpointException as error:
            raise InputError(
                f"{path}: damaged, cannot be read ({_first_failure(error)}); take an earlier one"
            ) from None
    try:
        model.load_state_dict(state["model"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if optimizer is not None:
        for parameter, values in optimizer_state.items():
            optimizer.state[parameter] = dict(values)


def _first_failure(error: Any) -> str:
    """What went wrong on the first rank that failed, in one line."""
    failures = [failure[0] if isinstance(failure, tuple) else failure for failure in error.failures.values()]
    said = str(failures[0]).strip().splitlines() if failures else []
    return said[0][:200] if said else "a part is not what the index says"


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@contextmanager
def _ignore_single_process_warning() -> Iterator[None]:
    """torch warns that a single process is a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _check_shapes(folder: str, expected: dict[str, Any], sizes: dict[str, tuple[int, ...]]) -> None:
    for name, value in expected.items():
        there = sizes.get(f"model.{name}")
        if there is None:
            raise InputError(f"{folder} has no {name}: it is the checkpoint of another model")
        if there != tuple(value.shape) and not name.endswith("_extra_state"):
            raise InputError(f"{folder}: {name} is {list(there)}, the model's is {list(value.shape)}")


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _shards(model: nn.Module) -> dict[int, ClassShard]:
    """Parameters that are split over ranks, by identity."""
    found: dict[int, ClassShard] = {}
    for module in model.modules():
        if isinstance(module, Head) and module.shard is not None:
            found[id(module.weight)] = module.shard
            if module.bias is not None:
                found[id(module.bias)] = module.shard
    return found


def _as_dtensor_if_sharded(value: Tensor, parameter: Tensor, shards: dict[int, ClassShard]) -> Tensor:
    shard = shards.get(id(parameter))
    return shard.as_dtensor(value) if shard is not None and value.shape == parameter.shape else value


def _allocate_optimizer_state(size: tuple[int, ...], parameter: Tensor, shards: dict[int, ClassShard]) -> Tensor:
    """Room for what an optimizer keeps of a parameter: its own part of a split one."""
    shard = shards.get(id(parameter))
    if shard is not None and size == (shard.num_classes, *parameter.shape[1:]):
        return torch.zeros_like(parameter.detach())
    kind = parameter if size == tuple(parameter.shape) else torch.empty((), dtype=torch.float32)
    return torch.zeros(size, dtype=kind.dtype, device=kind.device)
