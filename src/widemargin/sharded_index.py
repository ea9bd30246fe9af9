"""The index of a sharded checkpoint as JSON: which tensors there are, and where each part of them lies.

torch.distributed.checkpoint keeps its own index (`.metadata`) as a pickle, which runs whatever its writer put in. Ours
is written beside it and read in its place, so that a checkpoint of a stranger is tensors and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import IO, Any, cast

import torch
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

from . import plain_json
from .bounded_files import check_holes, open_regular
from .errors import InputError
from .tensor_files import check_unpacked

INDEX = "index.json"
_FORMAT = 1
_FILE = re.compile(r"__\d+_\d+\.distcp")
_DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


class Writer(FileSystemWriter):
    """Writes parts as torch does, and the index when all parts are there."""

    def finish(self, metadata: Metadata, results: Any) -> None:
        super().finish(metadata, results)
        fresh = Path(self.path) / f"{INDEX}.new"
        fresh.write_text(json.dumps(_told(metadata)), encoding="utf-8")
        fresh.replace(Path(self.path) / INDEX)


class Reader(FileSystemReader):
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
                check_unpacked(cast(IO[bytes], _create_file_view(file, place.offset, place.length)), str(path))
        return super().read_data(plan, planner)


def _told(metadata: Metadata) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for name, found in metadata.state_dict_metadata.items():
        if not isinstance(found, TensorStorageMetadata):
            raise InputError(f"{name} is no tensor; a sharded checkpoint holds tensors only")
        parts = []
        for chunk in found.chunks:
            place = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            parts.append([list(chunk.offsets), list(chunk.sizes), place.relative_path, place.offset, place.length])
        dtype = str(found.properties.dtype).removeprefix("torch.")
        tensors[name] = {"dtype": dtype, "size": list(found.size), "parts": parts}
    return {"format": _FORMAT, "tensors": tensors}


def read_index(folder: Path) -> Metadata:
    """torch's own description of a checkpoint, made from our index; every doubt about it is one line."""
    path = folder / INDEX
    try:
        told = plain_json.read(path)
        if told["format"] != _FORMAT:
            raise InputError(f"{path}: format {told['format']!r} is not known to this version")
        kinds: dict[str, TensorStorageMetadata] = {}
        places: dict[MetadataIndex, _StorageInfo] = {}
        for name, facts in told["tensors"].items():
            chunks = []
            for offsets, sizes, file, start, length in facts["parts"]:
                if not _FILE.fullmatch(file):  # never a path that leads elsewhere
                    raise InputError(f"{path}: {name} lies in {file!r}, which is no part of a sharded checkpoint")
                chunks.append(ChunkStorageMetadata(_size(offsets), _size(sizes)))
                places[MetadataIndex(name, chunks[-1].offsets)] = _StorageInfo(file, *_size((start, length)))
            kinds[name] = TensorStorageMetadata(
                TensorProperties(dtype=_DTYPES[facts["dtype"]]), _size(facts["size"]), chunks
            )
        _check_room(folder, path, kinds, places)
    except FileNotFoundError:
        raise InputError(f"{folder} holds no sharded checkpoint (there is no {INDEX} in it)") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not the index of a sharded checkpoint ({error})") from None
    return Metadata(dict(kinds), storage_data=places)


def _check_room(
    folder: Path, path: Path, kinds: dict[str, TensorStorageMetadata], places: dict[MetadataIndex, _StorageInfo]
) -> None:
    """That the tensors need no more memory than their files have bytes: room is made before anything is read."""
    held = 0
    for name in sorted({place.relative_path for place in places.values()}):
        try:
            with open_regular(folder / name) as file:
                check_holes(file, folder / name)
                held += os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            raise InputError(f"{folder / name}: not there; take an earlier checkpoint") from None
    claimed = sum(kind.properties.dtype.itemsize * math.prod(kind.size) for kind in kinds.values())
    if max(claimed, sum(place.length for place in places.values())) > held:
        raise InputError(f"{path}: tensors of {claimed:,} bytes, of which its files hold {held:,}; not read")


def _size(numbers: Any) -> torch.Size:
    if not all(type(one) is int and 0 <= one < 2**62 for one in numbers):
        raise ValueError(f"{numbers} are no sizes")
    return torch.Size(numbers)
