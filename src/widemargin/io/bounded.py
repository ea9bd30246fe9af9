"""Files that somebody else may have written, read within bounds: plain files, lines, pipes, JSON, zip and gzip.

A name in a folder need not belong to a file: a pipe that nobody writes to never answers, a device never ends, and a
file with holes claims gigabytes that are nowhere on disk. Everything the package reads from a folder of a run, a
model or a data set is opened here: without waiting, regular files only (which is asked of what was opened, so that it
cannot be exchanged in between), and with its size looked at before anything of it is read.

JSON is bounded in size, depth and number of containers: Python's own reader stops at some depth with an error that is
no ValueError, and values that pass it can exhaust the stack later, when they are copied or shown. Archives and gzip
files are refused in one line where they unpack to more than is expected.
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

MAX_LINE_BYTES = 1 << 20  # bytes of a line of a log; an epoch's has about two thousand
MAX_LOG_BYTES = 1 << 30  # bytes of a log that is read line by line
MAX_IN_MEMORY_LOG_BYTES = 128 << 20  # bytes of a log whose lines are all kept in memory
PIPE_TIMEOUT_SECONDS = 30.0  # how long a pipe may be silent
_MIN_SPARSE_CHECK_BYTES = 256 << 20  # bytes from which on a file may not consist of holes
# At least one byte in so many is on disk; file systems that compress reach this with zeros only.
_MAX_SIZE_TO_STORED_RATIO = 64
_MAX_EXTENTS = 1000  # of a file with holes that are counted
_PIPE_CHUNK_BYTES = 1 << 20
_FILE_TYPE_NAMES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class NotAFileError(InputError):
    """A name that belongs to something else than a regular file."""


class TooLargeError(InputError):
    """A file beyond the size that is read."""


def size_text(num_bytes: int) -> str:
    """A number of bytes for a message.

    >>> size_text(64 << 20), size_text(5 << 30), size_text(1000)
    ('64 MiB', '5 GiB', '1,000 bytes')
    """
    for shift, unit in ((30, "GiB"), (20, "MiB")):
        if num_bytes >= 1 << shift and not num_bytes % (1 << shift):
            return f"{num_bytes >> shift:,} {unit}"
    return f"{num_bytes:,} bytes"


def open_regular(path: str | Path, max_bytes: int | None = None) -> BufferedReader:
    """A regular file of at most `max_bytes` bytes, open for reading; OSError where it is not there or not readable."""
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
    """All bytes of a regular file, which has so many at most; OSError where it is not there or not readable."""
    with open_regular(path, max_bytes) as file:
        return _read_bounded(file, path, max_bytes)


def read_lines(
    path: str | Path, max_bytes: int = MAX_LOG_BYTES, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[bytes]:
    """The lines of a regular file, one after the other, with the bytes that end them."""
    with open_regular(path, max_bytes) as file:
        count = 0
        number = 0
        while line := file.readline(max_line_bytes + 1):
            number += 1
            count += len(line)
            if len(line) > max_line_bytes:
                raise TooLargeError(
                    f"{path}: line {number} has more than {size_text(max_line_bytes)}, the most that is read"
                )
            if count > max_bytes:  # it grows while it is read, or its size was not known
                raise too_large_error(path, max_bytes)
            yield line


def read_stream(path: str | Path, max_bytes: int, timeout: float | None = None) -> bytes:
    """All bytes of a regular file, or of a pipe that is never silent for more than `timeout` seconds.

    Pipes are for what a user gives by name, such as the `<(zcat table.csv.gz)` of a shell. The default of `timeout` is
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
    """All bytes of standard input, a pipe or a file as in `read_stream`; a terminal is not waited for."""
    name = "stdin"
    with os.fdopen(os.dup(0), "rb") as file:
        kind = os.fstat(file.fileno()).st_mode
        if os.isatty(file.fileno()):
            raise NotAFileError(f"{name}: a terminal; send a file or a pipe to it, as in `cat FILE | …`")
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            return _read_pipe(file, name, max_bytes, PIPE_TIMEOUT_SECONDS if timeout is None else timeout)
        if not stat.S_ISREG(kind):
            raise NotAFileError(f"{name}: not a file or pipe but {_file_type_name(kind)}")
        return _read_bounded(file, name, max_bytes)


def check_not_sparse(file: BinaryIO, path: str | Path) -> None:
    """Refuse a large sparse file: one of almost nothing but holes takes no disk space, but fills a reader's memory."""
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
            return  # thousands of pieces: no simple file of holes
    except OSError as error:
        if error.errno != errno.ENXIO:  # else nothing but a hole from here on
            return  # a file system that does not tell
    finally:
        os.lseek(file.fileno(), 0, os.SEEK_SET)
    if stored * _MAX_SIZE_TO_STORED_RATIO < size:
        raise TooLargeError(f"{path}: {size:,} bytes, of which {stored:,} are on disk and the rest are holes; not read")


