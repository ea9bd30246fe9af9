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
from .bounded_files import check_not_sparse, open_regular
from .errors import InputError
from .tensor_files import check_uncompressed

INDEX_FILENAME = "index.json"
_INDEX_FORMAT = 1
_PART_FILENAME = re.compile(r"__\d+_\d+\.distcp")
_DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


class JsonIndexWriter(FileSystemWriter):
    """Writes parts as torch does, and the index when all parts are there."""

    def finish(self, metadata: Metadata, results: Any) -> None:
        super().finish(metadata, results)
        fresh = Path(self.path) / f"{INDEX_FILENAME}.new"
        fresh.write_text(json.dumps(_metadata_to_json(metadata)), encoding="utf-8")
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


def _metadata_to_json(metadata: Metadata) -> dict[str, Any]:
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
    return {"format": _INDEX_FORMAT, "tensors": tensors}


def read_index(folder: Path) -> Metadata:
    """torch's own description of a checkpoint, made from our index; every doubt about it is one line."""
    path = folder / INDEX_FILENAME
    try:
        index = plain_json.read_json(path)
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
    """That the tensors need no more memory than their files have bytes: room is made before anything is read."""
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
