"""Checkpoints of models with sharded heads, through torch.distributed.checkpoint: any number of ranks reads them.

    save_sharded("run/step-1000", model, optimizer)     every rank calls it, each writes its own part
    load_sharded("run/step-1000", model, optimizer)     on another number of ranks too, and on one

Only tensors are stored; the optimizer's options are those it is made with. What is read is an index in JSON and plain
tensors: nothing is unpickled or run, whoever wrote the folder. torch.distributed.checkpoint keeps its own index
(`.metadata`) as a pickle, which runs whatever its writer put in; `index.json` is written next to it and read in its
place. It says which tensors there are, and where each part of them lies.
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
    """Write model and optimizer, every rank its own part."""
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
    """Read what any number of ranks wrote into a model (and optimizer) made anew, each rank its own part."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

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
def _ignore_warnings_of_torch() -> Iterator[None]:
    """Suppress the warnings that a single process is not distributed, and that torch (2.10) uses what it deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
        yield


def _check_shapes(folder: str, expected: dict[str, Any], sizes: dict[str, tuple[int, ...]]) -> None:
    for name, value in expected.items():
        there = sizes.get(f"model.{name}")
        if there is None:
            raise InputError(f"{folder} has no {name}: it is the checkpoint of another model")
        if there != tuple(value.shape) and not name.endswith("_extra_state"):
            raise InputError(f"{folder}: {name} is {list(there)}, the model's is {list(value.shape)}")


def _optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _shards_by_parameter_id(model: nn.Module) -> dict[int, ClassShard]:
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
    """An empty tensor for what an optimizer keeps of a parameter: the local part of a split one."""
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
    """Writes parts as torch does, and the index when all parts are there."""

    def finish(self, metadata: Metadata, results: Any) -> None:
        super().finish(metadata, results)
        fresh = Path(self.path) / f"{INDEX_FILENAME}.new"
        # Not from `metadata`, which some versions of torch fill in here and others (2.10) copy first.
        places = {written.index: written.storage_data for part in results for written in part}
        fresh.write_text(json.dumps(_metadata_to_json(metadata, places)), encoding="utf-8")
        fresh.replace(Path(self.path) / INDEX_FILENAME)


class JsonIndexReader(FileSystemReader):
    """Reads parts as torch does, as plain tensors, by an index that is JSON."""

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
    for name, found in metadata.state_dict_metadata.items():
        if not isinstance(found, TensorStorageMetadata):
            raise InputError(f"{name} is no tensor; a sharded checkpoint holds tensors only")
        parts = []
        for chunk in found.chunks:
            place = places[MetadataIndex(name, chunk.offsets)]
            parts.append([list(chunk.offsets), list(chunk.sizes), place.relative_path, place.offset, place.length])
        dtype = str(found.properties.dtype).removeprefix("torch.")
        tensors[name] = {"dtype": dtype, "size": list(found.size), "parts": parts}
    return {"format": _INDEX_FORMAT, "tensors": tensors}


def read_index(folder: Path) -> Metadata:
    """The metadata torch needs to read a checkpoint, from `index.json`; an InputError if that is not valid."""
    path = folder / INDEX_FILENAME
    try:
        index = bounded.read_json(path)
        if index["format"] != _INDEX_FORMAT:
            raise InputError(f"{path}: format {index['format']!r} is not known to this version")
        tensors: dict[str, TensorStorageMetadata] = {}
        places: dict[MetadataIndex, _StorageInfo] = {}
        for name, entry in index["tensors"].items():
            chunks = []
            for offsets, sizes, file, start, length in entry["parts"]:
                if not _PART_FILENAME.fullmatch(file):  # never a path that leads elsewhere
                    raise InputError(f"{path}: {name} lies in {file!r}, which is no part of a sharded checkpoint")
                chunks.append(ChunkStorageMetadata(_parse_size(offsets), _parse_size(sizes)))
                places[MetadataIndex(name, chunks[-1].offsets)] = _StorageInfo(file, *_parse_size((start, length)))
            tensors[name] = TensorStorageMetadata(
                TensorProperties(dtype=_DTYPES[entry["dtype"]]), _parse_size(entry["size"]), chunks
            )
        _check_claimed_sizes(folder, path, tensors, places)
    except FileNotFoundError:
        raise InputError(f"{folder} holds no sharded checkpoint (there is no {INDEX_FILENAME} in it)") from None
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
    """Check that tensors need no more memory than their files have bytes: it is allocated before anything is read."""
    held = 0
    for name in sorted({place.relative_path for place in places.values()}):
        try:
            with open_regular(folder / name) as file:
                check_not_sparse(file, folder / name)
                held += os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            raise InputError(f"{folder / name}: not there; take an earlier checkpoint") from None
    claimed = sum(kind.properties.dtype.itemsize * math.prod(kind.size) for kind in tensors.values())
    if max(claimed, sum(place.length for place in places.values())) > held:
        raise InputError(f"{index_path}: tensors of {claimed:,} bytes, of which its files hold {held:,}; not read")


def _parse_size(values: Any) -> torch.Size:
    if not all(type(one) is int and 0 <= one < 2**62 for one in values):
        raise ValueError(f"{values} are no sizes")
    return torch.Size(values)
