"""Omniglot's small background sets: 242 characters of 8 alphabets, each drawn by 20 people, 105×105 pixels.

Read from one file of arrays (`omniglot_background_small.npz`) or from the two original archives, found in a folder or
fetched; what counts is that the decoded images are the known ones. Reference: Lake, Salakhutdinov and Tenenbaum,
Human-level concept learning through probabilistic program induction, Science 350 (2015).
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InputError
from .bounded import check_zip_size, read_bounded_file, read_zip_member
from .fetch import FetchError, cache_dir, fetch
from .images import Images, ImageSet

OMNIGLOT_ARRAYS_FILE = "omniglot_background_small.npz"
OMNIGLOT_ARCHIVES = ("images_background_small1.zip", "images_background_small2.zip")
_OMNIGLOT_URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
_OMNIGLOT_SIDE, _OMNIGLOT_COUNT, _OMNIGLOT_DRAWERS = 105, 4840, 20
_OMNIGLOT_TRAIN_DRAWERS = 16  # drawers beyond this one are the test part where characters are not split
OMNIGLOT_SHA256 = "a3baf2b09c27636290eaaf2e8ebed0b1c3d5e32c894ade6b15520a4abd0418ac"
_MAX_OMNIGLOT_ARCHIVE_BYTES, _MAX_OMNIGLOT_UNPACKED_BYTES = 8 << 20, 128 << 20

OmniglotArrays = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]


def load_omniglot(folders: list[Path]) -> ImageSet:
    """The set from the first of these folders that has it, from the cache, or from the network."""
    images, labels, drawer, names = _load_omniglot_arrays(folders)
    x = torch.from_numpy(images * np.uint8(255)).unsqueeze(1)  # ink is white
    everything = Images("omniglot", x, torch.from_numpy(labels), names)
    test = torch.from_numpy(drawer > _OMNIGLOT_TRAIN_DRAWERS)
    train = everything.take((~test).nonzero().squeeze(1))
    ink = float(images.mean())
    deviation = float(np.sqrt(ink * (1 - ink)))
    return ImageSet("omniglot", train, everything.take(test.nonzero().squeeze(1)), (ink,), (deviation,))


def _load_omniglot_arrays(folders: list[Path]) -> OmniglotArrays:
    for folder in folders:
        if (folder / OMNIGLOT_ARRAYS_FILE).is_file():
            return _sort_and_check_omniglot(
                _read_omniglot_npz(folder / OMNIGLOT_ARRAYS_FILE), folder / OMNIGLOT_ARRAYS_FILE
            )
        if all((folder / name).is_file() for name in OMNIGLOT_ARCHIVES):
            return _sort_and_check_omniglot(_read_omniglot_archives(folder), folder)
    cache_folder = cache_dir() / "images" / "omniglot"
    if not all((cache_folder / name).is_file() for name in OMNIGLOT_ARCHIVES):
        cache_folder.mkdir(parents=True, exist_ok=True)
        for name in OMNIGLOT_ARCHIVES:
            try:
                fetch(_OMNIGLOT_URL + name, cache_folder / name, max_bytes=_MAX_OMNIGLOT_ARCHIVE_BYTES)
            except FetchError as error:
                raise InputError(
                    f"omniglot: {error}; put {' and '.join(OMNIGLOT_ARCHIVES)} into a folder and give it"
                ) from None
    try:
        return _sort_and_check_omniglot(_read_omniglot_archives(cache_folder), cache_folder)
    except InputError as error:  # what was fetched is not what it should be: it must not stay
        for name in OMNIGLOT_ARCHIVES:
            (cache_folder / name).unlink(missing_ok=True)
        raise InputError(f"{error}; what was downloaded is deleted, the same command fetches it again") from None


def _read_omniglot_npz(path: Path) -> OmniglotArrays:
    try:
        with zipfile.ZipFile(io.BytesIO(read_bounded_file(path, _MAX_OMNIGLOT_UNPACKED_BYTES))) as archive:
            check_zip_size(archive, _MAX_OMNIGLOT_UNPACKED_BYTES, str(path))
            images, labels, drawer, names = (
                np.load(io.BytesIO(read_zip_member(archive, archive.getinfo(f"{name}.npy"))), allow_pickle=False)
                for name in ("images", "labels", "drawer", "names")
            )
            return images, labels.astype(np.int64), drawer.astype(np.int64), tuple(str(name) for name in names)
    except (OSError, ValueError, KeyError, AttributeError, MemoryError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not Omniglot's arrays ({error})") from None


def _read_omniglot_archives(folder: Path) -> OmniglotArrays:
    archives = [
        (read_bounded_file(folder / name, _MAX_OMNIGLOT_ARCHIVE_BYTES), str(folder / name))
        for name in OMNIGLOT_ARCHIVES
    ]
    drawings = sorted({key: image for data, where in archives for key, image in _iter_drawings(data, where)}.items())
    if not drawings:
        raise InputError(f"{folder}: no drawings in {' and '.join(OMNIGLOT_ARCHIVES)}")
    names = tuple(sorted({character for (character, _), _ in drawings}))
    place = {name: k for k, name in enumerate(names)}
    images = np.stack([image for _, image in drawings])
    labels = np.array([place[character] for (character, _), _ in drawings], dtype=np.int64)
    return images, labels, np.array([drawer for (_, drawer), _ in drawings], dtype=np.int64), names


def _iter_drawings(data: bytes, where: str) -> Iterator[tuple[tuple[str, int], NDArray[np.uint8]]]:
    """((alphabet/character, drawer), pixels) of an archive; nothing is written to disk."""
    from PIL import Image

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in check_zip_size(archive, _MAX_OMNIGLOT_UNPACKED_BYTES, where).infolist():
                parts = entry.filename.split("/")
                if not entry.filename.endswith(".png") or len(parts) < 3 or entry.file_size > 1 << 16:
                    continue
                with Image.open(io.BytesIO(read_zip_member(archive, entry)), formats=("PNG",)) as picture:
                    fits = picture.size == (
                        _OMNIGLOT_SIDE,
                        _OMNIGLOT_SIDE,
                    )  # known before a small file unpacks to a large picture
                    pixels = np.asarray(picture.convert("L")) if fits else None
                if pixels is not None:
                    drawer = int(parts[-1].removesuffix(".png").rpartition("_")[2])
                    yield (f"{parts[-3]}/{parts[-2]}", drawer), (pixels < 128).astype(np.uint8)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: the archive cannot be read ({error}); download it again") from None


def _sort_and_check_omniglot(arrays: OmniglotArrays, where: Path) -> OmniglotArrays:
    images, labels, drawer, names = arrays
    sizes = (labels.shape, drawer.shape) == (
        (_OMNIGLOT_COUNT,),
        (_OMNIGLOT_COUNT,),
    ) and 0 <= labels.min() <= labels.max() < len(names)
    if (
        images.shape != (_OMNIGLOT_COUNT, _OMNIGLOT_SIDE, _OMNIGLOT_SIDE)
        or len(names) * _OMNIGLOT_DRAWERS != _OMNIGLOT_COUNT
        or not sizes
    ):
        raise InputError(
            f"{where}: {images.shape[0]} images of {len(names)} characters, Omniglot has {_OMNIGLOT_COUNT} of 242"
        )
    ranked = sorted(range(len(names)), key=names.__getitem__)  # whatever order a file has them in
    labels = np.argsort(ranked)[labels]
    order = np.lexsort((drawer, labels))
    arrays = images[order], labels[order], drawer[order], tuple(names[k] for k in ranked)
    found = hash_omniglot_arrays(arrays)
    if found != OMNIGLOT_SHA256:
        raise InputError(f"{where}: not the data set 'omniglot': SHA-256 of its images is {found[:16]}…")
    return arrays


def hash_omniglot_arrays(arrays: OmniglotArrays) -> str:
    """SHA-256 of what is in the arrays, whatever file they came from."""
    images, labels, drawer, names = arrays
    digest = hashlib.sha256("\n".join(names).encode())
    for part in (np.packbits(images), labels.astype("<i8"), drawer.astype("<i8")):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()
