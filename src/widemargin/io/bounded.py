"""Bounded readers for untrusted files: regular files, lines, pipes, JSON, zip and gzip.

A path need not lead to a regular file: a pipe without a writer blocks, a device never ends, and a sparse file claims
gigabytes that are not on disk. Everything the package reads from the folder of a run, model or data set is opened
here: without blocking, regular files only (checked on the open file descriptor, so that the path cannot be swapped in
between), and with the size checked before the contents are read.

JSON is bounded in size, depth and number of containers: beyond some depth Python's own parser raises an error that is
not a ValueError, and deep values that it accepts can exhaust the stack later, when they are copied or printed.
Archives and gzip files that unpack to more than is expected are refused with a one-line error.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import select
import stat
from collections.abc import Iterator
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from zipfile import ZipFile, ZipInfo

from .errors import InputError

MAX_LINE_BYTES = 1 << 20  # bytes per log line; an epoch's line has about two thousand
MAX_LOG_BYTES = 1 << 30  # bytes of a log that is read line by line
MAX_IN_MEMORY_LOG_BYTES = 128 << 20  # bytes of a log that is read into memory as a whole
PIPE_TIMEOUT_SECONDS = 30.0  # longest time without data from a pipe
_MIN_SPARSE_CHECK_BYTES = 256 << 20  # smallest size in bytes at which a file is checked for holes
# A file must have at least one byte in this many on disk; file systems that compress reach this only with zeros.
_MAX_SIZE_TO_STORED_RATIO = 64
_MAX_EXTENTS = 1000  # data extents of a sparse file that are counted
_PIPE_CHUNK_BYTES = 1 << 20
_FILE_TYPE_NAMES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class NotAFileError(InputError):
    """The path leads to something other than a regular file."""


class TooLargeError(InputError):
    """The file is larger than the limit."""


def size_text(num_bytes: int) -> str:
    """Format a number of bytes for a message.

    >>> size_text(64 << 20), size_text(5 << 30), size_text(1000)
    ('64 MiB', '5 GiB', '1,000 bytes')
    """
    for shift, unit in ((30, "GiB"), (20, "MiB")):
        if num_bytes >= 1 << shift and not num_bytes % (1 << shift):
            return f"{num_bytes >> shift:,} {unit}"
    return f"{num_bytes:,} bytes"


def open_regular(path: str | Path, max_bytes: int | None = None) -> BufferedReader:
    """Open a regular file of at most `max_bytes` bytes for reading; raises OSError if it is missing or not readable."""
    file, kind = _open_nonblocking(path)
    if not stat.S_ISREG(kind):
        file.close()
        raise NotAFileError(f"{path}: not a file but {_file_type_name(kind)}")
    size = os.fstat(file.fileno()).st_size
    if max_bytes is not None and size > max_bytes:
        file.close()
        raise too_large_error(path, max_bytes, size)
    return file


def read_file(path: str | Path, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes` bytes; raises OSError if it is missing or not readable."""
    with open_regular(path, max_bytes) as file:
        return _read_bounded(file, path, max_bytes)


