"""Resources of this process: available memory, environment variables, the allocator.

Available memory is checked before something large is read: a one-line error instead of a killed process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def peak_memory() -> int | None:
    """Most bytes of memory that this process has held; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def available_memory() -> int | None:
    """Return the available bytes, with swap, in the machine and its container; None if the system does not say."""
    sizes = [size for size in (_machine_available_memory(), _cgroup_available_memory()) if size is not None]
    return min(sizes, default=None)


def check_memory(needed: int, what: str) -> None:
    """Raise an InputError if more memory is needed than is available; `what` begins the message."""
    available = available_memory()
    if available is not None and needed > available:
        raise InputError(f"{what}: needs {needed:,} bytes of memory, {available:,} are available")


def _machine_available_memory() -> int | None:
    try:
        text = _MEMINFO.read_text("ascii")
    except (OSError, ValueError):
        return None
    sizes = {line.partition(":")[0]: line.split()[1] for line in text.splitlines() if ":" in line}
    if "MemAvailable" not in sizes:
        return None
    return (int(sizes["MemAvailable"]) + int(sizes.get("SwapFree", 0))) << 10


def _cgroup_available_memory() -> int | None:
    """Bytes that the control group (version 2) allows beyond its current use, clean file pages counted as free."""
    try:
        most, used = ((_CGROUP / f"memory.{name}").read_text("ascii").strip() for name in ("max", "current"))
        if most == "max":
            return None
        stats = dict(line.split() for line in (_CGROUP / "memory.stat").read_text("ascii").splitlines())
        return max(0, int(most) - int(used) + int(stats.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None


@contextmanager
def temporary_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block, for this process and its children; restore them afterwards.

    >>> with temporary_environment({"WIDEMARGIN_EXAMPLE": "1"}):
    ...     os.environ["WIDEMARGIN_EXAMPLE"]
    '1'
    >>> "WIDEMARGIN_EXAMPLE" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt in malloc.h
_INT_MAX = 2**31 - 1


def keep_freed_memory() -> bool:
    """Make glibc's allocator keep freed memory; returns False with other allocators.

    A training step on a CPU frees and allocates hundreds of megabytes. glibc returns blocks of that size to the system
    each time, and the pages are faulted in and zeroed again, which takes up to a seventh of the step.

    Only for commands, which own their process: a library must not change its host's allocator.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _INT_MAX))
