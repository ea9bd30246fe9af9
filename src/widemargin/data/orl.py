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
from .bounded import checked_zip, file_bytes, member_bytes
from .fetch import FetchError, cache_dir, fetch
from .images import Images, ImageSet

ARCHIVE = "att_faces.zip"
FOLDERS = ("orl_faces", "att_faces")
PEOPLE, PICTURES, WIDE, TALL = 40, 10, 92, 112
SHA256 = "2e4844a9f4fa4397058f69d6208047170f2e9d399cda18b55c1e8d28f0a83431"
_URL = f"https://www.cl.cam.ac.uk/Research/DTG/attarchive/pub/data/{ARCHIVE}"
_LARGEST, _LARGEST_UNPACKED = 16 << 20, 64 << 20
_HEADER = f"P5\n{WIDE} {TALL}\n255\n".encode()
_JUDGED_BY = 8  # pictures beyond this one are the test part where people are not split


def load_orl(folders: list[Path]) -> ImageSet:
    """The set from the first of these folders that has it, from the cache, or from the network."""
    pixels = _found(folders)
    top = (TALL - WIDE) // 2
    x = torch.from_numpy(pixels[:, top : top + WIDE].copy()).unsqueeze(1)
    names = tuple(f"s{person:02d}" for person in range(1, PEOPLE + 1))
    everything = Images("orl_faces", x, torch.arange(PEOPLE).repeat_interleave(PICTURES), names)
    judged = torch.arange(len(everything)) % PICTURES >= _JUDGED_BY
    train = everything.take((~judged).nonzero().squeeze(1))
    values = train.x.double() / 255
    mean, std = (float(values.mean()),), (float(values.std(correction=0)),)
    return ImageSet("orl_faces", train, everything.take(judged.nonzero().squeeze(1)), mean, std)


def _found(folders: list[Path]) -> NDArray[np.uint8]:
    for folder in folders:
        if (folder / "s1" / "1.pgm").is_file():
            return _checked({name: _bytes(folder / name) for name in _members()}, folder)
        if (folder / ARCHIVE).is_file():
            return _from_archive(folder / ARCHIVE)
    kept = cache_dir() / "images" / "orl_faces" / ARCHIVE
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            fetch(_URL, kept, limit=_LARGEST)
        except FetchError as error:
            raise InputError(f"orl_faces: {error}; put the folder orl_faces (s1/1.pgm …) somewhere") from None
    try:
        return _from_archive(kept)
    except InputError as error:  # what was fetched is not what it should be: it must not stay
        kept.unlink(missing_ok=True)
        raise InputError(f"{error}; what was downloaded is deleted, the same command fetches it again") from None


def _members() -> list[str]:
    return [f"s{person}/{picture}.pgm" for person in range(1, PEOPLE + 1) for picture in range(1, PICTURES + 1)]


def _bytes(path: Path) -> bytes:
    try:
        return file_bytes(path, len(_HEADER) + 2 * WIDE * TALL)
    except InputError as error:
        raise InputError(f"{error}; orl_faces has 40 × 10 pictures") from None


def _from_archive(path: Path) -> NDArray[np.uint8]:
    """The pictures of the original archive, wherever in it they stand; nothing is written to disk."""
    wanted = set(_members())
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(file_bytes(path, _LARGEST))) as archive:
            for entry in checked_zip(archive, _LARGEST_UNPACKED, str(path)).infolist():
                name = "/".join(entry.filename.split("/")[-2:])
                if name in wanted and entry.file_size <= 1 << 16:
                    found[name] = member_bytes(archive, entry)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: the archive cannot be read ({error}); delete it and fetch it again") from None
    if lacking := sorted(wanted - set(found)):
        raise InputError(f"{path}: {lacking[0]} is missing; orl_faces has 40 × 10 pictures")
    return _checked(found, path)


def _checked(files: dict[str, bytes], where: Path) -> NDArray[np.uint8]:
    """Pixels [400, 112, 92] in the order of people and pictures."""
    digest, pictures = hashlib.sha256(), []
    for name in _members():
        data = files[name]
        if not data.startswith(_HEADER) or len(data) != len(_HEADER) + WIDE * TALL:
            raise InputError(f"{where}/{name}: not a grey PGM picture of {WIDE}×{TALL} pixels")
        digest.update(data[len(_HEADER) :])
        pictures.append(np.frombuffer(data, np.uint8, offset=len(_HEADER)).reshape(TALL, WIDE))
    if digest.hexdigest() != SHA256:
        raise InputError(f"{where}: not the data set 'orl_faces': SHA-256 of its pixels is {digest.hexdigest()[:16]}…")
    return np.stack(pictures)
