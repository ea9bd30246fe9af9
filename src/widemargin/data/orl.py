"""ORL (AT&T) faces: 40 people, ten pictures each, grey, 92×112 pixels.

Read from the folder of the original archive (`orl_faces/s1/1.pgm` …), from the archive itself, or fetched; what counts
is that the pixels are the known ones. Pictures are cut to their middle square, 92×92, where the face is.
Reference: Samaria and Harter, Parameterisation of a stochastic model for human face identification, WACV 1994.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InputError
from .bounded import check_zip_size, read_bounded_file, read_zip_member
from .fetch import FetchError, cache_dir, fetch
from .images import Images, ImageSet

ORL_ARCHIVE = "att_faces.zip"
ORL_FOLDERS = ("orl_faces", "att_faces")
ORL_PEOPLE, ORL_IMAGES_PER_PERSON, ORL_WIDTH, ORL_HEIGHT = 40, 10, 92, 112
ORL_SHA256 = "2e4844a9f4fa4397058f69d6208047170f2e9d399cda18b55c1e8d28f0a83431"
_ORL_URL = f"https://www.cl.cam.ac.uk/Research/DTG/attarchive/pub/data/{ORL_ARCHIVE}"
_MAX_ORL_ARCHIVE_BYTES, _MAX_ORL_UNPACKED_BYTES = 16 << 20, 64 << 20
_PGM_HEADER = f"P5\n{ORL_WIDTH} {ORL_HEIGHT}\n255\n".encode()
_ORL_TRAIN_IMAGES_PER_PERSON = 8  # pictures beyond this one are the test part where people are not split


def load_orl(folders: list[Path]) -> ImageSet:
    """The set from the first of these folders that has it, from the cache, or from the network."""
    pixels = _load_orl_pixels(folders)
    top = (ORL_HEIGHT - ORL_WIDTH) // 2
    x = torch.from_numpy(pixels[:, top : top + ORL_WIDTH].copy()).unsqueeze(1)
    names = tuple(f"s{person:02d}" for person in range(1, ORL_PEOPLE + 1))
    everything = Images("orl_faces", x, torch.arange(ORL_PEOPLE).repeat_interleave(ORL_IMAGES_PER_PERSON), names)
    is_test = torch.arange(len(everything)) % ORL_IMAGES_PER_PERSON >= _ORL_TRAIN_IMAGES_PER_PERSON
    train = everything.take((~is_test).nonzero().squeeze(1))
    values = train.x.double() / 255
    mean, std = (float(values.mean()),), (float(values.std(correction=0)),)
    return ImageSet("orl_faces", train, everything.take(is_test.nonzero().squeeze(1)), mean, std)


def _load_orl_pixels(folders: list[Path]) -> NDArray[np.uint8]:
    for folder in folders:
        if (folder / "s1" / "1.pgm").is_file():
            return _check_and_stack_orl({name: _read_pgm_bytes(folder / name) for name in _orl_file_names()}, folder)
        if (folder / ORL_ARCHIVE).is_file():
            return _read_orl_archive(folder / ORL_ARCHIVE)
    cache_path = cache_dir() / "images" / "orl_faces" / ORL_ARCHIVE
    if not cache_path.is_file():
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fetch(_ORL_URL, cache_path, max_bytes=_MAX_ORL_ARCHIVE_BYTES)
        except FetchError as error:
            raise InputError(f"orl_faces: {error}; put the folder orl_faces (s1/1.pgm …) somewhere") from None
    try:
        return _read_orl_archive(cache_path)
    except InputError as error:  # what was fetched is not what it should be: it must not stay
        cache_path.unlink(missing_ok=True)
        raise InputError(f"{error}; what was downloaded is deleted, the same command fetches it again") from None


def _orl_file_names() -> list[str]:
    return [
        f"s{person}/{picture}.pgm"
        for person in range(1, ORL_PEOPLE + 1)
        for picture in range(1, ORL_IMAGES_PER_PERSON + 1)
    ]


def _read_pgm_bytes(path: Path) -> bytes:
    try:
        return read_bounded_file(path, len(_PGM_HEADER) + 2 * ORL_WIDTH * ORL_HEIGHT)
    except InputError as error:
        raise InputError(f"{error}; orl_faces has 40 × 10 pictures") from None


def _read_orl_archive(path: Path) -> NDArray[np.uint8]:
    """The pictures of the original archive, wherever in it they stand; nothing is written to disk."""
    wanted = set(_orl_file_names())
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(read_bounded_file(path, _MAX_ORL_ARCHIVE_BYTES))) as archive:
            for entry in check_zip_size(archive, _MAX_ORL_UNPACKED_BYTES, str(path)).infolist():
                name = "/".join(entry.filename.split("/")[-2:])
                if name in wanted and entry.file_size <= 1 << 16:
                    found[name] = read_zip_member(archive, entry)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: the archive cannot be read ({error}); delete it and fetch it again") from None
    if lacking := sorted(wanted - set(found)):
        raise InputError(f"{path}: {lacking[0]} is missing; orl_faces has 40 × 10 pictures")
    return _check_and_stack_orl(found, path)


def _check_and_stack_orl(files: dict[str, bytes], where: Path) -> NDArray[np.uint8]:
    """Pixels [400, 112, 92] in the order of people and pictures."""
    digest, pictures = hashlib.sha256(), []
    for name in _orl_file_names():
        data = files[name]
        if not data.startswith(_PGM_HEADER) or len(data) != len(_PGM_HEADER) + ORL_WIDTH * ORL_HEIGHT:
            raise InputError(f"{where}/{name}: not a grey PGM picture of {ORL_WIDTH}×{ORL_HEIGHT} pixels")
        digest.update(data[len(_PGM_HEADER) :])
        pictures.append(np.frombuffer(data, np.uint8, offset=len(_PGM_HEADER)).reshape(ORL_HEIGHT, ORL_WIDTH))
    if digest.hexdigest() != ORL_SHA256:
        raise InputError(f"{where}: not the data set 'orl_faces': SHA-256 of its pixels is {digest.hexdigest()[:16]}…")
    return np.stack(pictures)
