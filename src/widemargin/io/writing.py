"""Files written whole or not at all, and errors of the disk as one line that says how to go on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import InputError


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
