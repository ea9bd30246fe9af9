"""Checkpoints of models with sharded heads, through torch.distributed.checkpoint, for any number of ranks.

    save_sharded("run/step-1000", model, optimizer)     every rank calls it and writes its own part
    load_sharded("run/step-1000", model, optimizer)     also on another number of ranks, or one

Only tensors are stored; the optimizer keeps the options it was created with. Reading uses an index in JSON and plain
tensors: nothing is unpickled or run, whoever wrote the folder. torch.distributed.checkpoint stores its own index
(`.metadata`) as a pickle, which can run arbitrary code; `index.json` is written next to it and read instead. It lists
the tensors and the place of each of their parts.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.utils import _create_file_view
from torch.futures import Future

from ..io import bounded
from ..io.bounded import check_not_sparse, open_regular
from ..io.errors import InputError
from ..io.tensor_files import check_uncompressed
from .backends.sharded import ClassShard
from .head import Head


def save_sharded(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Write model and optimizer; every rank writes its own part."""
    from torch.distributed.checkpoint.state_dict_saver import save

    state: dict[str, Any] = {"model": model.state_dict()}
    if optimizer is not None:
        shards = _shards_by_parameter_id(model)
        for i, parameter in enumerate(_optimizer_parameters(optimizer)):
            for name, value in optimizer.state.get(parameter, {}).items():
                tensor = value if isinstance(value, Tensor) else torch.tensor(float(value))
                state[f"optimizer.{i}.{name}"] = _as_dtensor_if_sharded(tensor, parameter, shards)

    with _ignore_warnings_of_torch():
        save(state, storage_writer=JsonIndexWriter(str(folder)), no_dist=not _is_distributed())


