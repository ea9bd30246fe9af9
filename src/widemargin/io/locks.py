"""Locks on folders, and files that are written whole or not at all.

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

from .errors import InputError

LOCK_FILE_NAME = ".lock"
_LOCKS_UNSUPPORTED_ERRNOS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems that know no locks
_SAFE_OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_locked_folders: set[Path] = set()  # a record lock does not hold against its own process


@contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Refuses in one line where another process works in the folder, which is made if need be.

    A record lock (`lockf`) is the process's own: the system frees it with the process, and children that outlive it
    do not keep it. A folder that was made for the lock and in which nothing came to lie goes with it.
    """
    place = Path(folder).resolve()
    if place in _locked_folders:
        raise _folder_locked_error(folder, _signature())
    new = [parent for parent in (place, *place.parents) if not parent.exists()]
    handle = _open_and_lock(place / LOCK_FILE_NAME, folder)
    _locked_folders.add(place)
    try:
        yield
    finally:
        _locked_folders.discard(place)
        with suppress(OSError):
            os.unlink(place / LOCK_FILE_NAME)  # while it is held; whoever has opened it meanwhile sees that it is gone
        os.close(handle)
        with suppress(OSError):
            for parent in new:
                parent.rmdir()


def _open_and_lock(path: Path, folder: str | Path) -> int:
    """The lock's file, locked and signed: the one that has the name now, not one that was just taken away."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # No link: what it leads to would be overwritten. No pipe or device: these are waited for.
            handle = os.open(path, os.O_RDWR | os.O_CREAT | _SAFE_OPEN_FLAGS, 0o644)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise OSError(errno.EINVAL, f"{LOCK_FILE_NAME} is not a file")
        except OSError as error:
            why = f"{LOCK_FILE_NAME} is a link" if error.errno == errno.ELOOP else error.strerror or error
            raise InputError(f"{folder}: cannot be written ({why}); mend that, or choose another out folder") from None
        try:
            _acquire_lock(handle, folder)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        except InputError:
            os.close(handle)
            raise
        os.close(handle)


def _acquire_lock(handle: int, folder: str | Path) -> None:
    """Take the lock and sign it; where there are no locks, go without."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKS_UNSUPPORTED_ERRNOS:
            return
        owner = os.read(handle, 200).decode(errors="replace").strip()
        raise _folder_locked_error(folder, owner or "another process") from None
    with suppress(OSError):  # a full disk: the lock holds without a signature too
        os.truncate(handle, 0)
        os.write(handle, f"{_signature()}\n".encode())


def _signature() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _folder_locked_error(folder: str | Path, owner: str) -> InputError:
    return InputError(f"{folder}: {owner} works in it; wait for its end, or choose another out folder")


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
