"""Small file systems for checks to fill up or to make read-only: root may mount them, others may not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _mount(*args: str) -> bool:
    """Whether the system did it."""
    try:
        return subprocess.run(["mount", *args], capture_output=True, check=False, timeout=30).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[bool]:
    """A file system of so many bytes at `path`; False where it may not be mounted."""
    path.mkdir(parents=True, exist_ok=True)
    mounted = _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path))
    try:
        yield mounted
    finally:
        if mounted:
            _unmount(path)


def enlarge_disk(path: Path, size: int) -> bool:
    """More space on a small disk."""
    return _mount("-o", f"remount,size={size}", str(path))


@contextmanager
def mount_read_only(path: Path) -> Iterator[bool]:
    """The folder as it is, but read-only for whoever opens a file in it from now on; False where that may not be."""
    mounted = _mount("--bind", str(path), str(path))
    try:
        yield mounted and _mount("-o", "remount,ro,bind", str(path))
    finally:
        if mounted:
            _unmount(path)


def _unmount(path: Path) -> None:
    for words in (["umount"], ["umount", "-l"]):
        if subprocess.run([*words, str(path)], capture_output=True, check=False, timeout=30).returncode == 0:
            return
