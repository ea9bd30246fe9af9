"""Archives and packed files that may be made to fill a memory: read within bounds, refused in one line beyond them."""

from __future__ import annotations

import gzip
from io import BytesIO
from pathlib import Path
from typing import Protocol
from zipfile import ZipFile, ZipInfo

from ..bounded_files import read_file
from ..errors import InputError

_GUNZIP_CHUNK_BYTES = 1 << 20
MAX_GZIP_RATIO = 300  # times; gzip reaches 1,030 on nothing but zeros, a table seldom 50
_RATIO_CHECK_MIN_BYTES = 64 << 20


class SupportsRead(Protocol):
    """Anything with bytes to read."""

    def read(self, size: int = -1, /) -> bytes: ...


class BoundedReader:
    """A stream that may be read up to so many bytes, for readers that skip through whatever is in front."""

    def __init__(self, stream: SupportsRead, max_bytes: int, where: str) -> None:
        self.stream, self.remaining, self.where, self.max_bytes = stream, max_bytes, where, max_bytes

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(min(size, self.remaining + 1) if size >= 0 else self.remaining + 1)
        self.remaining -= len(data)
        if self.remaining < 0:
            raise InputError(
                f"{self.where}: unpacks to more than the {self.max_bytes:,} bytes expected at most; not read"
            )
        return data


def check_zip_size(archive: ZipFile, max_bytes: int, where: str) -> ZipFile:
    """The archive, if all of it claims to unpack to so many bytes at most."""
    total = sum(entry.file_size for entry in archive.infolist())
    if total > max_bytes:
        raise InputError(f"{where}: unpacks to {total:,} bytes, more than the {max_bytes:,} expected at most; not read")
    return archive


def read_zip_member(archive: ZipFile, entry: ZipInfo) -> bytes:
    """All bytes of a member, which are as many as it claims; `ZipFile.read` may unpack 2 GiB to find that out."""
    with archive.open(entry) as stream:
        return stream.read(entry.file_size) if entry.file_size else b""


def read_bounded_file(path: Path, max_bytes: int) -> bytes:
    """All bytes of a file of a known kind, which has so many at most."""
    try:
        return read_file(path, max_bytes)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def gunzip_bounded(data: bytes, max_bytes: int, where: str) -> bytes:
    """What gzipped bytes unpack to, `most` bytes at most; not if no table packs that well."""
    size = 0
    with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
        while part := stream.read(_GUNZIP_CHUNK_BYTES):  # counted before any of it is held
            size += len(part)
            if size > max_bytes:
                raise InputError(f"{where}: unpacks to more than {max_bytes >> 20:,} MiB; take a sample of its rows")
            if size > max(_RATIO_CHECK_MIN_BYTES, MAX_GZIP_RATIO * len(data)):
                raise InputError(f"{where}: unpacks to more than {MAX_GZIP_RATIO} times its size, so this is no table")
    with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
        return stream.read(size)
