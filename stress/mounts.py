"""Small file systems for checks to fill or to make read-only; only root may mount them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _mount(*args: str) -> bool:
    """Mount; return True if it succeeded."""
    try:
        return subprocess.run(["mount", *args], capture_output=True, check=False, timeout=30).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[bool]:
    """Mount a file system of this size at `path`; False without permission."""
    path.mkdir(parents=True, exist_ok=True)
    mounted = _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path))
    try:
        yield mounted
    finally:
        if mounted:
            _unmount(path)


def enlarge_disk(path: Path, size: int) -> bool:
    """Enlarge a small disk."""
    return _mount("-o", f"remount,size={size}", str(path))


@contextmanager
def mount_read_only(path: Path) -> Iterator[bool]:
    """Make a folder read-only for files opened from now on; False without permission."""
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
