"""Locks on folders, by filelock, and files that are written whole or not at all.

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
from .errors import InputError

LOCK_FILE_NAME = ".lock"
_LOCKS_UNSUPPORTED_ERRNOS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems that know no locks
_TIMEOUT_SECONDS = 0.05  # for an owner that has just removed its file; any other is refused
_OWNER_OFFSET = 1  # Windows lets nobody read the first byte, which is the locked one


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
        what = f"{_owner(path)} works in it; wait for its end, or choose another out folder"
        raise InputError(f"{folder}: {what}") from None
    except OSError as error:
        if error.errno not in _LOCKS_UNSUPPORTED_ERRNOS:
            why = f"{LOCK_FILE_NAME} is a link" if error.errno == errno.ELOOP else error.strerror or error
            raise InputError(f"{folder}: cannot be written ({why}); mend that, or choose another out folder") from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes it after the release
            path.unlink()  # while it is held; whoever has opened it meanwhile sees that it is gone
        lock.release()
        with suppress(OSError):
            for parent in new:
                parent.rmdir()


def _sign(handle: int) -> None:
    """Write into a lock that was just taken who holds it."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(errno.EINVAL, f"{LOCK_FILE_NAME} is not a file")
    with suppress(OSError):  # a full disk: the lock holds without a signature too
        os.truncate(handle, 0)
        os.write(handle, f"\nprocess {os.getpid()} on {socket.gethostname()}\n".encode())


def _owner(path: Path) -> str:
    """What the holder of a lock has written into it."""
    try:
        with open_regular(path) as file:
            file.seek(_OWNER_OFFSET)
            return file.read(200).decode(errors="replace").strip() or "another process"
    except (OSError, InputError):
        return "another process"


# Files written whole or not at all, and errors of the disk as one line that says how to go on.


@contextmanager
def translate_disk_errors(folder: Path) -> Iterator[None]:
    """Errors of the disk, also those that safetensors has its own word for, as one line that says how to go on."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        kept = "the last checkpoint and the log are whole; mend it, and --resume goes on"
        raise InputError(f"{folder}: cannot be written ({why}); {kept}") from None


def write_text_atomic(path: Path, text: str) -> None:
    """A text file, whole or not at all: written beside its place, synced, renamed."""
    write_chunks_atomic(path, [text.encode()])


def write_chunks_atomic(path: Path, chunks: Iterable[bytes]) -> None:
    """The same for a file that need not be in memory at once."""
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
