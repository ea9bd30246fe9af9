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
from .bounded import read_bounded_file
from .image_catalogue import IMAGE_SETS, ImageSetEntry, OriginalFile

MAX_CLASS_NAMES_BYTES = 1 << 16  # bytes of a file of class names
PixelsAndLabels = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class ImageSetArrays:
    """Pixels [N, C, H, W] and labels [N] of both parts, and the class names."""

    train: PixelsAndLabels
    test: PixelsAndLabels
    class_names: tuple[str, ...]


def read_image_set(entry: ImageSetEntry, folder: Path) -> ImageSetArrays:
    """The set from the folder that holds its files; every doubt about them is one line."""
    read_part = _read_cifar if entry.file_format == "cifar" else _read_idx
    return ImageSetArrays(
        read_part(entry, entry.train, folder), read_part(entry, entry.test, folder), _read_class_names(entry, folder)
    )


def find_original_file(folder: Path, name: str) -> Path | None:
    """The file, unpacked or gzipped, if it is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read_class_names(entry: ImageSetEntry, folder: Path) -> tuple[str, ...]:
    path = folder / entry.class_names_file
    if not entry.class_names_file or not path.is_file():
        return entry.class_names
    names = tuple(read_bounded_file(path, MAX_CLASS_NAMES_BYTES).decode("utf-8", "replace").split("\n"))
    names = tuple(name.strip() for name in names if name.strip())
    if len(set(names)) != len(entry.class_names) or len(names) != len(entry.class_names):
        raise InputError(f"{path}: {len(names)} class names, {len(entry.class_names)} different ones are expected")
    return names


def _read_cifar(entry: ImageSetEntry, files: tuple[OriginalFile, ...], folder: Path) -> PixelsAndLabels:
    pixels = int(np.prod(entry.shape))
    x = np.empty((sum(file.num_items for file in files), pixels), dtype=np.uint8)
    y = np.empty(len(x), dtype=np.int64)
    start = 0
    for file in files:
        path, expected = folder / file.name, file.num_items * entry.record_bytes
        try:
            with open_regular(path) as opened:
                size = os.fstat(opened.fileno()).st_size
                raw = np.fromfile(opened, dtype=np.uint8) if size == expected else None
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        if raw is None or raw.size != expected:
            why = "cut short" if size < expected else "another file"
            raise InputError(f"{path}: {size:,} bytes, {entry.name!r} has {expected:,}: {why}; download it again")
        records = raw.reshape(-1, entry.record_bytes)
        if entry.num_coarse_classes:
            _check_labels(path, records[:, 0], entry.num_coarse_classes, "coarse label")
        _check_labels(path, records[:, -pixels - 1], len(entry.class_names), "label")
        _check_hash(entry, file, path, raw.data)
        x[start : start + file.num_items] = records[:, -pixels:]
        y[start : start + file.num_items] = records[:, -pixels - 1]
        start += file.num_items
    return x.reshape(-1, *entry.shape), y


def _read_idx(entry: ImageSetEntry, files: tuple[OriginalFile, ...], folder: Path) -> PixelsAndLabels:
    images, labels = files
    x = _read_idx_array(entry, images, folder, (images.num_items, *entry.shape[1:]))
    y = _read_idx_array(entry, labels, folder, (labels.num_items,))
    return x.reshape(-1, *entry.shape), y.astype(np.int64)


def _read_idx_array(
    entry: ImageSetEntry, file: OriginalFile, folder: Path, shape: tuple[int, ...]
) -> NDArray[np.uint8]:
    """Unsigned bytes in IDX: two zeros, the type 8, the number of dimensions, each of them in four bytes, the data."""
    path = find_original_file(folder, file.name) or folder / file.name
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
        _check_labels(path, array, len(entry.class_names), "label")
    _check_hash(entry, file, path, data)
    return array


def _check_labels(path: Path, labels: NDArray[np.uint8], num_classes: int, what: str) -> None:
    wrong = np.flatnonzero(labels >= num_classes)
    if len(wrong):
        place = int(wrong[0])
        raise InputError(f"{path}: {what} {labels[place]} of image {place} is out of range 0 to {num_classes - 1}")


def _check_hash(entry: ImageSetEntry, file: OriginalFile, path: Path, data: bytes | memoryview) -> None:
    found = hashlib.sha256(data).hexdigest()
    if file.sha256 is not None and found != file.sha256:
        raise InputError(f"{path}: not the data set {entry.name!r}: SHA-256 is {found}, expected {file.sha256}")
    whose = next(
        (name for name, other in IMAGE_SETS.items() for known in other.files if known.sha256 == found), entry.name
    )
    if whose != entry.name:  # MNIST and Fashion-MNIST give their files the same names
        raise InputError(f"{path}: this file belongs to {whose!r}, not to {entry.name!r}")
