"""Image files as arrays: CIFAR's binary records and MNIST's IDX, which are plain bytes; nothing here is unpickled."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..bounded_files import open_regular
from ..errors import InputError
from .bounded import file_bytes
from .image_catalogue import SETS, ImageEntry, ImageFile

LARGEST_NAMES = 1 << 16  # bytes of a file of class names
Pair = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Originals:
    """Pixels [N, C, H, W] and labels [N] of both parts, and the class names."""

    train: Pair
    test: Pair
    classes: tuple[str, ...]


def read(entry: ImageEntry, folder: Path) -> Originals:
    """The set from the folder that holds its files; every doubt about them is one line."""
    part = _read_cifar if entry.kind == "cifar" else _read_idx
    return Originals(part(entry, entry.train, folder), part(entry, entry.test, folder), _classes(entry, folder))


def path_of(folder: Path, name: str) -> Path | None:
    """The file, unpacked or gzipped, if it is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _classes(entry: ImageEntry, folder: Path) -> tuple[str, ...]:
    path = folder / entry.names_file
    if not entry.names_file or not path.is_file():
        return entry.classes
    names = tuple(file_bytes(path, LARGEST_NAMES).decode("utf-8", "replace").split("\n"))
    names = tuple(name.strip() for name in names if name.strip())
    if len(set(names)) != len(entry.classes) or len(names) != len(entry.classes):
        raise InputError(f"{path}: {len(names)} class names, {len(entry.classes)} different ones are expected")
    return names


def _read_cifar(entry: ImageEntry, files: tuple[ImageFile, ...], folder: Path) -> Pair:
    pixels = int(np.prod(entry.shape))
    x = np.empty((sum(file.count for file in files), pixels), dtype=np.uint8)
    y = np.empty(len(x), dtype=np.int64)
    start = 0
    for file in files:
        path, expected = folder / file.name, file.count * entry.record
        try:
            with open_regular(path) as opened:
                size = os.fstat(opened.fileno()).st_size
                raw = np.fromfile(opened, dtype=np.uint8) if size == expected else None
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        if raw is None or raw.size != expected:
            why = "cut short" if size < expected else "another file"
            raise InputError(f"{path}: {size:,} bytes, {entry.name!r} has {expected:,}: {why}; download it again")
        records = raw.reshape(-1, entry.record)
        if entry.coarse:
            _check_labels(path, records[:, 0], entry.coarse, "coarse label")
        _check_labels(path, records[:, -pixels - 1], len(entry.classes), "label")
        _check_hash(entry, file, path, raw.data)
        x[start : start + file.count] = records[:, -pixels:]
        y[start : start + file.count] = records[:, -pixels - 1]
        start += file.count
    return x.reshape(-1, *entry.shape), y


def _read_idx(entry: ImageEntry, files: tuple[ImageFile, ...], folder: Path) -> Pair:
    images, labels = files
    x = _idx_array(entry, images, folder, (images.count, *entry.shape[1:]))
    y = _idx_array(entry, labels, folder, (labels.count,))
    return x.reshape(-1, *entry.shape), y.astype(np.int64)


def _idx_array(entry: ImageEntry, file: ImageFile, folder: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Unsigned bytes in IDX: two zeros, the type 8, the number of dimensions, each of them in four bytes, the data."""
    path = path_of(folder, file.name) or folder / file.name
    header = bytes((0, 0, 8, len(shape))) + b"".join(size.to_bytes(4, "big") for size in shape)
    expected = len(header) + int(np.prod(shape))
    try:
        with open_regular(path) as opened, gzip.open(opened) if path.suffix == ".gz" else opened as stream:
            data = stream.read(expected + 1)  # never more: a small .gz can unpack to anything
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: a damaged file ({' '.join(str(error).split())}); download it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if data[: len(header)] != header[: len(data)]:
        raise InputError(f"{path}: no IDX file of {' × '.join(map(str, shape))} bytes, as {entry.name!r} has it")
    if len(data) != expected:
        why = f"cut short after {len(data):,} of" if len(data) < expected else "longer than"
        raise InputError(f"{path}: {why} the {expected:,} bytes of {entry.name!r}; download it again")
    array = np.frombuffer(data, dtype=np.uint8, offset=len(header)).reshape(shape)
    if len(shape) == 1:
        _check_labels(path, array, len(entry.classes), "label")
    _check_hash(entry, file, path, data)
    return array


def _check_labels(path: Path, labels: NDArray[np.uint8], classes: int, what: str) -> None:
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        place = int(wrong[0])
        raise InputError(f"{path}: {what} {labels[place]} of image {place} is out of range 0 to {classes - 1}")


def _check_hash(entry: ImageEntry, file: ImageFile, path: Path, data: bytes | memoryview) -> None:
    found = hashlib.sha256(data).hexdigest()
    if file.sha256 is not None and found != file.sha256:
        raise InputError(f"{path}: not the data set {entry.name!r}: SHA-256 is {found}, expected {file.sha256}")
    whose = next((name for name, other in SETS.items() for known in other.files if known.sha256 == found), entry.name)
    if whose != entry.name:  # MNIST and Fashion-MNIST give their files the same names
        raise InputError(f"{path}: this file belongs to {whose!r}, not to {entry.name!r}")