def read_lines(
    path: str | Path, max_bytes: int = MAX_LOG_BYTES, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[bytes]:
    """Yield the lines of a regular file, with their line endings."""
    with open_regular(path, max_bytes) as file:
        count = 0
        number = 0
        while line := file.readline(max_line_bytes + 1):
            number += 1
            count += len(line)
            if len(line) > max_line_bytes:
                raise TooLargeError(f"{path}: line {number} has more than {size_text(max_line_bytes)}, the limit")
            if count > max_bytes:  # the file grew while it was read, or its size was unknown
                raise too_large_error(path, max_bytes)
            yield line


def read_stream(path: str | Path, max_bytes: int, timeout: float | None = None) -> bytes:
    """Read all bytes of a regular file, or of a pipe that is never silent for more than `timeout` seconds.

    Pipes are accepted for paths that the user gives, such as `<(zcat table.csv.gz)` in a shell. `timeout` defaults to
    `PIPE_TIMEOUT_SECONDS`.
    """
    file, kind = _open_nonblocking(path)
    with file:
        if stat.S_ISFIFO(kind):
            return _read_pipe(file, path, max_bytes, PIPE_TIMEOUT_SECONDS if timeout is None else timeout)
        if not stat.S_ISREG(kind):
            raise NotAFileError(f"{path}: not a file but {_file_type_name(kind)}")
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise too_large_error(path, max_bytes, size)
        return _read_bounded(file, path, max_bytes)


def read_standard_input(max_bytes: int, timeout: float | None = None) -> bytes:
    """Read all bytes of standard input, a pipe or a file as in `read_stream`; refuse a terminal."""
    name = "stdin"
    with os.fdopen(os.dup(0), "rb") as file:
        kind = os.fstat(file.fileno()).st_mode
        if os.isatty(file.fileno()):
            raise NotAFileError(f"{name}: is a terminal; pipe a file into it, as in `cat FILE | …`")
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            return _read_pipe(file, name, max_bytes, PIPE_TIMEOUT_SECONDS if timeout is None else timeout)
        if not stat.S_ISREG(kind):
            raise NotAFileError(f"{name}: not a file or pipe but {_file_type_name(kind)}")
        return _read_bounded(file, name, max_bytes)


def check_not_sparse(file: BinaryIO, path: str | Path) -> None:
    """Refuse a large sparse file: it takes almost no disk space but would fill the reader's memory."""
    size = os.fstat(file.fileno()).st_size
    if size < _MIN_SPARSE_CHECK_BYTES or not hasattr(os, "SEEK_DATA"):
        return
    stored, place = 0, 0
    try:
        for _ in range(_MAX_EXTENTS):
            start = os.lseek(file.fileno(), place, os.SEEK_DATA)
            place = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            stored += place - start
            if stored * _MAX_SIZE_TO_STORED_RATIO >= size or place >= size:
                break
        else:
            return  # thousands of extents: not a plain sparse file
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: only a hole from here to the end
            return  # the file system does not report holes
    finally:
        os.lseek(file.fileno(), 0, os.SEEK_SET)
    if stored * _MAX_SIZE_TO_STORED_RATIO < size:
        raise TooLargeError(f"{path}: sparse file of {size:,} bytes with {stored:,} on disk; not read")


def too_large_error(path: str | Path, max_bytes: int, size: int | None = None) -> TooLargeError:
    """Return the error for a file above its size limit."""
    has = "it has" if size is None else f"{size:,} bytes,"
    return TooLargeError(f"{path}: {has} more than {size_text(max_bytes)}, the limit")


def _open_nonblocking(path: str | Path) -> tuple[BufferedReader, int]:
    """Open a path for reading without blocking on a pipe or device; return the file and its mode."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    before = os.stat(path).st_mode
    if stat.S_ISSOCK(before) or stat.S_ISDIR(before):  # cannot be opened, at least on some systems
        raise NotAFileError(f"{path}: not a file but {_file_type_name(before)}")
    handle = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    try:
        kind = os.fstat(handle).st_mode
        return os.fdopen(handle, "rb"), kind
    except BaseException:
        os.close(handle)
        raise


def _file_type_name(mode: int) -> str:
    return next((name for is_kind, name in _FILE_TYPE_NAMES if is_kind(mode)), "something else")


def _read_bounded(file: BinaryIO, path: str | Path, max_bytes: int) -> bytes:
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:  # files of /proc and /sys report a size of 0
        raise too_large_error(path, max_bytes)
    return data


def _read_pipe(file: BinaryIO, path: str | Path, max_bytes: int, timeout: float) -> bytes:
    """Read a pipe until its writers close it."""
    poll = select.poll()
    poll.register(file.fileno(), select.POLLIN)
    parts: list[bytes] = []
    count = 0
    while poll.poll(1000.0 * timeout):
        try:
            part = os.read(file.fileno(), _PIPE_CHUNK_BYTES)
        except BlockingIOError:  # another reader of the same pipe was faster
            continue
        if not part:
            return b"".join(parts)
        parts.append(part)
        count += len(part)
        if count > max_bytes:
            raise too_large_error(path, max_bytes)
    raise InputError(
        f"{path}: a pipe that has sent nothing for {timeout:g} s; check that something writes to it, "
        "or write the data to a file and give that"
    )


# ---------------------------------------------------------------- JSON

MAX_JSON_BYTES = 64 << 20  # bytes; a million class names are half of that
MAX_JSON_DEPTH = 64  # levels; ours have six
MAX_JSON_CONTAINERS = 1 << 20  # lists and objects; each takes up to 230 bytes of memory for two of text


class NotJSONError(InputError):
    """The text or file is not valid JSON, or exceeds the bounds on size, depth or containers."""


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON within the bounds; `where` begins the error message."""
    if len(text) > MAX_JSON_BYTES:
        raise NotJSONError(f"{where}: more than {MAX_JSON_BYTES >> 20} MiB of JSON, above the limit")
    if _count_containers(text) > MAX_JSON_CONTAINERS:
        raise NotJSONError(f"{where}: more than {MAX_JSON_CONTAINERS:,} lists and objects in JSON, above the limit")
    try:
        value = json.loads(text)
    except RecursionError:
        raise NotJSONError(f"{where}: not readable JSON (nested more than {MAX_JSON_DEPTH} levels)") from None
    except ValueError as error:  # also bytes that are not UTF-8, and numbers of thousands of digits
        raise NotJSONError(f"{where}: not JSON ({error})") from None
    if _is_deeper_than(value, MAX_JSON_DEPTH):
        raise NotJSONError(f"{where}: not readable JSON (nested more than {MAX_JSON_DEPTH} levels)")
    return value


def read_json(path: Path) -> Any:
    """Parse the JSON in a file; a file that cannot be opened raises OSError."""
    try:
        data = read_file(path, MAX_JSON_BYTES)
    except TooLargeError:
        raise NotJSONError(f"{path}: more than {MAX_JSON_BYTES >> 20} MiB of JSON, above the limit") from None
    return parse_json(data, str(path))


def _count_containers(text: str | bytes) -> int:
    """Upper bound on the number of lists and objects in a JSON text: brackets inside strings count too."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{")
    return text.count("[") + text.count("{")


def dumps_one_line_per_key(values: dict[str, Any], *, ensure_ascii: bool = True) -> str:
    """Format a mapping as JSON with one line per key, so that a long list of numbers takes one line.

    >>> print(dumps_one_line_per_key({"loss": "arcgrad", "counts": [3, 1]}))
    {
     "loss": "arcgrad",
     "counts": [3, 1]
    }
    """
    lines = (f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=ensure_ascii)}" for name, value in values.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _is_deeper_than(value: Any, max_depth: int) -> bool:
    """Return True if containers are nested more than `max_depth` levels deep; iterates by level, without recursion."""
    containers = [value]
    for _ in range(max_depth + 1):
        containers = [inner for one in containers if isinstance(one, dict | list) for inner in _child_containers(one)]
        if not containers:
            return False
    return True


def _child_containers(container: dict[str, Any] | list[Any]) -> list[Any]:
    values = container.values() if isinstance(container, dict) else container
    return [value for value in values if isinstance(value, dict | list)]


# ---------------------------------------------------------------- zip and gzip

_GUNZIP_CHUNK_BYTES = 1 << 20
MAX_GZIP_RATIO = 300  # gzip reaches 1,030 on zeros; a table rarely reaches 50
_RATIO_CHECK_MIN_BYTES = 64 << 20


class SupportsRead(Protocol):
    """Any object with a `read` method that returns bytes."""

    def read(self, size: int = -1, /) -> bytes: ...


class BoundedReader:
    """Stream that raises after `max_bytes` bytes, for readers that skip over unused members."""

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
    """Return the archive if its members claim to unpack to at most `max_bytes` bytes in total."""
    total = sum(entry.file_size for entry in archive.infolist())
    if total > max_bytes:
        raise InputError(f"{where}: unpacks to {total:,} bytes, more than the {max_bytes:,} expected at most; not read")
    return archive


def read_zip_member(archive: ZipFile, entry: ZipInfo) -> bytes:
    """Read a member up to the size it claims; `ZipFile.read` may unpack 2 GiB before it notices a false size."""
    with archive.open(entry) as stream:
        return stream.read(entry.file_size) if entry.file_size else b""


def read_bounded_file(path: Path, max_bytes: int) -> bytes:
    """Call `read_file`; raise an InputError if the file cannot be opened or read."""
    try:
        return read_file(path, max_bytes)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def gunzip_bounded(data: bytes, max_bytes: int, where: str) -> bytes:
    """Unpack gzip data of at most `max_bytes` bytes; refuse compression ratios that no table reaches."""
    size = 0
    with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
        while part := stream.read(_GUNZIP_CHUNK_BYTES):  # counted before it is stored
            size += len(part)
            if size > max_bytes:
                raise InputError(f"{where}: unpacks to more than {max_bytes >> 20:,} MiB; take a sample of its rows")
            if size > max(_RATIO_CHECK_MIN_BYTES, MAX_GZIP_RATIO * len(data)):
                raise InputError(
                    f"{where}: unpacks to more than {MAX_GZIP_RATIO} times its size, above the limit for tables"
                )
    with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
        return stream.read(size)
