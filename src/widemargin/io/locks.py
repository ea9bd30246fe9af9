"""Locks on folders, by filelock, and files that are written atomically.

A lock lets one process at a time work in a folder, and ends with the process, however that ends.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .bounded import open_regular
from .errors import InputError, spell_option

LOCK_FILE_NAME = ".lock"
_LOCKS_UNSUPPORTED_ERRNOS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems that know no locks
_TIMEOUT_SECONDS = 0.05  # for an owner that has just removed its file; any other is refused
_OWNER_OFFSET = 1  # Windows locks the first byte, so it cannot be read


@contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Refuses in one line where another process works in the folder, which is made if need be.

    The system frees the lock with the process, and forked children that outlive it do not keep it. A folder that was
    made for the lock and in which nothing came to lie goes with it. File systems without locks go without.
    """
    from filelock import FileLock, Timeout

    place = Path(folder).resolve()
    path = place / LOCK_FILE_NAME
    new = [parent for parent in (place, *place.parents) if not parent.exists()]
    lock = FileLock(path, timeout=_TIMEOUT_SECONDS, thread_local=False, fallback_to_soft=False, on_acquired=_sign)
    try:
        lock.acquire(poll_interval=_TIMEOUT_SECONDS / 10)
    except Timeout:
        what = f"{_owner(path)} is using this folder; wait until it ends, or choose another folder"
        raise InputError(f"{folder}: {what}") from None
    except OSError as error:
        if error.errno not in _LOCKS_UNSUPPORTED_ERRNOS:
            why = f"{LOCK_FILE_NAME} is a link" if error.errno == errno.ELOOP else error.strerror or error
            raise InputError(f"{folder}: cannot be written ({why}); fix that, or choose another folder") from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes it after the release
            path.unlink()  # before the release: a process that opened it meanwhile sees that it was deleted
        lock.release()
        with suppress(OSError):
            for parent in new:
                parent.rmdir()


def _sign(handle: int) -> None:
    """Write the owner into a lock that was just acquired."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(errno.EINVAL, f"{LOCK_FILE_NAME} is not a file")
    with suppress(OSError):  # a full disk: the lock works without it
        os.truncate(handle, 0)
        os.write(handle, f"\nprocess {os.getpid()} on {socket.gethostname()}\n".encode())


def _owner(path: Path) -> str:
    """Return the description that the owner wrote into the lock."""
    try:
        with open_regular(path) as file:
            file.seek(_OWNER_OFFSET)
            return file.read(200).decode(errors="replace").strip() or "another process"
    except (OSError, InputError):
        return "another process"


# Files that are written atomically, and errors of the disk as one line with a remedy.


@contextmanager
def translate_disk_errors(folder: Path) -> Iterator[None]:
    """Convert errors of the disk, also those of safetensors, to an InputError with a remedy."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        kept = (
            f"the last checkpoint and the log are complete: fix this and continue with {spell_option('resume', True)}"
        )
        raise InputError(f"{folder}: cannot be written ({why}); {kept}") from None


def write_text_atomic(path: Path, text: str) -> None:
    """A text file, whole or not at all: written beside its place, synced, renamed."""
    write_chunks_atomic(path, [text.encode()])


def write_chunks_atomic(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write chunks atomically: like `write_text_atomic`, but the content need not fit into memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.unlink(missing_ok=True)  # what was left there may be a link that leads elsewhere, or a pipe
        with fresh.open("xb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
