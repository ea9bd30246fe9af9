"""Files that somebody else may have written, opened and read within bounds.

A name in a folder need not belong to a file: a pipe that nobody writes to never answers, a device never ends, and a
file with holes claims gigabytes that are nowhere on disk. Everything the package reads from a folder of a run, a
model or a data set is opened here: without waiting, regular files only (which is asked of what was opened, so that it
cannot be exchanged in between), and with its size looked at before anything of it is read.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from .errors import InputError

MAX_LINE_BYTES = 1 << 20  # bytes of a line of a log; an epoch's has about two thousand
MAX_LOG_BYTES = 1 << 30  # bytes of a log that is read line by line
MAX_IN_MEMORY_LOG_BYTES = 128 << 20  # bytes of a log whose lines are all kept in memory
PIPE_TIMEOUT_SECONDS = 30.0  # how long a pipe may be silent
_MIN_SPARSE_CHECK_BYTES = 256 << 20  # bytes from which on a file may not consist of holes
_MAX_SIZE_TO_STORED_RATIO = (
    64  # at least one byte in so many is on disk; file systems that compress reach this with zeros only
)
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
    """A regular file of at most `most` bytes, open for reading; OSError where it is not there or not readable."""
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
    """All bytes of a regular file, or of a pipe that is never silent for more than `seconds` (`PIPE_SECONDS`).

    Pipes are for what a user gives by name, such as the `<(zcat table.csv.gz)` of a shell.
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


def check_not_sparse(file: BinaryIO, path: str | Path) -> None:
    """That a large file is on disk: one of almost nothing but holes costs its writer nothing and its reader all."""
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