def load_sharded(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Read a checkpoint of any number of ranks into a new model (and optimizer); each rank reads its own part."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    path = str(folder)
    sizes = {
        name: tuple(metadata.size)
        for name, metadata in read_index(Path(folder)).state_dict_metadata.items()
        if isinstance(metadata, TensorStorageMetadata)
    }
    state: dict[str, Any] = {"model": model.state_dict()}
    _check_shapes(path, state["model"], sizes)
    optimizer_state: dict[Tensor, dict[str, Tensor]] = {}
    if optimizer is not None:
        shards = _shards_by_parameter_id(model)
        for i, parameter in enumerate(_optimizer_parameters(optimizer)):
            start = f"optimizer.{i}."
            names = [name for name in sizes if name.startswith(start)]
            optimizer_state[parameter] = {
                name.removeprefix(start): _allocate_optimizer_state(sizes[name], parameter, shards) for name in names
            }
            for name in names:
                state[name] = _as_dtensor_if_sharded(
                    optimizer_state[parameter][name.removeprefix(start)], parameter, shards
                )
    with _ignore_warnings_of_torch():
        try:
            load(state, storage_reader=JsonIndexReader(path), no_dist=not _is_distributed())
        except CheckpointException as error:
            raise InputError(
                f"{path}: damaged, cannot be read ({_first_failure(error)}); use an earlier checkpoint"
            ) from None
    try:
        model.load_state_dict(state["model"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if optimizer is not None:
        for parameter, values in optimizer_state.items():
            optimizer.state[parameter] = dict(values)


def _first_failure(error: Any) -> str:
    """Describe the failure of the first rank that failed, in one line."""
    failures = [failure[0] if isinstance(failure, tuple) else failure for failure in error.failures.values()]
    lines = str(failures[0]).strip().splitlines() if failures else []
    return lines[0][:200] if lines else "a part is not what the index says"


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@contextmanager
def _ignore_warnings_of_torch() -> Iterator[None]:
    """Suppress warnings that a single process is not distributed, and about deprecations inside torch (2.10)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
        yield


def _check_shapes(folder: str, expected: dict[str, Any], sizes: dict[str, tuple[int, ...]]) -> None:
    for name, value in expected.items():
        stored = sizes.get(f"model.{name}")
        if stored is None:
            raise InputError(f"{folder} has no {name}: it belongs to another model")
        if stored != tuple(value.shape) and not name.endswith("_extra_state"):
            raise InputError(f"{folder}: {name} is {list(stored)}, the model's is {list(value.shape)}")


def _optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _shards_by_parameter_id(model: nn.Module) -> dict[int, ClassShard]:
    """Return the parameters that are sharded over ranks, by identity."""
    shards: dict[int, ClassShard] = {}
    for module in model.modules():
        if isinstance(module, Head) and module.shard is not None:
            shards[id(module.weight)] = module.shard
            if module.bias is not None:
                shards[id(module.bias)] = module.shard
    return shards


def _as_dtensor_if_sharded(value: Tensor, parameter: Tensor, shards: dict[int, ClassShard]) -> Tensor:
    shard = shards.get(id(parameter))
    return shard.as_dtensor(value) if shard is not None and value.shape == parameter.shape else value


def _allocate_optimizer_state(size: tuple[int, ...], parameter: Tensor, shards: dict[int, ClassShard]) -> Tensor:
    """Allocate the optimizer state of a parameter: the local part of a sharded one."""
    shard = shards.get(id(parameter))
    if shard is not None and size == (shard.num_classes, *parameter.shape[1:]):
        return torch.zeros_like(parameter.detach())
    kind = parameter if size == tuple(parameter.shape) else torch.empty((), dtype=torch.float32)
    return torch.zeros(size, dtype=kind.dtype, device=kind.device)


INDEX_FILENAME = "index.json"
_INDEX_FORMAT = 1
_PART_FILENAME = re.compile(r"__\d+_\d+\.distcp")
_DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


class JsonIndexWriter(FileSystemWriter):
    """Writes parts like torch, and the index when all parts are written."""

    def finish(self, metadata: Metadata, results: Any) -> None:
        super().finish(metadata, results)
        fresh = Path(self.path) / f"{INDEX_FILENAME}.new"
        # Not from `metadata`, which some versions of torch fill in here and others (2.10) copy first.
        places = {written.index: written.storage_data for part in results for written in part}
        fresh.write_text(json.dumps(_metadata_to_json(metadata, places)), encoding="utf-8")
        fresh.replace(Path(self.path) / INDEX_FILENAME)


class JsonIndexReader(FileSystemReader):
    """Reads parts as plain tensors, by a JSON index."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_index(Path(self.path))
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            place: _StorageInfo = self.storage_data[item.storage_index]
            path = Path(self.path) / place.relative_path
            with open_regular(path) as file:
                check_uncompressed(cast(IO[bytes], _create_file_view(file, place.offset, place.length)), str(path))
        return super().read_data(plan, planner)


def _metadata_to_json(metadata: Metadata, places: dict[MetadataIndex, _StorageInfo]) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for name, tensor in metadata.state_dict_metadata.items():
        if not isinstance(tensor, TensorStorageMetadata):
            raise InputError(f"{name} is not a tensor; a sharded checkpoint holds only tensors")
        parts = []
        for chunk in tensor.chunks:
            place = places[MetadataIndex(name, chunk.offsets)]
            parts.append([list(chunk.offsets), list(chunk.sizes), place.relative_path, place.offset, place.length])
        dtype = str(tensor.properties.dtype).removeprefix("torch.")
        tensors[name] = {"dtype": dtype, "size": list(tensor.size), "parts": parts}
    return {"format": _INDEX_FORMAT, "tensors": tensors}


def read_index(folder: Path) -> Metadata:
    """Read the metadata that torch needs from `index.json`; raise an InputError if it is not valid."""
    path = folder / INDEX_FILENAME
    try:
        index = bounded.read_json(path)
        if index["format"] != _INDEX_FORMAT:
            raise InputError(f"{path}: format {index['format']!r} is unknown to this version of widemargin")
        tensors: dict[str, TensorStorageMetadata] = {}
        places: dict[MetadataIndex, _StorageInfo] = {}
        for name, entry in index["tensors"].items():
            chunks = []
            for offsets, sizes, file, start, length in entry["parts"]:
                if not _PART_FILENAME.fullmatch(file):  # never a path outside of the folder
                    raise InputError(f"{path}: {name} is in {file!r}, which is not a file of a sharded checkpoint")
                chunks.append(ChunkStorageMetadata(_parse_size(offsets), _parse_size(sizes)))
                places[MetadataIndex(name, chunks[-1].offsets)] = _StorageInfo(file, *_parse_size((start, length)))
            tensors[name] = TensorStorageMetadata(
                TensorProperties(dtype=_DTYPES[entry["dtype"]]), _parse_size(entry["size"]), chunks
            )
        _check_claimed_sizes(folder, path, tensors, places)
    except FileNotFoundError:
        raise InputError(f"{folder} is not a sharded checkpoint: it has no {INDEX_FILENAME}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not the index of a sharded checkpoint ({error})") from None
    return Metadata(dict(tensors), storage_data=places)


def _check_claimed_sizes(
    folder: Path, index_path: Path, tensors: dict[str, TensorStorageMetadata], places: dict[MetadataIndex, _StorageInfo]
) -> None:
    """Check that tensors need no more memory than their files have bytes, because it is allocated before reading."""
    stored = 0
    for name in sorted({place.relative_path for place in places.values()}):
        try:
            with open_regular(folder / name) as file:
                check_not_sparse(file, folder / name)
                stored += os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            raise InputError(f"{folder / name}: missing; use an earlier checkpoint") from None
    claimed = sum(kind.properties.dtype.itemsize * math.prod(kind.size) for kind in tensors.values())
    if max(claimed, sum(place.length for place in places.values())) > stored:
        raise InputError(f"{index_path}: claims tensors of {claimed:,} bytes, but its files hold {stored:,}; not read")


def _parse_size(values: Any) -> torch.Size:
    if not all(type(one) is int and 0 <= one < 2**62 for one in values):
        raise ValueError(f"{values} are not sizes")
    return torch.Size(values)