def too_large_error(path: str | Path, max_bytes: int, size: int | None = None) -> TooLargeError:
    """The error for a file beyond its bound."""
    has = "it has" if size is None else f"{size:,} bytes,"
    return TooLargeError(f"{path}: {has} more than {size_text(max_bytes)}, the most that is read")


def _open_nonblocking(path: str | Path) -> tuple[BufferedReader, int]:
    """What has this name, open for reading, and its kind; a pipe or device is not waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    before = os.stat(path).st_mode
    if stat.S_ISSOCK(before) or stat.S_ISDIR(before):  # cannot be opened, on some systems or on all
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
    if len(data) > max_bytes:  # files of the system claim to be empty
        raise too_large_error(path, max_bytes)
    return data


def _read_pipe(file: BinaryIO, path: str | Path, max_bytes: int, timeout: float) -> bytes:
    """All that comes through a pipe until its writers have closed it."""
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
        f"{path}: a pipe that has sent nothing for {timeout:g} s; is anybody writing to it? "
        "Write it to a file and give that"
    )


# ---------------------------------------------------------------- JSON

MAX_JSON_BYTES = 64 << 20  # bytes; a million class names are half of that
MAX_JSON_DEPTH = 64  # levels; ours have six
MAX_JSON_CONTAINERS = 1 << 20  # lists and objects, each of which takes up to 230 bytes where the text has two


class NotJSONError(InputError):
    """A text or file that is no JSON, or none that anybody wrote in good faith."""


def parse_json(text: str | bytes, where: str) -> Any:
    """The value that a text holds; `where` begins the message if it holds none."""
    if len(text) > MAX_JSON_BYTES:
        raise NotJSONError(f"{where}: more than {MAX_JSON_BYTES >> 20} MiB of JSON")
    if _count_containers(text) > MAX_JSON_CONTAINERS:
        raise NotJSONError(f"{where}: more than {MAX_JSON_CONTAINERS:,} lists and objects of JSON")
    try:
        value = json.loads(text)
    except RecursionError:
        raise NotJSONError(f"{where}: not JSON that can be read (nested more than {MAX_JSON_DEPTH} levels)") from None
    except ValueError as error:  # also bytes that are no text, and numbers of thousands of digits
        raise NotJSONError(f"{where}: not JSON ({error})") from None
    if _is_deeper_than(value, MAX_JSON_DEPTH):
        raise NotJSONError(f"{where}: not JSON that can be read (nested more than {MAX_JSON_DEPTH} levels)")
    return value


def read_json(path: Path) -> Any:
    """The value in a file; a file that cannot be opened raises OSError, as always."""
    try:
        data = read_file(path, MAX_JSON_BYTES)
    except TooLargeError:
        raise NotJSONError(f"{path}: more than {MAX_JSON_BYTES >> 20} MiB of JSON") from None
    return parse_json(data, str(path))


def _count_containers(text: str | bytes) -> int:
    """How many lists and objects a text has at the most: brackets inside words count too."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{")
    return text.count("[") + text.count("{")


def dumps_one_line_per_key(values: dict[str, Any], *, ensure_ascii: bool = True) -> str:
    """The text of names with values, each on one line: long columns of numbers are a line, not a line per number.

    >>> print(dumps_one_line_per_key({"loss": "arcgrad", "counts": [3, 1]}))
    {
     "loss": "arcgrad",
     "counts": [3, 1]
    }
    """
    lines = (f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=ensure_ascii)}" for name, value in values.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _is_deeper_than(value: Any, max_depth: int) -> bool:
    """Whether containers stand in each other more than so many levels deep; level by level, so without a stack."""
    found = [value]
    for _ in range(max_depth + 1):
        found = [inner for one in found if isinstance(one, dict | list) for inner in _child_containers(one)]
        if not found:
            return False
    return True


def _child_containers(container: dict[str, Any] | list[Any]) -> list[Any]:
    values = container.values() if isinstance(container, dict) else container
    return [value for value in values if isinstance(value, dict | list)]


# ---------------------------------------------------------------- zip and gzip

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
    """As `read_file`, but with an InputError where the file cannot be opened or read."""
    try:
        return read_file(path, max_bytes)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def gunzip_bounded(data: bytes, max_bytes: int, where: str) -> bytes:
    """What gzipped bytes unpack to, `max_bytes` bytes at most; not if no table packs that well."""
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
