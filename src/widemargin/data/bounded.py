"""Archives and packed files that may be made to fill a memory: read within bounds, refused in one line beyond them."""

from __future__ import annotations

import gzip
from io import BytesIO
from pathlib import Path
from typing import Protocol
from zipfile import ZipFile, ZipInfo

from ..bounded_files import read_file
from ..errors import InputError

_CHUNK = 1 << 20
PACKED_BEST = 300  # times; gzip reaches 1,030 on nothing but zeros, a table seldom 50
_DOUBTED_FROM = 64 << 20


class SupportsRead(Protocol):
    """Anything with bytes to read."""

    def read(self, size: int = -1, /) -> bytes: ...


class Bounded:
    """A stream that may be read up to so many bytes, for readers that skip through whatever is in front."""

    def __init__(self, stream: SupportsRead, most: int, where: str) -> None:
        self.stream, self.left, self.where, self.most = stream, most, where, most

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(data)
        if self.left < 0:
            raise InputError(f"{self.where}: unpacks to more than the {self.most:,} bytes expected at most; not read")
        return data


def checked_zip(archive: ZipFile, most: int, where: str) -> ZipFile:
    """The archive, if all of it claims to unpack to so many bytes at most."""
    total = sum(entry.file_size for entry in archive.infolist())
    if total > most:
        raise InputError(f"{where}: unpacks to {total:,} bytes, more than the {most:,} expected at most; not read")
    return archive


def member_bytes(archive: ZipFile, entry: ZipInfo) -> bytes:
    """All bytes of a member, which are as many as it claims; `ZipFile.read` may unpack 2 GiB to find that out."""
    with archive.open(entry) as stream:
        return stream.read(entry.file_size) if entry.file_size else b""


def file_bytes(path: Path, most: int) -> bytes:
    """All bytes of a file of a known kind, which has so many at most."""
    try:
        return read_file(path, most)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def gunzipped(data: bytes, most: int, where: str) -> bytes:
    """What gzipped bytes unpack to, `most` bytes at most; not if no table packs that well."""
    size = 0
    with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
        while part := stream.read(_CHUNK):  # counted before any of it is held
            size += len(part)
            if size > most:
                raise InputError(f"{where}: unpacks to more than {most >> 20:,} MiB; take a sample of its rows")
            if size > max(_DOUBTED_FROM, PACKED_BEST * len(data)):
                raise InputError(f"{where}: unpacks to more than {PACKED_BEST} times its size, so this is no table")
    with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
        return stream.read(size)
