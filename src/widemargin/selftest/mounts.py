"""Small file systems for checks to fill up or to make read-only: root may mount them, others may not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _mount(*words: str) -> bool:
    """Whether the system did it."""
    try:
        return subprocess.run(["mount", *words], capture_output=True, check=False, timeout=30).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[bool]:
    """A file system of so many bytes at `place`; False where it may not be mounted."""
    place.mkdir(parents=True, exist_ok=True)
    mounted = _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    try:
        yield mounted
    finally:
        if mounted:
            _unmount(place)


def enlarge(place: Path, size: int) -> bool:
    """More room on a small disk."""
    return _mount("-o", f"remount,size={size}", str(place))


@contextmanager
def read_only(place: Path) -> Iterator[bool]:
    """The folder as it is, but read-only for whoever opens a file in it from now on; False where that may not be."""
    mounted = _mount("--bind", str(place), str(place))
    try:
        yield mounted and _mount("-o", "remount,ro,bind", str(place))
    finally:
        if mounted:
            _unmount(place)


def _unmount(place: Path) -> None:
    for words in (["umount"], ["umount", "-l"]):
        if subprocess.run([*words, str(place)], capture_output=True, check=False, timeout=30).returncode == 0:
            return
